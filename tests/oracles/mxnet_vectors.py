"""Records what MXNet 1.9.1's integer kernels (oneDNN) make of inputs that are rich in ties.

Run in an environment of its own, Python up to 3.11 with mxnet 1.9.1 and numpy below 1.24:
`python -m tests.oracles.mxnet_vectors FOLDER` writes one npz file an op. Knows nothing of QIR. Each
case of a file is a number and a name: `3.x`, `3.y`; what is no array of data is in `3.said`, as
JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from tests.oracles.mxnet_draws import Codes, F, on_grid, printed, random_integers
from tests.oracles.mxnet_kernels import apart, computed, kernels
from tests.oracles.mxnet_symbol import Symbol

Case = dict[str, Any]


def nd(array: Any) -> Any:
    return mx.nd.array(array, dtype=np.asarray(array).dtype)


def one(value: Any) -> Any:
    return mx.nd.array(np.array([value], F))


def arrays(found: Any) -> list[Any]:
    return [f.asnumpy() for f in found]


# -- one op after another -------------------------------------------------------------------------


def quantize_v2(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(24):
        kind = ("int8", "uint8")[trial % 2]
        _, level, low = Codes[kind]
        high = printed(level / 8 if trial % 3 == 0 else rng.uniform(0.5, 900))
        least = -high if kind == "int8" else printed(high * rng.choice([0, 0, 0.1]))
        length = 1000 if trial < 16 else int(rng.randint(1, 71))
        x = (rng.randint(2 * low - 200, 700, length) * 0.5 * high / level).astype(F)
        q, a, b = arrays(
            mx.nd.contrib.quantize_v2(
                nd(x), min_calib_range=least, max_calib_range=high, out_type=kind
            )
        )
        said = {"kind": kind, "min": least, "max": high}
        out.append({"said": said, "x": x, "y": q, "range": np.concatenate([a, b])})
    return out


def dequantize(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(8):
        kind = ("int8", "uint8")[trial % 2]
        dtype, _, low = Codes[kind]
        x = np.arange(low, low + 256).astype(dtype)
        high = F(rng.uniform(0.5, 90))
        least = F(-high * rng.uniform(0.2, 1.5)) if kind == "int8" else F(0)
        (y,) = arrays([mx.nd.contrib.dequantize(nd(x), one(least), one(high))])
        said = {"kind": kind, "min": float(least), "max": float(high)}
        out.append({"said": said, "x": x, "y": y})
    return out


def requantize(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(16):
        kind = ("int8", "uint8")[trial % 2]
        high = printed(2.0**14 if trial % 4 < 2 else rng.uniform(1000, 9000))
        top = printed(
            (127 if kind == "int8" else 255) / 4 if trial % 4 < 2 else rng.uniform(100, 900)
        )
        least = -top if kind == "int8" else 0.0
        step = top / (127 if kind == "int8" else 255) / (high / (2.0**31 - 1))
        x = (
            rng.randint(-700 if kind == "int8" else -200, 700, (2, 3, 10, 10)) * 0.5 * step
        ).round()
        x = np.clip(x, -(2.0**31), 2.0**31 - 1).astype(np.int32)
        if trial % 8 < 2:  # halves by the range that is given out, which counts 127.5 and 255.5
            least_step = top / Codes[kind][1] / (high / (2.0**31 - 1))
            x = (rng.randint(-350 if kind == "int8" else -100, 350, x.shape) + 0.5) * least_step
            x = x.round().astype(np.int32)
        elif trial % 4 < 2:
            x = (x >> 5) << 5
        found = mx.nd.contrib.requantize(
            nd(x),
            one(-high),
            one(high),
            min_calib_range=least,
            max_calib_range=top,
            out_type=kind,
        )
        q, a, b = arrays(found)
        said = {"kind": kind, "high": high, "min": least, "max": top}
        out.append({"said": said, "x": x, "y": q, "range": np.concatenate([a, b])})
    return out


def pooling(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(32):
        kind = ("int8", "uint8")[trial % 2]
        what = ("max", "avg")[trial // 2 % 2]
        size = int(rng.randint(1, 4))
        pad = int(rng.randint(0, size)) if trial > 7 else 0
        stride = int(rng.randint(1, 3))
        whole = trial > 27
        counts = bool(trial % 3)
        x = random_integers(rng, kind, 1, int(rng.randint(1, 20)), 8, 9)
        found = mx.nd.contrib.quantized_pooling(
            nd(x),
            one(-3.0 if kind == "int8" else 0.0),
            one(3.0),
            kernel=(size, size),
            stride=(stride, stride),
            pad=(pad, pad),
            pool_type=what,
            global_pool=whole,
            count_include_pad=counts,
        )
        y, a, b = arrays(found)
        said = {"kind": kind, "what": what, "size": size, "stride": stride, "pad": pad}
        said |= {"whole": whole, "counts": counts}
        out.append({"said": said, "x": x, "y": y, "range": np.concatenate([a, b])})
    return out


def act(rng: np.random.RandomState) -> list[Case]:
    out = []
    for kind in ("int8",):  # of unsigned integers the result's type is wrong
        x = random_integers(rng, kind, 2, 3, 5, 7)
        found = mx.nd.contrib.quantized_act(
            nd(x), one(-3.0 if kind == "int8" else 0.0), one(3.0), act_type="relu"
        )
        y, a, b = arrays(found)
        said = {"kind": kind}
        out.append({"said": said, "x": x, "y": y, "range": np.concatenate([a, b])})
    return out


PAIRS = (
    ("int8", "int8"),
    ("uint8", "uint8"),
    ("int8", "uint8"),
    ("uint8", "int8"),
    ("int8", "int8"),
)


def add(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(25):
        left, right = PAIRS[trial % 5]
        ranges = [printed(r) for r in rng.uniform(100, 900, 2)]
        if trial % 3:
            ranges = [printed(Codes[left][1] * 2), printed(Codes[right][1] * 4)]
        a, b = random_integers(rng, left, 1, 3, 13, 17), random_integers(rng, right, 1, 3, 13, 17)
        top = printed(127.5 * 4 if trial % 3 else rng.uniform(100, 500))
        named = {"min_calib_range": -top, "max_calib_range": top}
        low = [-r if k == "int8" else 0.0 for r, k in zip(ranges, (left, right), strict=True)]
        y, p, q = arrays(
            mx.nd.contrib.quantized_elemwise_add(
                nd(a), nd(b), one(low[0]), one(ranges[0]), one(low[1]), one(ranges[1]), **named
            )
        )
        said = {"kinds": [left, right], "ranges": ranges, "top": top}
        made = np.concatenate([p.reshape(-1), q.reshape(-1)])
        out.append({"said": said, "a": a, "b": b, "y": y, "range": made})
    return out


def concat(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(15):
        kinds = (("int8", "int8", "int8"), ("uint8", "uint8", "uint8"), ("int8", "uint8", "int8"))
        chosen = kinds[trial % 3]
        ranges = [printed(r) for r in rng.uniform(100, 900, 3)]
        if trial % 2 == 0:
            ranges = [printed(Codes[k][1] * 2.0 ** rng.randint(0, 3)) for k in chosen]
        xs = [random_integers(rng, k, 1, int(rng.randint(1, 9)), 9, 11) for k in chosen]
        low = [-r if k == "int8" else 0.0 for r, k in zip(ranges, chosen, strict=True)]
        pairs = [one(end) for pair in zip(low, ranges, strict=True) for end in pair]
        found = mx.nd.contrib.quantized_concat(*[nd(x) for x in xs], *pairs, num_args=3, dim=1)
        y, a, b = arrays(found)
        said = {"kinds": list(chosen), "ranges": ranges}
        case = {"said": said, "y": y, "range": np.concatenate([a.reshape(-1), b.reshape(-1)])}
        out.append(case | {f"x{i}": x for i, x in enumerate(xs)})
    return out


def batch_norm(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(12):
        kind = ("int8", "uint8")[trial % 2]
        channels = 6
        x = random_integers(rng, kind, 2, channels, 9, 11)
        high = printed(rng.uniform(1, 9))
        top = printed(rng.uniform(1, 9))
        gamma: Any = rng.uniform(0.5, 1.5, channels)
        var: Any = rng.uniform(0.5, 1.5, channels)
        beta, mean = rng.randn(channels), rng.randn(channels)
        if trial % 3 == 0:
            high = top = 127.5 / 16
            gamma = 2.0 ** rng.randint(-2, 1, channels)
            var = np.full(channels, 1 - 1e-3)
            beta = rng.randint(-9, 9, channels) / 32.0
            mean = np.zeros(channels)
        numbers = [np.asarray(v, F) for v in (gamma, beta, mean, var)]
        found = mx.nd.contrib.quantized_batch_norm(
            nd(x),
            *[nd(v) for v in numbers],
            one(-high if kind == "int8" else 0.0),
            one(high),
            min_calib_range=-top,
            max_calib_range=top,
            eps=1e-3,
        )
        y, a, b = arrays(found)
        said = {"kind": kind, "high": high, "top": top, "eps": 1e-3}
        case = {"said": said, "x": x, "y": y, "range": np.concatenate([a.ravel(), b.ravel()])}
        out.append(case | dict(zip(("gamma", "beta", "mean", "var"), numbers, strict=True)))
    return out


def conv(rng: np.random.RandomState) -> list[Case]:
    """Convolution of unsigned integers, 32-bit results."""
    out = []
    for _ in range(6):
        high, span = (F(v) for v in rng.uniform(1, 9, 2))
        x, w = random_integers(rng, "uint8", 2, 5, 7, 8), random_integers(rng, "int8", 4, 5, 3, 3)
        ranges = [one(0.0), one(high), one(-span), one(span)]
        found = mx.nd.contrib.quantized_conv(
            nd(x), nd(w), *ranges, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True
        )
        y, a, b = arrays(found)
        said = {"kind": "uint8", "high": float(high), "span": float(span)}
        out.append({"said": said, "x": x, "w": w, "y": y, "range": np.concatenate([a, b])})
    return out


def mul(rng: np.random.RandomState) -> list[Case]:
    """Products as integers, as 32-bit products and as floats; by an executor, as shapes of this
    operator are not known to `nd`."""
    out = []
    for trial in range(48):
        kind = ("int8", "int32", "float32")[trial % 3]
        a, b = (random_integers(rng, "int8", 2, 1 + trial * 13 % 70) for _ in "ab")
        ranges = [printed(v) for v in rng.uniform(1, 9, 2)]
        if trial % 2:
            ranges = [127.5 / 16, 127.5 / 8]
        top = printed(ranges[0] * ranges[1] * float(rng.choice([0.05, 1, 3])))
        if kind == "int8" and trial % 4:  # every fourth product on a tie
            a, b = a // 6 | 1, b // 6
            ranges, top = [127.5 * 0.75, 127.5 * 0.5], 127.5 / 4
        made = {"min_calib_range": -top, "max_calib_range": top} if kind == "int8" else {}
        made |= {"enable_float_output": True} if kind == "float32" else {}
        slots = [mx.sym.Variable(n) for n in "abcdef"]
        bound = mx.sym.contrib.quantized_elemwise_mul(*slots, **made)
        ends = [one(sign * r) for r in ranges for sign in (-1, 1)]
        given = dict(zip("abcdef", [nd(a), nd(b), *ends], strict=True))
        y = bound.bind(mx.cpu(), given, grad_req="null").forward()[0].asnumpy()
        said = {"ranges": ranges, "top": top, "made": kind}
        out.append({"said": said, "a": a, "b": b, "y": y})
    return out


def sums(rng: np.random.RandomState) -> list[Case]:
    """Sums without a calibrated range, in 32 bits."""
    out = []
    for trial in range(48):
        kinds = (("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8"))
        chosen = kinds[trial % 4]
        a, b = (random_integers(rng, kind, 2, 1 + trial * 13 % 70) for kind in chosen)
        ranges = [printed(v) for v in rng.uniform(1, 9, 2)]
        pairs = [(-r if kind == "int8" else 0.0, r) for kind, r in zip(chosen, ranges, strict=True)]
        ends = [one(end) for pair in pairs for end in pair]
        y, low, high = arrays(mx.nd.contrib.quantized_elemwise_add(nd(a), nd(b), *ends))
        said = {"kinds": chosen, "ranges": ranges}
        out.append({"said": said, "a": a, "b": b, "y": y, "range": np.concatenate([low, high])})
    return out


def pooling_full(rng: np.random.RandomState) -> list[Case]:
    """Pools whose last window may hang over the edge."""
    out = []
    for trial in range(24):
        kind, what = ("int8", "uint8")[trial % 2], ("max", "avg")[trial // 2 % 2]
        size, stride = int(rng.randint(2, 4)), int(rng.randint(2, 4))
        pad, counts = int(rng.randint(0, size)), bool(trial % 3)
        fits = [n for n in range(5, 12) if -(-(n + 2 * pad - size) // stride) * stride < n + pad]
        x = random_integers(rng, kind, 1, 3, int(rng.choice(fits)), int(rng.choice(fits)))
        least = -3.0 if kind == "int8" else 0.0
        asked: dict[str, Any] = {"kernel": (size,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
        asked |= {"pool_type": what, "count_include_pad": counts, "pooling_convention": "full"}
        found = mx.nd.contrib.quantized_pooling(nd(x), one(least), one(3.0), **asked)
        said = {"kind": kind, "what": what, "size": size, "stride": stride, "pad": pad}
        said |= {"whole": False, "counts": counts, "full": True}
        out.append({"said": said, "x": x, "y": arrays(found)[0]})
    return out


WINDOWS = ((2, 7), (4, 7), (2, 13), (1, 14), (7, 7), (2, 3), (5, 6), (13, 14))
"""Windows of many sizes, of which a sum times what 1 divided by it is may be no quotient."""


def pooling_wide(rng: np.random.RandomState) -> list[Case]:
    """Means over wide windows."""
    out = []
    for trial in range(2 * len(WINDOWS)):
        kind, size = ("int8", "uint8")[trial % 2], WINDOWS[trial // 2]
        pad, counts = [0, 0] if trial % 3 else [s // 2 for s in size], bool(trial % 5)
        x = random_integers(rng, kind, 1, 5, 16, 18)
        least = -3.0 if kind == "int8" else 0.0
        asked: dict[str, Any] = {"kernel": size, "stride": (1, 1), "pad": tuple(pad)}
        asked |= {"pool_type": "avg", "count_include_pad": counts}
        found = mx.nd.contrib.quantized_pooling(nd(x), one(least), one(3.0), **asked)
        said = {"kind": kind, "what": "avg", "size": size, "stride": 1, "pad": pad}
        said |= {"whole": False, "counts": counts}
        out.append({"said": said, "x": x, "y": arrays(found)[0]})
    return out


def embedding(rng: np.random.RandomState) -> list[Case]:
    """Rows of a table of integers."""
    out = []
    for trial in range(6):
        count, wide = 3 + trial, 1 + 11 * trial
        w, rows = random_integers(rng, "int8", count, wide), rng.randint(0, count, 9)
        slots = [mx.sym.Variable(n) for n in "abcd"]
        made = mx.sym.contrib.quantized_embedding(*slots, input_dim=count, output_dim=wide)
        given = dict(zip("abcd", [mx.nd.array(rows), nd(w), one(-2.0), one(2.0)], strict=True))
        y = made.bind(mx.cpu(), given, grad_req="null").forward()[0].asnumpy()
        out.append({"said": {"high": 2.0}, "w": w, "rows": rows, "y": y})
    return out


# -- fused ops, whose float weights the kernel quantizes ------------------------------------------


def run(graph: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    symbol = mx.sym.load_json(json.dumps(graph))
    kinds = {k: v.dtype for k, v in given.items()}
    shapes = {k: v.shape for k, v in given.items()}
    bound = symbol.simple_bind(mx.cpu(), grad_req="null", type_dict=kinds, **shapes)
    for name, value in given.items():
        held = bound.arg_dict if name in bound.arg_dict else bound.aux_dict
        held[name][:] = value
    return arrays(bound.forward(is_train=False))


SUMS = ((False, "int8"), (False, "uint8"))
"""Summands without an activation behind."""
PLAIN = ((False, ""), (True, ""), (True, "int8"), (True, "uint8"))


def fused_conv(
    rng: np.random.RandomState, *, odd: bool = False, tails: tuple[Any, ...] = PLAIN
) -> list[Case]:
    """`odd`: ranges of weights are no short fractions, and some biases leave 32 bits."""
    out = []
    forms = [
        (kind, relu, summand, bias)
        for kind in ("int8", "uint8")
        for relu, summand in tails
        for bias in (False, True)
    ]
    for trial, (kind, relu, summand, bias) in enumerate((forms * 3)[: 24 if odd else 48]):
        shape, many = (1, 6, 12, 14), 8
        level = Codes[kind][1]
        dyadic, small = trial >= 2 * len(forms), trial >= len(forms)
        high = printed(level * 2 if dyadic else rng.uniform(100, 900))
        x = random_integers(rng, kind, *shape)
        if small:
            x = rng.randint(-3 if kind == "int8" else 0, 4, shape).astype(x.dtype)
        w: Any = (rng.randint(-127, 128, (many, shape[1], 1, 1)) * rng.uniform(0.1, 0.2)).astype(F)
        spans = [127.5 * 2.0**-k for k in rng.randint(2, 4, many)]
        for c in range(many):
            w[c, 0] = spans[c] if small or trial % 2 else w[c, 0]
        w = np.clip(w, -max(spans), max(spans))
        if small:
            x, w = on_grid(x, w, np.array(spans))
        w = (w * F(0.0737137)).astype(F) if odd else w
        gains = np.asarray([127.5 / np.abs(v).max() for v in w], F)
        ds = F(level / high)
        wide = 80 if small else 20000
        b = (rng.randint(-wide, wide, many) * 0.5 / (gains * ds)).astype(F)
        made = "uint8" if relu else "int8"
        steps = float(gains.max()) * float(ds)
        power = 2 / 3 if small else 2.0 ** rng.randint(5, 8)
        top = printed(Codes[made][1] * power / steps)
        if odd and bias and trial % 4 < 2:
            b[::2] *= F(1.7 * 2**31) / np.abs(b * gains * ds).max()
            top = printed(float(np.abs(b).max()) * 1.3)
        said: dict[str, Any] = {"kind": kind, "relu": relu, "sum": summand, "high": high}
        said |= {"top": top, "made": made}
        given: dict[str, Any] = {"data": x, "weight": w}
        case: Case = {"said": said, "x": x, "w": w}
        if bias:
            given["bias"] = case["bias"] = b
        if summand:
            said["sum_high"] = printed(
                Codes[summand][1] * power / steps * rng.choice([1, 1, 0.5, 0.7])
            )
            given["sum"] = case["sum"] = random_integers(rng, summand, 1, many, *shape[2:])
        said["has_bias"] = bias
        y, a, b_ = run(_conv_graph(said), given | _ranges(said))
        out.append(case | {"y": y, "range": np.concatenate([a, b_])})
    return out


def _ranges(said: dict[str, Any]) -> dict[str, Any]:
    given = {
        "data_min": np.array([-said["high"] if said["kind"] == "int8" else 0.0], F),
        "data_max": np.array([said["high"]], F),
    }
    if said.get("sum"):
        low = -said["sum_high"] if said["sum"] == "int8" else 0.0
        given["sum_min"] = np.array([low], F)
        given["sum_max"] = np.array([said["sum_high"]], F)
    return given


def _conv_graph(said: dict[str, Any]) -> dict[str, Any]:
    inner, outer = Symbol(), Symbol()
    names = ["data", "weight"] + (["bias"] if said["has_bias"] else [])
    places = [inner.add("null", f"{n}0") for n in names]
    attrs = {"kernel": "(1, 1)", "num_filter": 8, "no_bias": not said["has_bias"]}
    flow = inner.add("Convolution", "conv", tuple((p, 0) for p in places), attrs)
    if said["sum"]:
        other = inner.add("null", "sum0")
        flow = inner.add("elemwise_add", "plus", ((flow, 0), (other, 0)))
    if said["relu"]:
        flow = inner.add("Activation", "relu", ((flow, 0),), {"act_type": "relu"})
    names += ["sum"] if said["sum"] else []
    names += ["data_min", "data_max"] + (["sum_min", "sum_max"] if said["sum"] else [])
    inputs = tuple((outer.add("null", n), 0) for n in names)
    made = {"quantized": "true", "max_calib_range": f"{said['top']:f}"}
    made["min_calib_range"] = f"{0.0 if said['relu'] else -said['top']:f}"
    if said["sum"]:
        made["with_sum"] = "true"
    if said["relu"]:
        made["with_postsum_act" if said["sum"] else "with_act"] = "true"
    head = outer.add("_sg_mkldnn_conv", "fused", inputs, made, [inner.done(flow, top=False)], 3)
    return outer.done(head, top=True, count=3)


def fused_linear(rng: np.random.RandomState) -> list[Case]:
    out = []
    for trial in range(40):
        kind = ("int8", "uint8")[trial % 2]
        relu, real = bool(trial // 2 % 2), trial >= 32
        level = Codes[kind][1]
        rows, depth, many = 60, 12, 8
        x = random_integers(rng, kind, rows, depth)
        small = trial % 3 > 0
        high = printed(rng.uniform(100, 900))
        if small:
            x = rng.randint(-3 if kind == "int8" else 0, 4, (rows, depth)).astype(x.dtype)
        w = (rng.randint(-127, 128, (many, depth)) * rng.uniform(0.1, 0.2)).astype(F)
        w[:, 0] = spans = 127.5 * 2.0 ** -rng.randint(2, 4, many)
        if small:
            x, w = on_grid(x, w, spans)
        gains = np.asarray([127.5 / np.abs(v).max() for v in w], F)
        steps = float(gains.max()) * float(F(level / high))
        wide = 80 if small else 20000
        b = (rng.randint(-wide, wide, many) * 0.5 / (gains * F(level / high))).astype(F)
        made = "uint8" if relu else "int8"
        power = 2 / 3 if small else 2.0 ** rng.randint(5, 8)
        top = printed(Codes[made][1] * power / steps)
        said = {"kind": kind, "relu": relu, "real": real, "high": high, "top": top, "made": made}
        found = run(_linear_graph(said), {"data": x, "weight": w, "bias": b} | _ranges(said))
        case = {"said": said, "x": x, "w": w, "bias": b, "y": found[0]}
        out.append(case if real else case | {"range": np.concatenate(found[1:])})
    return out


def _linear_graph(said: dict[str, Any]) -> dict[str, Any]:
    inner, outer = Symbol(), Symbol()
    places = [inner.add("null", f"{n}0") for n in ("data", "weight", "bias")]
    flow = inner.add("FullyConnected", "fc", tuple((p, 0) for p in places), {"num_hidden": 8})
    if said["relu"]:
        flow = inner.add("Activation", "relu", ((flow, 0),), {"act_type": "relu"})
    names: tuple[str, ...] = ("data", "weight", "bias", "data_min", "data_max")
    if said.get("whole"):
        names += ("weight_min", "weight_max", "bias_min", "bias_max")
    inputs = tuple((outer.add("null", n), 0) for n in names)
    made: dict[str, Any] = {"quantized": "True"}
    if not said.get("whole"):
        made["channel_wise_quantize"] = "True"
    if said["relu"]:
        made["with_eltwise"] = "True"
    if said["real"]:
        made["enable_float_output"] = "True"
    else:
        made["max_calib_range"] = f"{said['top']:f}"
        made["min_calib_range"] = f"{0.0 if said['relu'] else -said['top']:f}"
    op = "_sg_mkldnn_fully_connected"
    count = 1 if said["real"] else 3
    head = outer.add(op, "fused", inputs, made, [inner.done(flow, top=False)], count)
    return outer.done(head, top=True, count=count)


def fused_linear_codes(rng: np.random.RandomState) -> list[Case]:
    """Fully connected, weights and bias given as integers of one range."""
    out = []
    for trial in range(32):
        kind = ("int8", "uint8")[trial % 2]
        relu, real = bool(trial // 2 % 2), trial >= 24
        x = rng.randint(-3 if kind == "int8" else 0, 4, (60, 12)).astype(Codes[kind][0])
        w = rng.randint(-19, 20, (8, 12)).astype(np.int8)
        bias = random_integers(rng, "int8", 8)
        high, span = printed(rng.uniform(100, 900)), printed(rng.uniform(100, 900))
        if trial % 3 == 0:  # half a unit of the sum a step of the bias
            high, span = Codes[kind][1] * 2, 255.0
        steps = float(F(127.5 / span)) * float(F(Codes[kind][1] / high))
        bias_span = 255.0 if trial % 3 == 0 else printed(127 * rng.uniform(0.3, 3) / steps)
        if trial % 8 == 4:  # weights shrink to leave room for it
            bias_span = 2.0**30
        made = "uint8" if relu else "int8"
        top = printed(Codes[made][1] * 2.0 / steps)
        said = {"kind": kind, "relu": relu, "real": real, "high": high, "top": top, "made": made}
        said |= {"whole": True, "span": span, "bias_span": bias_span}
        given = {"data": x, "weight": w, "bias": bias} | _ranges(said)
        given |= {"weight_min": np.array([-span], F), "weight_max": np.array([span], F)}
        given |= {"bias_min": np.array([-bias_span], F), "bias_max": np.array([bias_span], F)}
        found = run(_linear_graph(said), given)
        case = {"said": said, "x": x, "w": w, "bias": bias, "y": found[0]}
        out.append(case if real else case | {"range": np.concatenate(found[1:])})
    return out


OPS: dict[str, Any] = {
    "quantize_v2": quantize_v2,
    "dequantize": dequantize,
    "requantize": requantize,
    "pooling": pooling,
    "act": act,
    "add": add,
    "concat": concat,
    "batch_norm": batch_norm,
    "conv": conv,
    "fused_conv": fused_conv,
    "fused_linear": fused_linear,
    "fused_linear_codes": fused_linear_codes,
    "mul": mul,
    "sums": sums,
    "pooling_full": pooling_full,
    "embedding": embedding,
    "fused_conv_odd": partial(fused_conv, odd=True),
    "pooling_wide": pooling_wide,
    "apart": apart,
    "fused_conv_sum": partial(fused_conv, tails=SUMS),
    "networks": computed,
}


def operators() -> list[str]:
    """All that MXNet has registered for integers."""
    every = mx.operator.get_all_registered_operators()
    return sorted(n for n in every if "quantize" in n or n.startswith("_sg_mkldnn"))


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "operators.txt").write_text("\n".join(operators()) + "\n")
    (folder / "kernels_made.txt").write_text("\n".join(kernels()) + "\n")
    for number, (name, record) in enumerate(OPS.items()):
        if names and name not in names:
            continue
        held: dict[str, Any] = {}
        for i, case in enumerate(record(np.random.RandomState(1000 + number))):
            said = case.pop("said")
            held[f"{i}.said"] = np.array(json.dumps(said))
            held |= {f"{i}.{k}": v for k, v in case.items()}
        np.savez_compressed(folder / f"{name}.npz", **held)
        print(name, sum(k.endswith(".said") for k in held), "cases", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
