"""Operators between integers, one by one: onnxruntime's bytes, its optimizer on and off.

The optimizer computes some of them on integers and leaves the rest in float, as the tables say. A
sum of floats is added up in an order of the kernel's own: a code may be one off where the exact
value lies within the error of a tie, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.backends.onnx.forms.formats import converted
from qir.backends.onnx.writer.graph import to_model
from qir.ledger import Change, Ledger
from tests.counting import note
from tests.differential.comparison import read
from tests.differential.fusion import grouped
from tests.differential.runtime import optimized, run
from tests.installed import UNOPTIMIZED

Array = NDArray[Any]
F = np.float32
IMAGE = (2, 4, 6, 6)
TIE = 2e-5
"""What float32 sums may be off, in steps of the result's scale."""
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}


@dataclass(frozen=True)
class Case:
    """An operator, what it takes beside integers, and what the optimizer makes of it."""

    op: str
    others: Sequence[Any] = ()
    """Constants behind the integers; None for none, a shape for weights on integers."""
    shape: tuple[int, ...] = IMAGE
    codes: int = 1
    same: bool = False
    """Whether the result has the map of the operand."""
    positive: bool = False
    near: bool = False
    """Whether it sums floats."""
    fused: str = ""
    """The operator on integers that the optimizer puts in its place; none where it stays float."""
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        more = "-".join(str(v) for v in self.attrs.values() if isinstance(v, str))
        return f"{self.op}{'-same' if self.same else ''}{'-' + more if more else ''}"


def case(op: str, *others: Any, fused: str = "", **more: Any) -> Case:
    own = {n: more.pop(n) for n in ("shape", "codes", "same", "positive", "near") if n in more}
    return Case(op, others, fused=fused, attrs=more, **own)


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def ones(*shape: int) -> Array:
    return np.ones(shape, F)


def resizes() -> list[Case]:
    """Nearest moves integers where both maps are one; what lies between pixels is in float."""
    modes = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    twice, more = np.array([1, 1, 2, 2], F), np.array([1, 1, 1.5, 2.5], F)
    out = []
    for name in modes:
        attrs = {"coordinate_transformation_mode": name}
        out.append(case("Resize", None, twice, same=True, fused="Resize", **attrs))
        out.append(case("Resize", None, more, **attrs))
        for mode in ("linear", "cubic"):
            out.append(case("Resize", None, twice, same=True, near=True, mode=mode, **attrs))
            out.append(case("Resize", None, more, near=True, mode=mode, **attrs))
    return out


