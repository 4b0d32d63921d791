"""The modules by which IPEX's arithmetic is recorded: small ones, on grids where ties lie.

A case is a module under a setting (the type of activations) and a plan (how scales are chosen):
`minmax` takes those that an observer finds in Gaussian data; `dyadic` powers of two, so that ties
are exact; `near` ones such that sx*sw/sy is almost 1/2, 1/4 or 1, where the order of the float
operations shows. Weights are signed, one scale a channel.

The op under test is followed by a "probe", an identity layer without bias, from whose float result
the integers before it are recovered. Roles name the scales: x of data, z of a summand, y of a
result.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

f32 = np.float32
SETTINGS = {
    "u8aff": (torch.quint8, torch.per_tensor_affine),
    "s8sym": (torch.qint8, torch.per_tensor_symmetric),
    "u8sym": (torch.quint8, torch.per_tensor_symmetric),
}
PLANS = ["minmax", "dyadic", "near0", "near1", "near2"]


def zp_of(setting, odd):
    return {"u8aff": odd, "s8sym": 0, "u8sym": 128}[setting]


def lim(setting):
    return (-128, 127) if setting == "s8sym" else (0, 255)


def T(a):
    return torch.from_numpy(np.ascontiguousarray(a, dtype=f32))


class Ctx:
    """Scales of the roles (x, z, y) and helpers to draw data on their grids."""

    def __init__(s, setting, plan, seed):
        s.setting, s.plan, s.rng = setting, plan, np.random.RandomState(seed)
        s.roles = {}
        s.w = {}
        r = s.rng
        if plan.startswith("near"):
            s.sx, s.sw = f32(r.uniform(0.02, 0.2)), f32(r.uniform(0.005, 0.05))
            s.sy = f32(f32(2) * s.sx * s.sw)
            s.sz = f32(s.sy * f32(r.choice([0.5, 1.5, 0.75])))
        else:
            s.sx, s.sw, s.sy, s.sz = f32(2**-4), f32(2**-5), f32(2**-8), f32(2**-9)
        odd = {
            "minmax": (131, 77, 99),
            "dyadic": (131, 77, 99),
            "near0": (117, 91, 45),
            "near1": (0, 1, 3),
            "near2": (128, 128, 129),
        }[plan]
        s.role("x", s.sx, zp_of(setting, odd[0]))
        s.role("y", s.sy, zp_of(setting, odd[1]))
        s.role("z", s.sz, zp_of(setting, odd[2]))

    def role(s, n, scale, zp):
        s.roles[n] = (f32(scale), int(zp))

    def grid(s, n, shape, lo=-24, hi=24):
        """values (q - zp)*scale, q in the type's range, near the zero point"""
        if s.plan == "minmax":
            return (s.rng.standard_normal(shape) * 0.7 + 0.2).astype(f32)
        sc, zp = s.roles[n]
        a, b = lim(s.setting)
        k = s.rng.randint(lo, hi + 1, shape) + zp
        return ((np.clip(k, a, b) - zp) * sc).astype(f32)

    def beyond(s, n, shape):
        """values of which every other lies half way between two integers, a third beyond the
        ends"""
        if s.plan == "minmax":
            return s.grid(n, shape)
        return (2.5 * s.rng.randint(-80, 81, shape) * s.roles[n][0]).astype(f32)

    def weight(s, fqn, shape, big=3):
        c = shape[0]
        mult = s.rng.choice([0.5, 1, 1, 2], c).astype(f32)
        ws = (s.sw * mult).astype(f32)
        s.w[fqn] = ws
        s.lastws = ws
        if s.plan == "minmax":
            return T(s.rng.standard_normal(shape) * 0.2)
        return T(s.rng.randint(-big, big + 1, shape) * ws.reshape((-1,) + (1,) * (len(shape) - 1)))

    def bias(s, c):
        if s.plan == "minmax":
            return T(s.rng.standard_normal(c) * 0.3)
        u = s.rng.randint(-9, 10, c) + s.rng.choice(
            [0, 0.25, 0.5, 0.75, 0.125], c
        )  # in accumulator units
        return T(u * (s.sx * s.lastws).astype(f32))

    def conv(s, fqn, ci, co, k=3, groups=1, bias=True):
        m = nn.Conv2d(ci, co, k, padding=k // 2, groups=groups, bias=bias)
        m.weight.data = s.weight(fqn, (co, ci // groups, k, k), 3 if groups == 1 else 9)
        if bias:
            m.bias.data = s.bias(co)
        return m

    def lin(s, fqn, ci, co, bias=True):
        m = nn.Linear(ci, co, bias=bias)
        m.weight.data = s.weight(fqn, (co, ci))
        if bias:
            m.bias.data = s.bias(co)
        return m

    def probe(s, c, conv=True, fqn="probe"):
        m = nn.Conv2d(c, c, 1, bias=False) if conv else nn.Linear(c, c, bias=False)
        m.weight.data = torch.eye(c).reshape((c, c, 1, 1) if conv else (c, c))
        s.w[fqn] = np.ones(c, f32)
        return m

    def front(s, c):
        return s.probe(
            c, fqn="front"
        )  # identity 1x1 conv: makes its consumer "come from a quantisable op"

    def gain(s, c):
        """the same by a factor of each channel: integers become others, many on ties"""
        m, some = s.front(c), s.rng.uniform(0.6, 1.6)
        s.w["front"] = s.rng.choice([1.5, 1.5, 0.75, 1.25, some], c).astype(f32)
        m.weight.data *= T(s.w["front"]).reshape((c, 1, 1, 1))
        return m


class M(nn.Module):
    """forward = fn(self, *inputs); the submodules come in as keywords"""

    def __init__(s, fn, **sub):
        super().__init__()
        s.fn = fn
        for k, v in sub.items():
            setattr(s, k, v)

    def forward(s, *a):
        return s.fn(s, *a)


# A case: name -> function(ctx) -> (module, inputs, {(op, input no): role}, probe fqn or None).
# An op is its fqn, or a piece of its type.
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


X4, H = (2, 4, 6, 6), 8


@case
def quantize(c):
    sc, zp = c.roles["x"]
    a, b = lim(c.setting)
    k = np.arange(a - zp - 6, b - zp + 7, 0.25)
    k = np.concatenate([k, k[::2] + 0.5])  # ties, quarters, beyond both ends
    k = np.resize(k, (len(k) + 3) // 4 * 4)
    x = (k.astype(f32) * sc).astype(f32).reshape(1, 4, 1, -1)
    if c.plan.startswith("near"):
        x = np.nextafter(x, (x + c.rng.choice([-1, 0, 1], x.shape)).astype(f32)).astype(f32)
    return M(lambda s, x: s.probe(x), probe=c.probe(4)), [x], {("probe", 0): "x"}, "probe"


@case
def quantize_random(c):  # arbitrary scale: reciprocal or divide
    s = f32(c.rng.uniform(0.003, 0.3))
    c.role("x", s, c.roles["x"][1])
    x = ((c.rng.randint(-180, 181, (1, 4, 8, 64)) + 0.5) * float(s)).astype(f32)
    return M(lambda s, x: s.probe(x), probe=c.probe(4)), [x], {("probe", 0): "x"}, "probe"


@case
def weight_quantize(
    c,
):  # unit input rows show the weight integers: y = code*ws*sx; weights on half grid points
    w = c.lin("l", 32, 24, bias=False)
    ws = c.w["l"]
    if c.plan != "minmax":
        w.weight.data = T(
            (c.rng.randint(-127, 126, (24, 32)) + 0.5) * ws.reshape(-1, 1).astype(np.float64)
        )
    return (
        M(lambda s, x: s.l(x), l=w),
        [np.eye(32, dtype=f32) * (c.sx if c.plan != "minmax" else f32(1))],
        {("l", 0): "x"},
        None,
    )


@case
def dequantize(c):
    return (
        M(lambda s, x: s.p(s.front(x)), front=c.front(4), p=nn.MaxPool2d(1)),
        [c.grid("x", (1, 4, 8, 16), -128, 128)],
        {("front", 0): "x", ("p", 0): "x", ("p", "out"): "x"},
        None,
    )


@case
def conv_float(c):
    return M(lambda s, x: s.c(x), c=c.conv("c", 4, H)), [c.grid("x", X4)], {("c", 0): "x"}, None


@case
def conv(c):
    return (
        M(lambda s, x: s.probe(s.c(x)), c=c.conv("c", 4, H), probe=c.probe(H)),
        [c.grid("x", X4)],
        {("c", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def conv_wide(c):  # more channels: possibly another kernel
    m = c.conv("c", 32, 32)
    m.weight.data = (
        T(c.rng.randint(-1, 2, (32, 32, 3, 3)) * c.w["c"].reshape(-1, 1, 1, 1))
        if c.plan != "minmax"
        else m.weight.data
    )
    return (
        M(lambda s, x: s.probe(s.c(x)), c=m, probe=c.probe(32)),
        [c.grid("x", (1, 32, 6, 6))],
        {("c", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def linear_wide(c):
    m = c.lin("l", 128, 32)
    m.weight.data = (
        T(c.rng.randint(-1, 2, (32, 128)) * c.w["l"].reshape(-1, 1))
        if c.plan != "minmax"
        else m.weight.data
    )
    return (
        M(lambda s, x: s.probe(s.l(x)), l=m, probe=c.probe(32, False)),
        [c.grid("x", (24, 128))],
        {("l", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def conv_nobias(c):
    return (
        M(lambda s, x: s.probe(s.c(x)), c=c.conv("c", 4, H, bias=False), probe=c.probe(H)),
        [c.grid("x", X4)],
        {("c", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def conv_relu(c):
    return (
        M(lambda s, x: s.probe(torch.relu(s.c(x))), c=c.conv("c", 4, H), probe=c.probe(H)),
        [c.grid("x", X4)],
        {("c", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def conv_add(c):  # the summand passes a 1x1 max pool, a quantisable op, so it arrives as integers
    return (
        M(
            lambda s, x, z: s.probe(s.c(x) + s.mp(z)),
            c=c.conv("c", 4, H),
            mp=nn.MaxPool2d(1),
            probe=c.probe(H),
        ),
        [c.grid("x", X4), c.grid("z", (2, H, 6, 6), -90, 90)],
        {("c", 0): "x", ("mp", 0): "z", ("add", 0): "z", ("add", 1): "z", ("probe", 0): "y"},
        "probe",
    )


@case
def conv_add_relu(c):
    return (
        M(
            lambda s, x, z: s.probe(torch.relu(s.c(x) + s.mp(z))),
            c=c.conv("c", 4, H),
            mp=nn.MaxPool2d(1),
            probe=c.probe(H),
        ),
        [c.grid("x", X4), c.grid("z", (2, H, 6, 6), -90, 90)],
        {("c", 0): "x", ("mp", 0): "z", ("add", 0): "z", ("add", 1): "z", ("probe", 0): "y"},
        "probe",
    )


@case
def resblock(c):  # relu(c2(relu(c1(r))) + r), r = relu(c0(x)); every convolution's own scales
    m = M(lambda s, x: s._f(x), c0=c.conv("c0", 4, H))
    c.w_keep = None
    m.c1, m.c2, m.probe = c.conv("c1", H, H), c.conv("c2", H, H), c.probe(H)

    def f(s, x):
        r = torch.relu(s.c0(x))
        return s.probe(torch.relu(s.c2(torch.relu(s.c1(r))) + r))

    m.fn = f
    if c.plan != "minmax":
        a = f32(c.sx * c.sw * 2)
        b = f32(a * c.sw * 8)
        d = f32(max(a, b * c.sw * 16))
        for n, v in (("r", a), ("m", b), ("o", d)):
            c.role(n, v, {"u8aff": 0, "s8sym": 0, "u8sym": 128}[c.setting])
    else:
        for n in "rmo":
            c.role(n, 1, 0)
    return (
        m,
        [c.grid("x", X4)],
        {
            ("c0", 0): "x",
            ("c1", 0): "r",
            ("c2", 0): "m",
            ("add", 0): "r",
            ("add", 1): "r",
            ("probe", 0): "o",
        },
        "probe",
    )


@case
def depthwise(c):
    return (
        M(lambda s, x: s.probe(s.c(x)), c=c.conv("c", 8, 8, groups=8), probe=c.probe(8)),
        [c.grid("x", (2, 8, 6, 6))],
        {("c", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def linear_float(c):
    return (
        M(lambda s, x: s.l(x), l=c.lin("l", 32, 16)),
        [c.grid("x", (40, 32))],
        {("l", 0): "x"},
        None,
    )


@case
def linear(c):
    return (
        M(lambda s, x: s.probe(s.l(x)), l=c.lin("l", 32, 16), probe=c.probe(16, False)),
        [c.grid("x", (40, 32))],
        {("l", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def linear_relu(c):
    return (
        M(lambda s, x: s.probe(torch.relu(s.l(x))), l=c.lin("l", 32, 16), probe=c.probe(16, False)),
        [c.grid("x", (40, 32))],
        {("l", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def linear_gelu(c):
    return (
        M(lambda s, x: s.probe(F.gelu(s.l(x))), l=c.lin("l", 32, 16), probe=c.probe(16, False)),
        [c.grid("x", (40, 32))],
        {("l", 0): "x", ("probe", 0): "y"},
        "probe",
    )


@case
def linear_add(c):
    one, other = c.lin("l", 32, 16), c.lin("l2", 16, 16)
    if c.plan != "minmax":  # whole steps of its sums, so that ties are those of the first
        other.bias.data = T(c.rng.randint(-9, 10, 16) * (c.sx * c.lastws).astype(f32))
    return (
        M(
            lambda s, x, z: s.probe(s.l(x) + s.l2(z)),
            l=one,
            l2=other,
            probe=c.probe(16, False),
        ),
        [c.grid("x", (40, 32)), c.grid("x", (40, 16))],
        {("l", 0): "x", ("l2", 0): "x", ("add", 0): "z", ("add", 1): "z", ("probe", 0): "y"},
        "probe",
    )


@case
def matmul3d_float(c):
    return (
        M(lambda s, x, z: torch.matmul(x, z)),
        [c.grid("x", (2, 6, 16)), c.grid("z", (2, 16, 8))],
        {("matmul", 0): "x", ("matmul", 1): "z"},
        None,
    )


def mm(c, f, sx, sz):
    c.role("y", f32(2 * c.sx * c.roles["z"][0]), c.roles["y"][1])
    return (
        M(lambda s, x, z: s.probe(f(x, z)), probe=c.probe(sz[-1], False)),
        [c.grid("x", sx), c.grid("z", sz, -3, 3)],
        {
            ("matmul", 0): "x",
            ("matmul", 1): "z",
            ("bmm", 0): "x",
            ("bmm", 1): "z",
            ("probe", 0): "y",
        },
        "probe",
    )


@case
def matmul3d(c):
    return mm(c, torch.matmul, (2, 12, 16), (2, 16, 8))


@case
def matmul(c):
    return mm(c, torch.matmul, (40, 16), (16, 8))


@case
def bmm_requant(c):
    return mm(c, torch.bmm, (2, 12, 16), (2, 16, 8))


@case
def matmul_float(c):
    return (
        M(lambda s, x, z: torch.matmul(x, z)),
        [c.grid("x", (12, 16)), c.grid("z", (16, 8))],
        {("matmul", 0): "x", ("matmul", 1): "z"},
        None,
    )


@case
def matmul_attention(
    c,
):  # softmax(q k^T / 4) v, the shape IPEX quantises in transformers; q, k, v from identity linears
    m = M(
        lambda s, x, z: torch.matmul(
            torch.softmax(torch.matmul(s.q(x), s.k(z).transpose(-1, -2)) / 4.0, -1), s.v(z)
        ),
        q=c.probe(16, False, "q"),
        k=c.probe(16, False, "k"),
        v=c.probe(16, False, "v"),
    )
    return (
        m,
        [c.grid("x", (2, 2, 12, 16)), c.grid("x", (2, 2, 10, 16))],
        {("q", 0): "x", ("k", 0): "x", ("v", 0): "x"},
        None,
    )


@case
def bmm_float(c):
    return (
        M(lambda s, x, z: torch.bmm(x, z)),
        [c.grid("x", (2, 6, 16)), c.grid("z", (2, 16, 8))],
        {("bmm", 0): "x", ("bmm", 1): "z"},
        None,
    )


@case
def add(c):  # both summands arrive as integers
    c.role(
        "z",
        f32(c.sx * 2) if not c.plan.startswith("near") else f32(c.sx * f32(c.rng.uniform(0.4, 2))),
        c.roles["z"][1],
    )
    c.role("y", f32(2 * c.sx), c.roles["y"][1])
    return (
        M(
            lambda s, x, z: s.probe(s.p(x) + s.q(z)),
            p=nn.MaxPool2d(1),
            q=nn.MaxPool2d(1),
            probe=c.probe(4),
        ),
        [c.grid("x", (2, 4, 9, 9), -100, 100), c.grid("z", (2, 4, 9, 9), -50, 50)],
        {("p", 0): "x", ("q", 0): "z", ("add", 0): "x", ("add", 1): "z", ("probe", 0): "y"},
        "probe",
    )


# Ops from integers to integers are quantised by IPEX only behind a quantisable op: a 1x1
# convolution "front" feeds them (same scale, each channel by a factor of its own).
def pooled(c, shape, **sub):
    p = sub.pop("p")
    lin = sub.pop("lin", 0)
    ch = shape[1]

    def f(s, x):
        y = s.p(s.front(x))
        if "f" in sub:
            y = s.f(y)
        return s.probe(y)

    return (
        M(f, front=c.gain(ch), p=p, probe=c.probe(lin or ch, not lin), **sub),
        [c.beyond("x", shape)],
        {("front", 0): "x", ("p", 0): "x", ("f", 0): "x", ("probe", 0): "x"},
        "probe",
    )


@case
def maxpool(c):
    return pooled(c, X4, p=nn.MaxPool2d(3, 2, 1))


@case
def avgpool(c):
    return pooled(c, (2, 4, 16, 16), p=nn.AvgPool2d(2, 2))


@case
def avgpool_pad(c):
    return pooled(c, (2, 4, 15, 15), p=nn.AvgPool2d(3, 2, 1))


@case
def avgpool_pad_valid(c):
    return pooled(c, (2, 4, 15, 15), p=nn.AvgPool2d(3, 2, 1, count_include_pad=False))


@case
def avgpool_oblong(c):
    return pooled(c, (1, 8, 13, 16), p=nn.AvgPool2d((2, 7), 1))


@case
def adaptive_avgpool(c):
    return pooled(c, (2, 16, 4, 6), p=nn.AdaptiveAvgPool2d(2))


@case
def adaptive_avgpool1(c):
    return pooled(c, (4, 16, 8, 8), p=nn.AdaptiveAvgPool2d(1))


@case
def adaptive_avgpool_oblong(c):
    return pooled(c, (8, 16, 14, 5), p=nn.AdaptiveAvgPool2d(1))


@case
def flatten(c):
    return pooled(c, X4, p=nn.MaxPool2d(2, 2), f=nn.Flatten(), lin=36)


@case
def relu(c):
    return pooled(c, X4, p=nn.MaxPool2d(1), f=nn.ReLU())


@case
def concat(c):
    return (
        M(
            lambda s, x, z: s.probe(torch.cat([s.front(x), s.f2(z)], 1)),
            front=c.front(4),
            f2=c.probe(4, fqn="f2"),
            probe=c.probe(8),
        ),
        [c.grid("x", X4, -120, 120), c.grid("x", X4, -60, 60)],
        {("front", 0): "x", ("f2", 0): "x", ("probe", 0): "y"},
        "probe",
    )
