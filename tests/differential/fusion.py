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
"""Those that take codes and are no QLinear operators."""


@dataclass
class Report:
    """What a model showed, its codes made outputs one at a time."""

    differences: list[Difference] = field(default_factory=list)
    regrouped: list[str] = field(default_factory=list)
    """Tensors that one of the two computes on codes and the other in float."""
    fused: Counter[str] = field(default_factory=Counter)
    real: Counter[str] = field(default_factory=Counter)
    open: int = 0
    """Tensors behind a float sum that is fused as soon as its own codes are an output."""

    def merge(self, other: Report) -> None:
        """Adds another's findings."""
        self.differences += other.differences
        self.regrouped += other.regrouped
        self.fused += other.fused
        self.real += other.real
        self.open += other.open


def grouped(proto: onnx.ModelProto, profile: str = PROFILE) -> Graph:
    """The model as QIR foresees it: wrapped by the groups of a profile."""
    graph = read(proto)
    Group(profile=profile).run(graph, Ledger())
    return graph


def examine(model: Model, profile: str = PROFILE) -> Report:
    """Holds QIR's prediction against onnxruntime for each tensor of codes.

    Where onnxruntime computed in float with sums in its own order, its codes are handed on to
    both from there, so that every fused operator is compared on its own.
    """
    report = Report()
    given: Feeds = {}
    inputs = {i.name for i in model.proto.graph.input}
    results = [o.name for o in model.proto.graph.output]
    for name in (n for n in model.names if n not in inputs):
        part = cut(model, given, [name, *results])
        proto = exposing(part, [name])
        judge, shown = optimized(proto, part.feeds)
        graph = grouped(proto, profile)
        where = f"seed {model.seed}, {name} exposed"
        maker = producer(shown, name)
        assert maker is not None
        real = maker.op_type == "QuantizeLinear"
        ordered = real and sums_before(shown, maker, through=False)
        (report.real if real else report.fused)[_source(model.proto, name)] += 1
        if real != (graph[name].node.op == "quantize"):
            mine = graph[name].node
            made = "|>".join(s.op for s in mine.stages) or mine.op
            report.regrouped.append(f"{where}: {maker.op_type} there, {made} here")
        if ordered:
            given[name] = judge[name]
        elif sums_before(shown, maker, through=True):
            report.open += 1
        else:
            codes = {name: judge[name]}
            report.differences += reference_differences(where, graph, part.feeds, codes, None)
    _real_results(model, cut(model, given, results), profile, report)
    return report


def _real_results(model: Model, part: Model, profile: str, report: Report) -> None:
    """Float results that come from integer sums alone have one right value, too."""
    judge, shown = optimized(part.proto, part.feeds)
    graph = grouped(part.proto, profile)
    for name, real in judge.items():
        maker = producer(shown, name)
        if maker is None or maker.op_type != "QGemm" or sums_before(shown, maker, through=True):
            continue
        report.fused["Gemm, real"] += 1
        where = f"seed {model.seed}, {name}"
        report.differences += reference_differences(where, graph, part.feeds, {name: real}, None)
        if graph[name].node.op != "gemm" or graph[name].node.operands["a"].type.quant is None:
            report.regrouped.append(f"{where}: QGemm there, {graph[name].node} here")


def _source(proto: onnx.ModelProto, name: str) -> str:
    """The float operators of the model that lead to a tensor of codes."""
    made = {out: node for node in proto.graph.node for out in node.output}
    ops, node = [], made.get(made[name].input[0])
    while node is not None and node.op_type not in ("DequantizeLinear", "QuantizeLinear"):
        ops.append(node.op_type)
        node = made.get(node.input[0])
    return " ".join(reversed(ops))


def sums_before(proto: onnx.ModelProto, maker: onnx.NodeProto, *, through: bool) -> bool:
    """Whether float sums, or functions, stand between a node's result and the codes before it.

    `through`: or anywhere before it.
    """
    made = {out: node for node in proto.graph.node for out in node.output}
    stack, seen = [i for i in maker.input if i], set()
    while stack:
        name = stack.pop()
        node = made.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        integer = node.op_type.startswith("QLinear") or node.op_type in INTEGER
        if not integer and node.op_type not in ONE_WAY:
            return True
        if through or node.op_type != "DequantizeLinear":
            stack += [i for i in node.input if i]
    return False


__all__ = ["Report", "examine", "grouped"]
