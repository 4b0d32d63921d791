"""Operators between integers whose results lie on ties, and beyond both ends: onnxruntime's bytes.

Scales are such that a real is an odd multiple of half a step of the result, or within an ulp of
one, and so far apart that the range of integers is left on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from tests.counting import note
from tests.differential.fusion import PROFILE, grouped
from tests.differential.runtime import optimized, run
from tests.richness import LEAST

Array = NDArray[Any]
F = np.float32
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
BOTH = ("u8", "i8")
SEEDS = 4


@dataclass(frozen=True)
class Case:
    """An operator, what follows it, and the numbers that make its results hard."""

    op: str
    ratio: tuple[float, ...]
    """Scales of its operands, in steps of the result's; one number for their product."""
    shapes: tuple[tuple[int, ...], ...]
    tail: str = ""
    spread: Sequence[float] = ()
    """How far integers lie from their zero points; integers of all sizes for none."""
    kinds: Sequence[str] = BOTH
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.op + self.tail


IMAGE, LINES, ROWS = (2, 6, 8, 8), (3, 40, 8), ((40, 24), (24, 30))
MANY = (4, 6, 12, 8)
PARTS = {"kernel_shape": [2, 1, 2]}
CHAINS = [
    Case("Add", (2.5, 1.5), (IMAGE, IMAGE), "Relu"),
    Case("Mul", (1.5,), (IMAGE, IMAGE), spread=(12, 12)),
    Case("Mul", (1.5,), (IMAGE, IMAGE), "Relu", spread=(14, 14)),
    Case("LeakyRelu", (3,), (IMAGE,), attrs={"alpha": 0.5}),
    Case("GlobalAveragePool", (3,), ((30, 40, 2, 3),)),
    Case("AveragePool", (5,), (LINES,), "Relu", attrs={"kernel_shape": [2]}),
    Case("AveragePool", (6,), ((2, 5, 6, 6, 6),), "Relu", attrs=PARTS),
    Case("AveragePool", (6,), ((2, 5, 6, 6, 6),), "Clip", attrs=PARTS),
    Case("Conv", (2.5,), (LINES, (16, 40, 1)), "Clip", (12, 1), ("u8",)),
    Case("Gemm", (2.5,), ROWS, "Relu", (15, 1)),
    Case("Gemm", (2.5,), ROWS, "Clip", (15, 1)),
    Case("MatMul", (2.5,), ROWS, "Relu", (15, 1), ("u8",)),
    Case("MatMul", (2.5,), ROWS, "Clip", (15, 1), ("u8",)),
]
BOUNDS = [Case(op, (ratio,), (MANY,)) for op in ("Relu", "Clip") for ratio in (2.5, 1.5)]


