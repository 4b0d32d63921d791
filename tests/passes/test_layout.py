"""Channels come last, or second, and what is computed stays what it was."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from qir.errors import UsageError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Lineage
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.layout import Layout
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps

NHWC, NCHW = Layout(), Layout("nchw")
TO = pytest.mark.parametrize("step", [NHWC, NCHW], ids=lambda s: s.to)


class Network:
    """A random network of ops that turn, and of some that do not, with channels second or last."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.last = bool(seed % 2)
        self.graph = Graph()
        shape = (1, 6, 5, 4) if self.last else (1, 4, 6, 5)
        x = self.graph.add("input", types=[TensorType(shape, F32)], name="x").result
        self.values = [x]
        for _ in range(10):
            self.values += self.step(self.rng.choice(self.values[-3:]))
        ends = [v for v in self.values if not v.uses] or [x]
        self.graph.add("output", {f"y{i}": v for i, v in enumerate(ends)})

    def add(self, op: str, operands: dict[str, Value], **attrs: Attr) -> list[Value]:
        return list(self.graph.add(op, operands, attrs).results)

    def held(self, *shape: int) -> Value:
        return self.graph.constant(self.numbers.normal(size=shape).astype(np.float32), name="k")

    def step(self, x: Value) -> list[Value]:
        rng = self.rng
        shape = [d for d in x.type.shape if isinstance(d, int)]
        layout, at = ("NHWC", 3) if self.last else ("NCHW", 1)
        if len(shape) != 4 or max(shape) > 30 or min(shape) < 1:
            return []
        channels = shape[at]
        kind = rng.choice(
            "conv conv pool mean relu affine norm add concat pad softmax reduce slice split "
            "resize turn turn tile flip space depth argmax".split()
        )
        if kind == "conv":
            w = self.held(2 * rng.randint(1, 2), channels, 1, 1)
            return self.add("conv2d", {"x": x, "w": w}, layout=layout, pad=(0, 1, 0, 0))
        if kind == "pool":
            op = rng.choice(["max_pool2d", "avg_pool2d"])
            return self.add(op, {"x": x}, kernel=(2, 1), pad=(1, 0, 0, 0), layout=layout)
        if kind == "mean":
            return self.add("global_avg_pool", {"x": x}, layout=layout)
        if kind == "relu":
            return self.add(rng.choice(["relu", "tanh", "identity", "abs"]), {"x": x})
        if kind == "affine":
            wide = [1, 1, 1, channels] if self.last else [1, channels, 1, 1]
            row = wide[rng.randrange(4) :] if self.last or rng.random() < 0.5 else wide
            row = row if len(row) in (0, 4) or self.last else wide[1:]
            return self.add(rng.choice(["mul", "add"]), {"a": x, "b": self.held(*row)})
        if kind == "norm":
            rows = {s: self.held(channels) for s in ("gamma", "beta", "mean")}
            rows["var"] = self.graph.constant(np.full(channels, 1.5, np.float32), name="v")
            return self.add("batch_norm", {"x": x, **rows}, axis=at - rng.choice([0, 4]))
        if kind in ("add", "concat"):
            other = rng.choice([v for v in self.values if v.type == x.type])
            if kind == "add":
                return self.add("add", {"a": x, "b": other})
            return self.add("concat", {"xs.0": x, "xs.1": other}, axis=rng.randrange(-4, 4))
        if kind == "pad":
            return self.add("pad", {"x": x}, pads=tuple(rng.randint(0, 1) for _ in range(8)))
        if kind == "softmax":
            return self.add("softmax", {"x": x}, axis=rng.randrange(-4, 4))
        if kind == "reduce":
            axes = tuple(rng.sample(range(4), rng.randint(0, 2)))
            return self.add("reduce_max", {"x": x}, axes=axes, keep=rng.random() < 0.7)
        if kind == "slice":
            return self.add("slice", {"x": x}, starts=(0,), ends=(3,), axes=(at,), steps=(1,))
        if kind == "split":
            axis = rng.choice([i for i, d in enumerate(shape) if d] or [0])
            return self.add("split", {"x": x}, sizes=(1, shape[axis] - 1), axis=axis)
        if kind == "resize":
            op = rng.choice(["resize", "resize_nearest"])
            if rng.random() < 0.3:
                return self.add(op, {"x": x}, scales=(2.0, 1.0, 1.0, 1.5))
            axes = (at % 3 + 1, 2 if at == 3 else 3)
            return self.add(op, {"x": x}, scales=(2.0, 1.5), axes=axes)
        if kind == "turn":
            perm = rng.choice([(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)])
            turned = self.add("transpose", {"x": x}, perm=perm)
            if perm == (0, 1, 3, 2):
                return turned
            made = self.add("relu", {"x": turned[0]})
            back = (0, 3, 1, 2) if perm == (0, 2, 3, 1) else (0, 2, 3, 1)
            return self.add("transpose", {"x": made[0]}, perm=back)
        if kind == "tile":
            return self.add("tile", {"x": x}, repeats=(1, 2, 1, 1))
        if kind == "flip":
            return self.add("flip", {"x": x}, axes=(rng.randrange(4),))
        if kind == "space" and channels % 4 == 0:
            mode = rng.choice(["DCR", "CRD"])
            return self.add("depth_to_space", {"x": x}, block=2, layout=layout, mode=mode)
        if kind == "depth" and not (shape[2] % 2 or shape[1 if self.last else 3] % 2):
            return self.add("space_to_depth", {"x": x}, block=2, layout=layout)
        if kind == "argmax":
            made = self.add("arg_max", {"x": x}, axis=rng.randrange(4), keep=True)
            return self.add("cast", {"x": made[0]}, to=F32)
        return []