PADS = whole(0, 0, 1, 1, 0, 0, 1, 1)
ON_CODES = [
    case("Gather", whole(0, 2), axis=1, same=True, fused="Gather"),
    case("Slice", whole(1), whole(3), whole(2), same=True, fused="Slice"),
    case("Tile", whole(1, 2, 1, 1), same=True, fused="Tile"),
    case("Expand", whole(2, 4, 6, 6), shape=(2, 1, 6, 1), same=True, fused="Expand"),
    case("Unsqueeze", whole(0), same=True, fused="Unsqueeze"),
    case("Squeeze", whole(0), shape=(1, 4, 6), same=True, fused="Squeeze"),
    case("DepthToSpace", blocksize=2, same=True, fused="DepthToSpace"),
    case("ReduceMax", whole(2, 3), same=True, fused="ReduceMax"),
    case("ReduceMin", whole(2, 3), same=True, fused="ReduceMin"),
    case("MaxPool", kernel_shape=[2, 2], same=True, fused="MaxPool"),
    case("LeakyRelu", alpha=0.1, fused="QLinearLeakyRelu"),
    case("Sigmoid", fused="QLinearSigmoid"),
    case("Softmax", fused="QLinearSoftmax"),
    case("Add", codes=2, fused="QLinearAdd"),
    case("Mul", codes=2, fused="QLinearMul"),
    case("Where", codes=2, fused="QLinearWhere"),
    case("Concat", codes=2, axis=1, fused="QLinearConcat"),
    case("GlobalAveragePool", fused="QLinearGlobalAveragePool"),
    case("AveragePool", kernel_shape=[2, 3], near=True, fused="QLinearAveragePool"),
]
IN_FLOAT = [
    *(case(op, whole(2, 3), near=True) for op in ("ReduceMean", "ReduceSum")),
    *(case(op, whole(2, 3), same=True, near=True) for op in ("ReduceMean", "ReduceSum")),
    *(case(op, whole(1), keepdims=0) for op in ("ReduceMax", "ReduceMin")),
    case("Gather", whole(0, 2), axis=1),
    case("Pad", PADS, same=True),
    case("Pad", PADS, mode="reflect"),
    case("SpaceToDepth", blocksize=2, same=True),
    case("MaxPool", kernel_shape=[2, 2]),
    case("GlobalMaxPool"),
    *(case(op) for op in "Abs Neg Elu HardSigmoid HardSwish Softplus Floor Relu".split()),
    *(case(op, near=True) for op in "Exp Tanh Erf Sin Gelu Mish LogSoftmax".split()),
    *(case(op, positive=True) for op in ("Sqrt", "Reciprocal")),
    case("Log", positive=True, near=True),
    case("PRelu", np.full((4, 1, 1), 0.3, F)),
    case("Clip", F(-1), F(2)),
    *(case(op, codes=2) for op in ("Sub", "Max", "Min")),
    case("Div", codes=2, positive=True),
    case("ConvTranspose", (4, 3, 3, 3), strides=[2, 2], near=True),
    case("ConvTranspose", (4, 3, 3, 3), group=2, pads=[1, 1, 1, 1], near=True),
    case("ConvTranspose", (4, 3, 3), strides=[2], shape=(2, 4, 9), near=True),
    case("InstanceNormalization", ones(4), np.zeros(4, F), near=True),
    case("LayerNormalization", ones(6), np.zeros(6, F), near=True),
    case("BatchNormalization", ones(4), np.zeros(4, F), np.zeros(4, F), ones(4), near=True),
    case("LRN", size=3, near=True),
    case("CumSum", np.array(1, np.int64), near=True),
]
CASES = [*ON_CODES, *IN_FLOAT, *resizes()]


@dataclass
class Built:
    """A model of one operator between integers."""

    proto: onnx.ModelProto
    feeds: dict[str, Array]
    scale: float
    zero: int