class Built:
    """A case as a model, with data for it."""

    def __init__(self, case: Case, kind: str, seed: int) -> None:
        self.case, self.rng = case, np.random.default_rng(seed)
        self.carrier, self.element = KINDS[kind]
        self.low, self.high = np.iinfo(self.carrier).min, np.iinfo(self.carrier).max
        self.step = F(2.0 ** -int(self.rng.integers(2, 6)))
        if seed % 2:  # no power of two: then a product of scales may be an ulp off
            self.step = F(self.step * self.rng.uniform(1, 2))
        self.zero = self.low if case.tail else self.odd()
        self.held: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        names = [self.operand(at, shape) for at, shape in enumerate(case.shapes)]
        ends = (-self.rng.integers(200, 300), 150) if case.op == "Clip" else (0, 255)
        for at, (op, attrs) in enumerate(((case.op, case.attrs), (case.tail, {}))):
            if op == "Clip":
                names += [self.constant(f"end{end}", F(F(end) * self.step)) for end in ends]
            if op:
                self.nodes.append(helper.make_node(op, names, [f"r{at}"], **attrs))
                names = [f"r{at}"]
        maps = self.numbers("y", self.step, self.zero)
        self.nodes.append(helper.make_node("QuantizeLinear", [*names, *maps], ["y"]))

    def odd(self) -> int:
        return (self.low + self.high) // 2 + 2 * int(self.rng.integers(-4, 5)) + 2

    def constant(self, name: str, data: Any) -> str:
        self.held[name] = np.asarray(data)
        return name

    def numbers(self, name: str, scale: Any, zero: int) -> list[str]:
        zeros = self.constant(f"{name}_z", np.array(zero, self.carrier))
        return [self.constant(f"{name}_s", F(scale)), zeros]

    def operand(self, at: int, shape: tuple[int, ...]) -> str:
        """The floats of integers around an odd zero point."""
        case, zero = self.case, self.odd()
        scale = F(0.125) if at >= len(case.ratio) else F(self.step * F(case.ratio[at]))
        if len(case.shapes) > len(case.ratio) and not at:
            scale = F(scale * F(8))
        quantized = self.rng.integers(self.low, self.high + 1, shape)
        if case.spread:
            quantized = zero + self.rng.normal(0, case.spread[at], shape).round().astype(np.int64)
        data = np.clip(quantized, self.low, self.high).astype(self.carrier)
        weights = at and case.op in ("Conv", "Gemm", "MatMul")
        (self.held if weights else self.feeds)[f"x{at}"] = data
        inputs = [f"x{at}", *self.numbers(f"x{at}", scale, zero)]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"x{at}_r"]))
        return f"x{at}_r"

    def model(self, result: str = "y") -> onnx.ModelProto:
        fed = [
            helper.make_tensor_value_info(n, self.element, a.shape) for n, a in self.feeds.items()
        ]
        kind = self.element if result == "y" else TensorProto.FLOAT
        given = helper.make_tensor_value_info(result, kind, None)
        held = [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        graph = helper.make_graph(self.nodes, "one", fed, [given], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    def rich(self) -> NDArray[np.int64]:
        """Results, ties among them, and those beyond the low and the high end."""
        real = run(self.model("r0"), self.feeds, optimize=False)["r0"].astype(np.float64)
        steps = real / self.step
        low, high = steps + self.zero < self.low - 0.5, steps + self.zero > self.high + 0.5
        off = np.abs(steps - np.floor(steps) - 0.5)
        ties = ~low & ~high & (off <= 2.0**-20 * np.maximum(1, np.abs(steps)))
        return np.array([real.size, ties.sum(), low.sum(), high.sum()])


def same(found: Array, wanted: Array, where: str) -> None:
    note(found, wanted)
    assert found.dtype == wanted.dtype
    wrong = np.count_nonzero(found != wanted)
    assert not wrong, f"{where}: {wrong} of {wanted.size} differ"


@pytest.mark.parametrize("case", CHAINS, ids=str)
def test_ties_and_both_ends_of_fused_operators_are_onnxruntimes(case: Case) -> None:
    for kind in case.kinds:
        total = np.zeros(4, np.int64)
        for seed in range(SEEDS):
            made, where = Built(case, kind, seed), f"{case}, {kind}, seed {seed}"
            wanted, shown = optimized(made.model(), made.feeds)
            graph = grouped(made.model())
            assert "QuantizeLinear" not in [n.op_type for n in shown.graph.node], where
            assert graph["y"].node.op != "quantize", where
            same(pipeline.run(graph, made.feeds, profile=PROFILE)["y"], wanted["y"], where)
            total += made.rich()
        assert min(total[1:] / total[0]) >= LEAST, f"{case}, {kind}: {total}"


@pytest.mark.parametrize("kind", KINDS)
def test_ties_and_ends_of_bounds_by_other_maps_are_those_of_reals(kind: str) -> None:
    """What `native` computes on integers, and onnxruntime between dequantize and quantize."""
    total = np.zeros(4, np.int64)
    for case in BOUNDS:
        for seed in range(SEEDS):
            made, where = Built(case, kind, seed), f"{case}, {kind}, seed {seed}"
            graph = grouped(made.model(), "native")
            assert graph["y"].node.op == case.op.lower(), where
            wanted = run(made.model(), made.feeds, optimize=False)["y"]
            same(pipeline.run(graph, made.feeds, profile="native")["y"], wanted, where)
            total += made.rich()
    assert min(total[1:] / total[0]) >= LEAST, f"{kind}: {total}"