def transposes(graph: Graph) -> int:
    return sum(node.op == "transpose" for node in graph)


@TO
@pytest.mark.parametrize("part", range(3))
def test_networks_keep_what_they_compute(step: Layout, part: int) -> None:
    changed = 0
    for seed in range(part * 24, part * 24 + 24):
        graph = Network(seed).graph
        changed += keep(step, graph, seed, tolerance=1e-6) > 0
        after = run_passes(graph, [step], Ledger())
        layouts = {n.attrs["layout"] for n in after if "layout" in n.attrs}
        assert layouts <= {step.to.upper()}, f"seed {seed}"
        assert {n: v.type for n, v in after.outputs.items()} == {
            n: v.type for n, v in graph.outputs.items()
        }, f"seed {seed}"
    assert changed > 8


@TO
def test_generated_graphs_keep_what_they_compute(step: Layout) -> None:
    assert keeps(step, range(5), tolerance=1e-5) > 2 or step.to == "nchw"


def test_there_and_back_is_where_it_was() -> None:
    for seed in range(0, 40, 2):
        graph = Network(seed).graph
        if "transpose" in {n.op for n in graph}:
            continue
        back = run_passes(graph, [NHWC, NCHW], Ledger())
        assert transposes(back) == 0, f"seed {seed}"
        assert [n.op for n in back] == [n.op for n in graph], f"seed {seed}"
        for node in back:
            if node.op not in ("constant", "input", "output"):
                twin = graph[node.name].node
                assert [v.lineage for v in node.results] == [v.lineage for v in twin.results]
                assert [v.type for v in node.results] == [v.type for v in twin.results]


def test_a_chain_of_convolutions_has_two_transposes() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((1, 4, 6, 6), F32)], name="x").result
    w = graph.constant(np.ones((4, 4, 3, 3), np.float32), name="w")
    for _ in range(5):
        x = graph.add("conv2d", {"x": x, "w": w}, {"pad": (1, 1, 1, 1)}).result
        x = graph.add("relu", {"x": x}).result
    graph.add("output", {"y": x})
    assert transposes(run_passes(graph, [NHWC], Ledger())) == 2


def test_a_transpose_that_gains_nothing_stays_where_it_is() -> None:
    graph = parse("""graph main {
      %x = input() : 1x4x6x3xf32
      %a = transpose(%x) {perm = (0, 3, 1, 2)} : 1x3x4x6xf32
      %b = relu(%a) : 1x3x4x6xf32
      output(b=%b)
    }""")
    assert NHWC.run(graph.copy(), Ledger()) == 0
    assert NCHW.run(graph.copy(), Ledger()) == 0


def test_plans_history_and_weights_come_along() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((1, 2, 3, 3), F32)], name="x").result
    w = graph.constant(Array.of(np.ones((2, 2, 1, 1), np.float32)), name="w")
    conv = graph.add("conv2d", {"x": x, "w": w}, name="conv")
    graph.set_scheme(conv, "w", Scheme(U8, granularity="channel"))
    graph.set_lineage(conv.result, Lineage("t", ("scaled",)))
    graph.add("output", {"y": conv.result})
    after = run_passes(graph, [NHWC], Ledger())
    made = after["conv"].node
    assert made.schemes == conv.schemes
    assert made.operands["w"] is after["w"]
    assert after["conv"].lineage == Lineage("t", ("scaled", "permuted(0, 2, 3, 1)"))
    assert after.outputs["y"].lineage == conv.result.lineage


def test_blocks_that_cannot_be_turned_keep_an_op_where_it_is() -> None:
    graph = parse("""graph main {
      %x = input() : 1x2x2x4x!quant.uniform<u8:f32:{1:2, 2:2}, 0.5>
      %d = dequantize(%x) : 1x2x2x4xf32
      %p = max_pool2d(%d) {kernel = (1, 1)} : 1x2x2x4xf32
      output(p=%p)
    }""")
    assert keep(NHWC, graph, 0) > 0


def test_another_layout_is_no_layout() -> None:
    with pytest.raises(UsageError, match="neither nhwc nor nchw"):
        Layout("hwcn")


def test_ten_times_the_nodes_take_about_ten_times_as_long() -> None:
    def seconds(count: int) -> float:
        graph = Graph()
        x = graph.add("input", types=[TensorType((1, 2, 3, 3), F32)], name="x").result
        w = graph.constant(np.ones((2, 2, 1, 1), np.float32), name="w")
        for _ in range(count // 2):
            made = graph.add("conv2d", {"x": x, "w": w}).result
            x = graph.add("add", {"a": x, "b": made}).result
        graph.add("output", {"y": x})
        start = time.process_time()
        assert NHWC.run(graph, Ledger()) > 0
        return time.process_time() - start

    small = min(seconds(400) for _ in range(3))
    assert min(seconds(4_000) for _ in range(2)) < 20 * small