class Builder:
    """Lays the parts of a case."""

    def __init__(self, case: Case, kind: str, seed: int) -> None:
        self.case, self.rng = case, np.random.default_rng(seed)
        self.code, self.element = KINDS[kind]
        self.low, self.high = np.iinfo(self.code).min, np.iinfo(self.code).max
        self.held: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []

    def dequantized(self, name: str, data: Array, scale: float, zero: int, *, held: bool) -> str:
        (self.held if held else self.feeds)[name] = data
        self.held |= {f"{name}_s": np.array(scale, F), f"{name}_z": np.array(zero, data.dtype)}
        inputs = [name, f"{name}_s", f"{name}_z"]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_d"]))
        return f"{name}_d"

    def operands(self) -> list[str]:
        case, out = self.case, list[str]()
        if case.op == "Where":
            self.held["chosen"] = self.rng.integers(0, 2, case.shape).astype(np.bool_)
            out.append("chosen")
        for i in range(case.codes):
            scale = 2.0 ** -int(self.rng.integers(3, 6)) * float(self.rng.choice([1.0, 1.07]))
            middle = (self.low + self.high) // 2 + i - 7
            zero = self.low if case.positive else middle
            least = self.low + (1 if case.positive else 0)
            data = self.rng.integers(least, self.high + 1, case.shape).astype(self.code)
            out.append(self.dequantized(f"x{i}", data, scale, zero, held=False))
        for i, other in enumerate(case.others):
            if isinstance(other, tuple):
                data = self.rng.integers(-100, 101, other).astype(np.int8)
                out.append(self.dequantized("w", data, 0.01, 0, held=True))
            elif other is None:
                out.append("")
            else:
                self.held[f"c{i}"] = np.asarray(other)
                out.append(f"c{i}")
        return out

    def model(self, result: str, kind: int) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(n, self.element, a.shape) for n, a in self.feeds.items()
        ]
        held = [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        output = helper.make_tensor_value_info(result, kind, None)
        graph = helper.make_graph(self.nodes, "one", inputs, [output], held)
        sets = [helper.make_opsetid("", 22)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)

    def built(self) -> Built:
        names = self.operands()
        self.nodes.append(helper.make_node(self.case.op, names, ["r"], **self.case.attrs))
        floats = run(self.model("r", TensorProto.FLOAT), self.feeds, optimize=False)["r"]
        if self.case.same:
            scale, zero = float(self.held["x0_s"]), int(self.held["x0_z"])
        else:
            least, most = float(floats.min()), float(floats.max())
            wide = max(most - least, 1e-3) / 255 * float(self.rng.choice([0.8, 1.0, 1.2]))
            scale = float(F(wide))
            zero = int(np.clip(round(self.low - least / scale), self.low, self.high))
        self.held |= {"y_s": np.array(scale, F), "y_z": np.array(zero, self.code)}
        self.nodes.append(helper.make_node("QuantizeLinear", ["r", "y_s", "y_z"], ["y"]))
        return Built(self.model("y", self.element), self.feeds, scale, zero)


def agree(made: Built, found: Array, wanted: Array, floats: Array | None, where: str) -> None:
    """Equal integers; or, where floats are given, one off at ties alone."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    gap = found.astype(np.int64) - wanted
    if floats is None:
        note(found, wanted)
        assert not gap.any(), f"{where}: {np.count_nonzero(gap)} of {gap.size} differ"
        return
    units = floats.astype(np.float64) / made.scale + made.zero
    tie = np.minimum(found, wanted) + 0.5
    far = np.abs(units - tie)[gap != 0]
    assert np.abs(gap).max() <= 1
    assert not far.size or far.max() <= TIE * max(1.0, float(np.abs(units).max())), where


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_between_codes_gives_onnxruntimes_bytes(case: Case, kind: str) -> None:
    for seed in range(2):
        made = Builder(case, kind, seed).built()
        where = f"{case}, {kind}, seed {seed}"
        plain = run(made.proto, made.feeds, optimize=False)["y"]
        judge, shown = optimized(made.proto, made.feeds)
        ops = [n.op_type for n in shown.graph.node]
        graph = read(made.proto)
        assert not [n for n in graph if n.op == "foreign"], where
        exact = pipeline.run(graph, made.feeds, profile=UNOPTIMIZED, values=["r", "y"])
        floats = exact["r"] if case.near else None
        agree(made, exact["y"], plain, floats, where)
        if case.fused:
            assert case.fused in ops, where
            assert "QuantizeLinear" not in ops, where
            agree(made, pipeline.run(grouped(made.proto), made.feeds)["y"], judge["y"], None, where)
        else:
            assert "QuantizeLinear" in ops, where
            agree(
                made, pipeline.run(grouped(made.proto), made.feeds)["y"], judge["y"], floats, where
            )


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form_gives_the_same_bytes_or_the_ledger_says_why(case: Case, form: str) -> None:
    made = Builder(case, "u8", 3).built()
    ledger = Ledger()
    proto = to_model(converted(read(made.proto), form, ledger, standard=False), ledger)
    for optimize in (False, True):
        found, wanted = (run(p, made.feeds, optimize=optimize)["y"] for p in (proto, made.proto))
        gap = np.abs(np.subtract(found, wanted, dtype=np.int64)).max()
        assert gap <= (1 if Change.REGROUPED in ledger.counts() else 0)
