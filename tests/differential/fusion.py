"""QDQ models with onnxruntime's optimizer on: what it fused, and whether QIR foresaw that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import onnx

from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from tests.installed import OPTIMIZED

from .comparison import Difference, read, reference_differences
from .models import Feeds, Model
from .runtime import cut, exposing, optimized, producer

PROFILE = OPTIMIZED
ONE_WAY = frozenset(
    "Add Sub Mul Div Relu Clip MaxPool Reshape Flatten Transpose Concat QuantizeLinear Where "
    "Gather GatherElements Expand Tile DepthToSpace Resize".split()
)
"""Float operators that round each result once, so that there is one right float32.

Resize is here the one that takes the nearest element.
"""
INTEGER = ("DequantizeLinear", "QGemm", "MatMulIntegerToFloat", "NhwcMaxPool")
"""Those that take integers and are no QLinear operators."""


@dataclass
class Report:
    """What a model showed, its integers made outputs one at a time."""

    differences: list[Difference] = field(default_factory=list)
    regrouped: list[str] = field(default_factory=list)
    """Tensors that one of the two computes on integers and the other in float."""
    fused: Counter[str] = field(default_factory=Counter)
    real: Counter[str] = field(default_factory=Counter)
    open: int = 0
    """Tensors behind a float sum that is fused as soon as its own integers are an output."""

    def merge(self, other: Report) -> None:
        """Adds another's findings."""
        self.differences += other.differences
        self.regrouped += other.regrouped
        self.fused += other.fused
        self.real += other.real
        self.open += other.open


def grouped(proto: onnx.ModelProto, profile: str = PROFILE) -> Graph:
    """Returns the model as QIR foresees it: wrapped by the groups of a profile."""
    graph = read(proto)
    Group(profile=profile).run(graph, Ledger())
    return graph


def examine(model: Model, profile: str = PROFILE) -> Report:
    """Holds QIR's prediction against onnxruntime for each tensor of integers.

    Where onnxruntime computed in float with sums in its own order, its integers are handed on to
    both from there, so that every fused operator is compared on its own.
    """
    report = Report()
    fixed: Feeds = {}
    inputs = {i.name for i in model.proto.graph.input}
    results = [o.name for o in model.proto.graph.output]
    for name in (n for n in model.names if n not in inputs):
        part = cut(model, fixed, [name, *results])
        proto = exposing(part, [name])
        expected, optimized_model = optimized(proto, part.feeds)
        graph = grouped(proto, profile)
        where = f"seed {model.seed}, {name} exposed"
        maker = producer(optimized_model, name)
        assert maker is not None
        is_quantize = maker.op_type == "QuantizeLinear"
        ordered = is_quantize and sums_before(optimized_model, maker, through=False)
        (report.real if is_quantize else report.fused)[_source(model.proto, name)] += 1
        if is_quantize != (graph[name].node.op == "quantize"):
            predicted_node = graph[name].node
            stage_ops = "|>".join(s.op for s in predicted_node.stages) or predicted_node.op
            report.regrouped.append(f"{where}: {maker.op_type} there, {stage_ops} here")
        if ordered:
            fixed[name] = expected[name]
        elif sums_before(optimized_model, maker, through=True):
            report.open += 1
        else:
            expected_integers = {name: expected[name]}
            report.differences += reference_differences(
                where, graph, part.feeds, expected_integers, None
            )
    _real_results(model, cut(model, fixed, results), profile, report)
    return report


def _real_results(model: Model, part: Model, profile: str, report: Report) -> None:
    """Float results that come from integer sums alone have one right value, too."""
    expected, optimized_model = optimized(part.proto, part.feeds)
    graph = grouped(part.proto, profile)
    for name, values in expected.items():
        maker = producer(optimized_model, name)
        if (
            maker is None
            or maker.op_type != "QGemm"
            or sums_before(optimized_model, maker, through=True)
        ):
            continue
        report.fused["Gemm, real"] += 1
        where = f"seed {model.seed}, {name}"
        report.differences += reference_differences(where, graph, part.feeds, {name: values}, None)
        if graph[name].node.op != "gemm" or graph[name].node.operands["a"].type.quant is None:
            report.regrouped.append(f"{where}: QGemm there, {graph[name].node} here")


def _source(proto: onnx.ModelProto, name: str) -> str:
    """The float operators of the model that lead to a tensor of integers."""
    producers = {output: node for node in proto.graph.node for output in node.output}
    ops, node = [], producers.get(producers[name].input[0])
    while node is not None and node.op_type not in ("DequantizeLinear", "QuantizeLinear"):
        ops.append(node.op_type)
        node = producers.get(node.input[0])
    return " ".join(reversed(ops))


def sums_before(proto: onnx.ModelProto, maker: onnx.NodeProto, *, through: bool) -> bool:
    """Whether float sums, or functions, stand between a node's result and the integers before it.

    `through`: or anywhere before it.
    """
    producers = {output: node for node in proto.graph.node for output in node.output}
    stack, visited = [i for i in maker.input if i], set()
    while stack:
        name = stack.pop()
        node = producers.get(name)
        if node is None or name in visited:
            continue
        visited.add(name)
        integer = node.op_type.startswith("QLinear") or node.op_type in INTEGER
        if not integer and node.op_type not in ONE_WAY:
            return True
        if through or node.op_type != "DequantizeLinear":
            stack += [i for i in node.input if i]
    return False


__all__ = ["Report", "examine", "grouped"]
