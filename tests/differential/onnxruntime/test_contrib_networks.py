"""Random networks of onnxruntime's own operators: integers equal to the byte, floats near.

Every tensor of integers is an output. Floats come last, so that nothing near is quantized again but
within the layer that does so itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.forms.formats import converted
from qir.backends.onnx.writer.graph import Dialect, to_model
from qir.ledger import Ledger
from tests.counting import note
from tests.differential import runtime
from tests.differential.population import Population, census

from .contrib import MS, F, case, loaded, through

FLOAT, U8, I8 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8
COUNT = 60
BOUND, STATE = 1e-5, 2e-2
"""What floats are held to; in a recurrent layer a state at a tie moves by a step of its range."""


@dataclass(frozen=True)
class Coded:
    """A tensor of integers and the names of its numbers."""

    name: str
    shape: tuple[int, ...]
    scale: float
    zero: int
    numbers: tuple[str, str]

    @property
    def triple(self) -> list[str]:
        return [self.name, *self.numbers]


class Net:
    """A network that grows layer by layer, then ends in heads of floats."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.signed = seed % 3 == 0
        self.code = np.int8 if self.signed else np.uint8
        self.nodes: list[Any] = []
        self.feeds: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.made: list[Coded] = []
        self.reals: list[str] = []
        layers = [self.conv, self.depthwise, self.conv, self.add, self.add, self.mul, self.gate]
        layers += [self.concat, self.where, self.sigmoid, self.leaky, self.pool, self.turn]
        self.layers: list[Callable[[], None]] = [*layers, self.matmul, self.residual]
        self.rng.shuffle(self.layers)

    # -- numbers ------------------------------------------------------------------------------

    def pick(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def emit(self, op: str, inputs: list[str], out: str, domain: str = MS, **attrs: Any) -> None:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name, domain=domain, **attrs))

    def number(self, name: str, data: Any, *, fixed: bool = False) -> str:
        """A scale or zero point: a constant, a Constant node, an input or computed."""
        data = np.asarray(data)
        self.known[name] = data
        form = 0 if fixed else self.pick(0, 5)
        if form < 3:
            self.constants[name] = data
        elif form == 3:
            value = numpy_helper.from_array(data)
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=value))
        elif form == 4:
            self.feeds[name] = data
        else:
            kind = {"f": FLOAT, "u": U8, "i": I8}[data.dtype.kind]
            self.feeds[f"{name}_in"] = data.astype(np.float64).astype(F)
            self.emit("Cast", [f"{name}_in"], f"{name}_wide", "", to=TensorProto.DOUBLE)
            self.emit("Cast", [f"{name}_wide"], name, "", to=kind)
        return name

    def coded(
        self, shape: tuple[int, ...], scale: float, zero: int | None = None, *, fixed: bool = False
    ) -> Coded:
        name = f"t{len(self.made)}"
        middle = 0 if self.signed else 128
        zero = middle + self.pick(-20, 20) * 2 + 1 if zero is None else zero
        numbers = (
            self.number(f"{name}_scale", np.array(scale, F), fixed=fixed),
            self.number(f"{name}_zero", np.array(zero, self.code), fixed=fixed),
        )
        self.made.append(Coded(name, shape, scale, zero, numbers))
        return self.made[-1]

    def near(self, scale: float) -> float:
        """A power of two, or one a little off."""
        power = 2.0 ** round(float(np.log2(scale)))
        return power if self.rng.random() < 0.8 else float(F(power * 1.1))

    def weight(self, name: str, shape: tuple[int, ...], count: int) -> tuple[list[str], float]:
        """Integers of weights that are few, so that sums lie between two integers often."""
        signed = self.signed or self.pick(0, 2) > 0
        kind, zero = (np.int8, 0) if signed else (np.uint8, 128)
        data = (self.rng.integers(-3, 4, shape) * 2 + zero).astype(kind)
        many = (count,) if self.pick(0, 1) else ()
        power = self.pick(-6, -3)
        scales = np.asarray(2.0 ** (power + self.rng.integers(-1, 1, many)), F)
        self.constants[name] = data
        held = [self.number(f"{name}_s", scales)]
        held.append(self.number(f"{name}_z", np.full(many, zero, kind)))
        return [name, *held], 2.0**power

    # -- layers -------------------------------------------------------------------------------

    def start(self) -> None:
        shape = (self.pick(1, 2), self.pick(2, 4) * 2, self.pick(6, 10), self.pick(6, 10))
        x = self.coded(shape, 0.125)
        low, high = np.iinfo(self.code).min, np.iinfo(self.code).max
        halves = self.rng.integers(2 * (low - x.zero) - 40, 2 * (high - x.zero) + 40, shape)
        self.feeds["x"] = (halves * 0.0625).astype(F)
        self.emit("QuantizeLinear", ["x", *x.numbers], x.name, MS if self.pick(0, 1) else "")

    def image(self) -> Coded:
        return self.made[-1] if self.pick(0, 2) else self.made[self.pick(0, len(self.made) - 1)]

    def conv(self) -> None:
        x = self.image()
        groups = self.pick(1, 2)
        self.convolve(x, groups if x.shape[1] % 2 == 0 else 1, self.pick(1, 4) * 2)

    def depthwise(self) -> None:
        x = self.image()
        self.convolve(x, x.shape[1], x.shape[1])

    def convolve(self, x: Coded, groups: int, channels: int) -> Coded:
        n, c, h, w = x.shape
        taps = (3, 3) if min(h, w) > 2 else (1, 1)
        pads = [self.pick(0, k - 1) for k in (*taps, *taps)]
        shape = (channels, c // groups, *taps)
        name = f"w{len(self.nodes)}"
        parts, step = self.weight(name, shape, channels)
        size = [s + pads[i] + pads[i + 2] - taps[i] + 1 for i, s in enumerate((h, w))]
        depth = shape[1] * taps[0] * taps[1]
        scale = self.near(x.scale * step * 4 * depth**0.5)
        y = self.coded((n, channels, *size), scale)
        bias = []
        if self.pick(0, 1):
            bias = [f"{name}_b"]
            self.constants[bias[0]] = self.rng.integers(-200, 200, channels).astype(np.int32)
        attrs: dict[str, Any] = {"pads": pads, "group": groups}
        domain = MS if self.pick(0, 1) else ""
        self.emit("QLinearConv", [*x.triple, *parts, *y.numbers, *bias], y.name, domain, **attrs)
        return y

    def residual(self) -> None:
        """A convolution around which its data go, too."""
        x = self.image()
        c = x.shape[1]
        name = f"w{len(self.nodes)}"
        parts, step = self.weight(name, (c, c, 1, 1), c)
        y = self.coded(x.shape, self.near(x.scale * step * 4 * c**0.5))
        self.emit("QLinearConv", [*x.triple, *parts, *y.numbers], y.name, "")
        self.pair("QLinearAdd", x, y, max(x.scale, y.scale))

    def pair(self, op: str, a: Coded, b: Coded, scale: float) -> None:
        out = self.coded(a.shape, self.near(scale))
        self.emit(op, [*a.triple, *b.triple, *out.numbers], out.name)

    def add(self) -> None:
        a = self.image()
        same = [c for c in self.made if c.shape == a.shape]
        b = same[self.pick(0, len(same) - 1)]
        self.pair("QLinearAdd", a, b, max(a.scale, b.scale) * 2)

    def mul(self) -> None:
        a = self.image()
        same = [c for c in self.made if c.shape == a.shape]
        b = same[self.pick(0, len(same) - 1)]
        self.pair("QLinearMul", a, b, a.scale * b.scale * 32)

    def gate(self) -> None:
        """Channels weighted by a sigmoid of their means."""
        x = self.image()
        mean = self.coded((*x.shape[:2], 1, 1), self.near(x.scale / 4))
        self.emit("QLinearGlobalAveragePool", [*x.triple, *mean.numbers], mean.name)
        share = self.coded(mean.shape, 2.0**-8, -127 if self.signed else 1)
        self.emit("QLinearSigmoid", [*mean.triple, *share.numbers], share.name)
        self.pair("QLinearMul", x, share, x.scale)

    def where(self) -> None:
        """A choice; onnxruntime crashes where some of its numbers are constant and some not."""
        fixed = [c for c in self.made if all(n in self.constants for n in c.numbers)]
        if not fixed:
            return
        a = fixed[-1]
        same = [c for c in fixed if c.shape == a.shape]
        b = same[self.pick(0, len(same) - 1)]
        out = self.coded(a.shape, self.near(max(a.scale, b.scale)), fixed=True)
        name = f"if{len(self.nodes)}"
        self.feeds[name] = self.rng.integers(0, 2, a.shape[1:]).astype(np.bool_)
        self.emit("QLinearWhere", [name, *a.triple, *b.triple, *out.numbers], out.name)

    def concat(self) -> None:
        a = self.image()
        same = [c for c in self.made if c.shape[:1] + c.shape[2:] == a.shape[:1] + a.shape[2:]]
        parts = [a, *(same[self.pick(0, len(same) - 1)] for _ in range(self.pick(1, 2)))]
        wide = sum(p.shape[1] for p in parts)
        if wide > 24:
            return
        scale = self.near(max(p.scale for p in parts))
        out = self.coded((a.shape[0], wide, *a.shape[2:]), scale)
        inputs = [*out.numbers, *(n for p in parts for n in p.triple)]
        self.emit("QLinearConcat", inputs, out.name, axis=1)

    def sigmoid(self) -> None:
        x = self.image()
        out = self.coded(x.shape, 2.0**-8, -127 if self.signed else 1)
        self.emit("QLinearSigmoid", [*x.triple, *out.numbers], out.name)

    def leaky(self) -> None:
        x = self.image()
        out = self.coded(x.shape, self.near(x.scale))
        self.emit("QLinearLeakyRelu", [*x.triple, *out.numbers], out.name, alpha=0.25)

    def pool(self) -> None:
        x = self.image()
        if min(x.shape[2:]) < 4:
            return
        size = tuple((s - 2) // 2 + 1 for s in x.shape[2:])
        attrs: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        if self.pick(0, 1):
            out = self.coded((*x.shape[:2], *size), self.near(x.scale))
            self.emit("QLinearAveragePool", [*x.triple, *out.numbers], out.name, **attrs)
        else:
            self.moved("MaxPool", x, (*x.shape[:2], *size), **attrs)

    def turn(self) -> None:
        x = self.image()
        self.moved("Transpose", x, tuple(x.shape[i] for i in (0, 1, 3, 2)), perm=[0, 1, 3, 2])

    def moved(self, op: str, x: Coded, shape: tuple[int, ...], **attrs: Any) -> Coded:
        out = Coded(f"t{len(self.made)}", shape, x.scale, x.zero, x.numbers)
        self.made.append(out)
        self.emit(op, [x.name], out.name, "", **attrs)
        return out

    def matmul(self) -> None:
        x = self.image()
        parts, step = self.weight(f"w{len(self.nodes)}", (x.shape[3], 6), 6)
        out = self.coded((*x.shape[:3], 6), self.near(x.scale * step * 4 * x.shape[3] ** 0.5))
        self.emit("QLinearMatMul", [*x.triple, *parts, *out.numbers], out.name, "")

    # -- heads --------------------------------------------------------------------------------

    def heads(self) -> None:
        """Floats: of sums, of blocks, of heads that look, and of a state."""
        x = self.image()
        n, c, h, w = x.shape
        self.constants["rows"] = np.array([n, c, h * w], np.int64)
        self.emit("Reshape", [x.name, "rows"], "flat", "")
        self.made.append(Coded("flat", (n, c, h * w), x.scale, x.zero, x.numbers))
        wide = 8
        parts, _ = self.weight("wi", (h * w, wide), wide)
        inputs = ["flat", parts[0], x.numbers[0], parts[1], x.numbers[1], parts[2]]
        self.emit("MatMulIntegerToFloat", inputs, "sums")
        self.constants["bias"] = self.rng.normal(size=wide).astype(F)
        self.emit("BiasGelu", ["sums", "bias"], "active")
        self.constants |= {"g": np.ones(wide, F), "be": np.zeros(wide, F)}
        self.emit("SkipLayerNormalization", ["active", "sums", "g", "be"], "normal")
        quantized, _ = self.weight("wd", (wide, wide), wide)
        self.emit("DynamicQuantizeMatMul", ["sums", *quantized], "again")
        packed = self.rng.integers(0, 256, (5, 1, 8)).astype(np.uint8)
        self.constants |= {"wn": packed, "sn": np.full((5, 1), 0.03, F)}
        attrs: dict[str, Any] = {"K": wide, "N": 5, "bits": 4, "block_size": 16}
        self.emit("MatMulNBits", ["normal", "wn", "sn"], "blocks", **attrs)
        self.reals += ["sums", "normal", "again", "blocks"]
        if not self.signed:
            own, _ = self.weight("wa", (h * w, 24), 1)
            self.constants["ba"] = self.rng.normal(size=24).astype(F)
            inputs = ["flat", own[0], "ba", x.numbers[0], own[1], "", x.numbers[1], own[2]]
            self.emit("QAttention", inputs, "seen", num_heads=2)
            self.reals.append("seen")
        self.state(wide)

    def state(self, wide: int) -> None:
        hidden = 4
        for name, rows in (("lw", wide), ("lr", hidden)):
            data = self.rng.integers(-90, 90, (1, rows, 4 * hidden)).astype(np.int8)
            self.constants[name] = data
            self.constants[f"{name}s"] = np.array([0.01], F)
            self.constants[f"{name}z"] = np.array([0], np.int8)
        inputs = ["normal", "lw", "lr", "", "", "", "", "", "lws", "lwz", "lrs", "lrz"]
        self.emit("DynamicQuantizeLSTM", inputs, "run", hidden_size=hidden)
        self.reals.append("run")

    def grown(self, layers: int) -> Any:
        self.start()
        for layer in self.layers[:layers]:
            layer()
        self.heads()
        results = {c.name: I8 if self.signed else U8 for c in self.made}
        results |= dict.fromkeys(self.reals, FLOAT)
        return case(self.nodes, self.feeds, self.constants, results)


def held(mine: Any, theirs: Any, bound: float | None, told: str) -> None:
    """Equal to the byte, or near where there is a bound."""
    if bound is None:
        note(mine, theirs)
        differ = int(np.count_nonzero(mine != theirs))
        assert not differ, f"{told}: {differ} of {theirs.size} differ"
    else:
        most, far = float(np.abs(theirs).max()), float(np.abs(mine - theirs).max())
        assert far <= bound * most, f"{told}: by {far / most}"


def agrees(seed: int) -> Population:
    net = Net(seed)
    made = net.grown(5 + seed % 4)
    theirs, mine = through(made)
    for name, data in theirs.items():
        assert mine[name].dtype == data.dtype, f"seed {seed}: {name}"
        exact = name not in net.reals or name in ("sums", "again")
        bound = STATE if name == "run" else BOUND
        held(mine[name], data, None if exact else bound, f"seed {seed}: {name}")
    return census(made.proto, {**net.known, **net.feeds, **theirs})


@pytest.mark.parametrize("chunk", range(6))
def test_networks_agree_and_are_rich(chunk: int) -> None:
    found = Population()
    for seed in range(chunk * COUNT // 6, (chunk + 1) * COUNT // 6):
        found.merge(agrees(seed))
    print(found)
    found.check(share=0.01)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100, 120))
def test_many_more_networks_agree(chunk: int) -> None:
    for seed in range(chunk * 30, (chunk + 1) * 30):
        agrees(seed)


def test_networks_are_written_by_operators_of_onnx_alone() -> None:
    """Groups are opened; at ties QLinearMul rounds otherwise, and what hangs on that moves."""
    moved = total = 0
    for seed in range(0, COUNT, 8):
        net = Net(seed)
        made = net.grown(6)
        plain = converted(loaded(made.proto), None, Ledger(), standard=True)
        written = to_model(plain, Ledger(), Dialect(standard=True))
        assert {n.domain for n in written.graph.node} == {""}, f"seed {seed}"
        theirs = made.judged()
        found = runtime.run(written, made.feeds, optimize=False)
        for name in (c.name for c in net.made):
            moved += int(np.count_nonzero(theirs[name] != found[name]))
            total += theirs[name].size
    assert moved <= 0.15 * total, f"{moved} of {total} codes differ"
