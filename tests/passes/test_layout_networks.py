"""Whole networks keep no transpose inside, whichever layout they came in and go to."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.passes.layout import Layout
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.keeping import keep

NHWC, NCHW = Layout(), Layout("nchw")
TO = pytest.mark.parametrize("step", [NHWC, NCHW], ids=lambda s: s.to)


class Net:
    """A network of images; `last`: channels last, a transpose before and behind each window op."""

    def __init__(self, last: bool, sizes: tuple[int, int, int] = (3, 8, 8)) -> None:
        self.last, self.graph = last, Graph()
        self.numbers = np.random.default_rng(1)
        c, h, w = sizes
        shape = (1, h, w, c) if last else (1, c, h, w)
        self.x = self.graph.add("input", types=[TensorType(shape, F32)], name="x").result

    def add(self, op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        return self.graph.add(op, operands, attrs).result

    def held(self, *shape: int) -> Value:
        return self.graph.constant(self.numbers.normal(size=shape).astype(np.float32), name="k")

    def sizes(self, *sizes: int) -> Value:
        return self.graph.constant(np.array(sizes, np.int64), name="s")

    def window(self, op: str, x: Value, more: dict[str, Value], **attrs: Attr) -> Value:
        """An op that takes channels second, as TensorFlow's exporter writes it."""
        if not self.last:
            return self.add(op, {"x": x, **more}, **attrs)
        x = self.add("transpose", {"x": x}, perm=(0, 3, 1, 2))
        return self.add(
            "transpose", {"x": self.add(op, {"x": x, **more}, **attrs)}, perm=(0, 2, 3, 1)
        )

    def channels(self, x: Value) -> int:
        size = x.type.shape[3 if self.last else 1]
        assert isinstance(size, int)
        return size

    def row(self, count: int) -> Value:
        """One number a channel."""
        return self.held(count) if self.last else self.held(1, count, 1, 1)

    def conv(self, x: Value, out: int, k: int = 3, stride: int = 1, depth: bool = False) -> Value:
        have = self.channels(x)
        w = self.held(out, 1 if depth else have, k, k)
        pad = (k // 2,) * 4
        groups = have if depth else 1
        y = self.window("conv2d", x, {"w": w}, stride=(stride, stride), pad=pad, groups=groups)
        y = self.add("mul", {"a": y, "b": self.row(out)})
        return self.add("add", {"a": y, "b": self.row(out)})

    def clip(self, x: Value) -> Value:
        return self.add("clip", {"x": x}, min=0.0, max=6.0)

    def plane(self) -> tuple[int, int]:
        return (1, 2) if self.last else (2, 3)

    def residual(self, x: Value, out: int, stride: int) -> Value:
        """A block of ResNet."""
        y = self.add("relu", {"x": self.conv(x, out, 3, stride)})
        y = self.conv(y, out)
        x = x if stride == 1 else self.conv(x, out, 1, stride)
        return self.add("relu", {"x": self.add("add", {"a": y, "b": x})})

    def inverted(self, x: Value, out: int, stride: int, excite: bool) -> Value:
        """A block of MobileNet, with squeeze and excite by linear layers or without."""
        wide = 2 * self.channels(x)
        y = self.clip(self.conv(x, wide, 1))
        y = self.clip(self.conv(y, wide, 3, stride, depth=True))
        if excite:
            mean = self.add("reduce_mean", {"x": y}, axes=self.plane(), keep=False)
            gate = self.add("relu", {"x": self.add("linear", {"x": mean, "w": self.held(2, wide)})})
            gate = self.add(
                "sigmoid", {"x": self.add("linear", {"x": gate, "w": self.held(wide, 2)})}
            )
            shape = (1, 1, 1, wide) if self.last else (1, wide, 1, 1)
            gate = self.add("reshape", {"x": gate, "shape": self.sizes(*shape)})
            y = self.add("mul", {"a": y, "b": gate})
        y = self.conv(y, out, 1)
        return self.add("add", {"a": y, "b": x}) if stride == 1 else y

    def done(self, y: Value) -> Graph:
        self.graph.add("output", {"y": y})
        return self.graph


def resnet(last: bool) -> Graph:
    net = Net(last)
    x = net.add("relu", {"x": net.conv(net.x, 4, 3, 2)})
    x = net.window("max_pool2d", x, {}, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    x = net.residual(net.residual(x, 4, 1), 8, 2)
    x = net.add("reduce_mean", {"x": x}, axes=net.plane(), keep=False)
    return net.done(net.add("softmax", {"x": net.add("linear", {"x": x, "w": net.held(5, 8)})}))


def mobilenet(last: bool) -> Graph:
    net = Net(last)
    x = net.clip(net.conv(net.x, 4, 3, 2))
    x = net.inverted(x, 4, 1, excite=True)
    x = net.inverted(x, 6, 2, excite=False)
    x = net.add("concat", {"xs.0": x, "xs.1": x}, axis=3 if last else 1)
    x = net.window("global_avg_pool", x, {})
    x = net.add("flatten", {"x": x})
    x = net.add("gemm", {"a": x, "b": net.held(12, 5), "c": net.held(5)})
    return net.done(net.add("softmax", {"x": x}, axis=1))


def vgg(last: bool) -> Graph:
    """Elements of channels and places in a row, to linear layers with weights in integers and
    not."""
    net = Net(last)
    x = net.add("relu", {"x": net.conv(net.x, 4)})
    x = net.window("max_pool2d", x, {}, kernel=(2, 2), stride=(2, 2))
    x = net.add("reshape", {"x": x, "shape": net.sizes(0, -1)})
    x = net.add("dropout", {"x": x})
    x = net.add("relu", {"x": net.add("add", {"a": x, "b": net.held(64)})})
    return net.done(net.add("linear", {"x": x, "w": net.held(5, 64), "bias": net.held(5)}))


def shuffle(last: bool) -> Graph:
    """Channels that are dealt out anew between two convolutions."""
    net = Net(False)
    x = net.conv(net.x, 6)
    x = net.add("reshape", {"x": x, "shape": net.sizes(1, 2, 3, 8, 8)})
    x = net.add("transpose", {"x": x}, perm=(0, 2, 1, 3, 4))
    x = net.add("reshape", {"x": x, "shape": net.sizes(1, 6, 8, 8)})
    return net.done(net.add("reduce_max", {"x": net.conv(x, 4)}, axes=(2, 3), keep=False))


def patches(last: bool) -> Graph:
    """Images in patches to rows of numbers, as vision transformers begin, and back to an image."""
    net = Net(False)
    x = net.window("conv2d", net.x, {"w": net.held(6, 3, 4, 4)}, stride=(4, 4))
    x = net.add("flatten", {"x": x}, axis=2) if last else x
    x = net.add("reshape", {"x": x, "shape": net.sizes(1, 6, 4)})
    x = net.add("transpose", {"x": x}, perm=(0, 2, 1))
    x = net.add("linear", {"x": x, "w": net.held(6, 6)})
    x = net.add("transpose", {"x": x}, perm=(0, 2, 1))
    x = net.add("reshape", {"x": x, "shape": net.sizes(1, 6, 2, 2)})
    x = net.window("global_max_pool", net.conv(x, 4), {})
    return net.done(net.add("squeeze", {"x": x}, axes=(-1, -2)))


def inner(graph: Graph) -> list[str]:
    """Transposes that stand neither behind an input nor before an output."""
    return [
        node.name
        for node in graph
        if node.op == "transpose"
        and node.operands["x"].node.op != "input"
        and any(user.op != "output" for user in node.result.users)
    ]


@TO
@pytest.mark.parametrize("last", [False, True], ids=["second", "last"])
@pytest.mark.parametrize("make", [resnet, mobilenet, vgg], ids=lambda make: make.__name__)
def test_a_network_has_no_transpose_inside(
    make: Callable[[bool], Graph], last: bool, step: Layout
) -> None:
    graph = make(last)
    assert keep(step, graph, 0, tolerance=1e-6) > 0 or (step is NCHW and not last)
    after = run_passes(graph, [step], Ledger())
    assert inner(after) == []
    assert sum(n.op == "transpose" for n in after) == (last != (step is NHWC))


@TO
@pytest.mark.parametrize("make", [shuffle, patches], ids=lambda make: make.__name__)
def test_groups_of_axes_are_moved_as_often_as_before(
    make: Callable[[bool], Graph], step: Layout
) -> None:
    graph = make(False)
    keep(step, graph, 0, tolerance=1e-6)
    after = run_passes(graph, [step], Ledger())
    moves = {"shuffle nhwc": 1, "shuffle nchw": 1, "patches nhwc": 0, "patches nchw": 2}
    assert len(inner(after)) == moves[f"{make.__name__} {step.to}"]


class Tail:
    """A convolution, and behind it ops that take axes out, put them in, join and cut them."""

    def __init__(self, seed: int) -> None:
        self.rng, self.net = random.Random(seed), Net(bool(seed % 2), (4, 2, 3))
        x = self.net.conv(self.net.x, self.rng.choice([1, 4]), 1)
        self.values = [x]
        for _ in range(self.rng.randint(1, 6)):
            self.values.append(self.step(self.rng.choice(self.values[-2:])))
        ends = [v for v in self.values if not v.uses]
        self.net.graph.add("output", {f"y{i}": v for i, v in enumerate(ends)})

    def step(self, x: Value) -> Value:
        rng, net, rank = self.rng, self.net, x.type.rank
        shape = [d for d in x.type.shape if isinstance(d, int)]
        kind = rng.choice(
            "reduce keep arg flatten reshape squeeze unsqueeze turn relu add linear norm".split()
        )
        if kind in ("reduce", "keep") and rank > 1:
            axes = tuple(rng.sample(range(-rank, 0), rng.randint(0, 2)))
            op = rng.choice(["reduce_mean", "reduce_max", "reduce_log_sum_exp"])
            return net.add(op, {"x": x}, axes=axes, keep=kind == "keep")
        if kind == "arg" and rank > 1:
            made = net.add("arg_max", {"x": x}, axis=rng.randrange(rank), keep=False)
            return net.add("cast", {"x": made}, to=F32)
        if kind == "flatten" and rank:
            return net.add("flatten", {"x": x}, axis=rng.randint(0, rank))
        if kind == "reshape" and rank:
            at, end = sorted(rng.sample(range(rank + 1), 2))
            sizes = [*shape[:at], -1, *shape[end:]]
            if rng.random() < 0.3 and shape[at] % 2 == 0:
                sizes = [*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]]
            sizes = [0 if rng.random() < 0.3 and i < at else s for i, s in enumerate(sizes)]
            return net.add("reshape", {"x": x, "shape": net.sizes(*sizes)})
        if kind == "squeeze" and 1 in shape:
            return net.add("squeeze", {"x": x}, axes=rng.choice([(), (shape.index(1),)]))
        if kind == "unsqueeze":
            return net.add("unsqueeze", {"x": x}, axes=(rng.randint(0, rank),))
        if kind == "turn" and rank > 1:
            return net.add("transpose", {"x": x}, perm=tuple(rng.sample(range(rank), rank)))
        if kind == "relu":
            return net.add(rng.choice(["relu", "dropout", "tanh"]), {"x": x})
        if kind == "add" and rank:
            wide = tuple(d if rng.random() < 0.7 else 1 for d in shape)[rng.randrange(rank) :]
            return net.add(rng.choice(["add", "mul"]), {"a": x, "b": net.held(*wide)})
        if kind == "linear" and rank > 1:
            if rank == 2 and rng.random() < 0.5:
                return net.add("gemm", {"a": x, "b": net.held(shape[-1], 3)}, alpha=0.5)
            return net.add("linear", {"x": x, "w": net.held(2, shape[-1])})
        if kind == "norm" and rank > 1:
            rows = {s: net.held(shape[1]) for s in ("gamma", "beta", "mean")}
            rows["var"] = net.graph.constant(np.full(shape[1], 1.5, np.float32), name="v")
            return net.add("batch_norm", {"x": x, **rows}, axis=1)
        return net.add("relu", {"x": x})


@TO
@pytest.mark.parametrize("part", range(3))
def test_what_takes_axes_out_computes_what_it_did(step: Layout, part: int) -> None:
    changed = fewer = 0
    for seed in range(part * 40, part * 40 + 40):
        graph = Tail(seed).net.graph
        changed += keep(step, graph, seed, tolerance=1e-5) > 0
        after = run_passes(graph, [step], Ledger())
        fewer += len(inner(after)) < len(inner(graph))
    assert changed > 2
    assert fewer > 2


def test_sizes_that_are_no_numbers_are_no_hindrance() -> None:
    graph = parse(
        """graph main {
      %x = input() : (N)x(H)x(W)x3xf32
      %w = constant(@w) : 4x3x1x1xf32
      %v = constant(@v) : 5x4xf32
      %t = transpose(%x) {perm = (0, 3, 1, 2)} : (N)x3x(H)x(W)xf32
      %c = conv2d(%t, %w) : (N)x4x(H)x(W)xf32
      %m = global_avg_pool(%c) : (N)x4x1x1xf32
      %n = shape(%m) {end = 1} : 1xi64
      %rest = constant([4]) : 1xi64
      %s = concat(xs.0=%n, xs.1=%rest) {axis = 0} : 2xi64
      %f = reshape(%m, %s) : (N)x4xf32
      %y = linear(%f, %v) : (N)x5xf32
      output(y=%y)
    }""",
        {"w": np.ones((4, 3, 1, 1), np.float32), "v": np.ones((5, 4), np.float32)},
    )
    after = run_passes(graph, [NHWC], Ledger())
    assert not after.query("op == 'transpose'")
    assert keep(NHWC, graph, 0, tolerance=1e-6) > 0


def test_weights_in_codes_come_into_the_order_of_what_they_are_multiplied_with() -> None:
    rng = np.random.default_rng(3)
    graph = parse(
        """array @s : 5xf32
    graph main {
      %x = input() : 1x3x2x2xf32
      %w = constant(@w) : 4x3x1x1xf32
      %v = constant(@v) : 5x16x!quant.uniform<i8:f32:0, @s>
      %c = conv2d(%x, %w) : 1x4x2x2xf32
      %q = quantize(%c) : 1x4x2x2x!quant.uniform<u8:f32, 0.05:128>
      %f = flatten(%q) : 1x16x!quant.uniform<u8:f32, 0.05:128>
      %d = dequantize(%f) : 1x16xf32
      %e = dequantize(%v) : 5x16xf32
      %y = linear(%d, %e) : 1x5xf32
      output(y=%y)
    }""",
        {
            "s": np.array([0.5, 1, 2, 0.25, 1], np.float32),
            "w": rng.normal(size=(4, 3, 1, 1)).astype(np.float32),
            "v": rng.integers(-128, 128, (5, 16)).astype(np.int8),
        },
    )
    assert keep(NHWC, graph, 0, tolerance=1e-6) > 0
    assert inner(run_passes(graph, [NHWC], Ledger())) == []


def test_a_transpose_that_somebody_needs_stays_and_so_does_all_that_reads_it() -> None:
    graph = parse("""graph main {
      %x = input() : 1x2x3x4xf32
      %t = transpose(%x) {perm = (0, 2, 3, 1)} : 1x3x4x2xf32
      %f = reduce_max(%t) {axes = (1, 2), keep = false} : 1x2xf32
      output(f=%f, t=%t)
    }""")
    assert NHWC.run(graph.copy(), Ledger()) == 0


def test_halves_of_shuffled_channels_keep_no_transpose_inside() -> None:
    text = """graph main as native {
      %x = input() : 2x4x6x6xf32
      %w = constant(@w) : 4x4x1x1xf32
      %c = conv2d(%x, %w) : 2x4x6x6xf32
      %apart = constant([2, 2, 2, 6, 6]) : 5xi64
      %r = reshape(%c, %apart) : 2x2x2x6x6xf32
      %t = transpose(%r) {perm = (0, 2, 1, 3, 4)} : 2x2x2x6x6xf32
      %whole = constant([2, 4, 6, 6]) : 4xi64
      %s = reshape(%t, %whole) : 2x4x6x6xf32
      %a, %b = split(%s) {axis = 1, sizes = (2, 2)} : 2x2x6x6xf32, 2x2x6x6xf32
      %v = constant(@v) : 2x2x3x3xf32
      %d = conv2d(%b, %v) {pad = (1, 1, 1, 1)} : 2x2x6x6xf32
      %y = concat(xs.0=%a, xs.1=%d) {axis = 1} : 2x4x6x6xf32
      output(y=%y)
    }"""
    rng = np.random.default_rng(3)
    shapes = {"w": (4, 4, 1, 1), "v": (2, 2, 3, 3)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    graph, x = parse(text, arrays), rng.normal(size=(2, 4, 6, 6)).astype(np.float32)
    wanted = run(graph, {"x": x})["y"]
    moved = run_passes(graph, [NHWC], Ledger())
    # The shuffle's own transpose, and one at each edge.
    assert sum(node.op == "transpose" for node in moved) == 3
    assert np.allclose(run(moved, {"x": x})["y"], wanted, rtol=0, atol=1e-6)
