"""Takes the ranges of a quantized model, so that it can be quantized again for another target.

A model that was trained with simulated quantization, or quantized for a runtime whose types another
one lacks, becomes the float model that it simulates. The ranges of its types stand for those that
calibration would have found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from qir.analysis.signs import never_negative
from qir.calibration import Key, Statistics
from qir.calibration.runner import GraphProgram
from qir.errors import UsageError
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import RESULT
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.float_io import FloatIo
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.layout import Layout
from qir.quantizing import Prepared, fold, prepare
from qir.recipe import Recipe
from qir.reference.constants import compute_constants
from qir.reference.interpreter import profile_name_of
from qir.rewrite import run_passes

Range = tuple[float, float]
_STEP = "ranges"
_CLAMPS = ("relu", "clip")
"""Ops whose results lie in the range of their operand, or nearer to zero."""
_REMEDY = "quantize the float model, with samples"


@dataclass(frozen=True)
class Reopened:
    """A float model, and the ranges of the quantized one that it was."""

    graph: Graph
    statistics: Statistics
    rules: tuple[str, ...]
    """The user's rules, and those that keep ops float for whose values there is no range."""


def reopen(graph: Graph, recipe: Recipe, ledger: Ledger) -> Reopened:
    """Returns the float model of a quantized one with its ranges, for a recipe.

    Raises UsageError where quantized values are more than floats that were rounded.
    """
    out, ranges = _reopened_graph(graph)
    folded = fold(out)
    known = _spread_ranges(folded, ranges)
    statistics = Statistics(GraphProgram(folded).digest)
    with statistics.batch("ranges", 0) as batch:
        for tensor, (low, high) in known.items():
            batch.update(tensor, np.asarray([low, high], np.float32))
    message = f"taken from the quantized types of the model: {len(known)} tensors have one"
    ledger.add(Change.QUANTIZED, _STEP, graph.name, message)
    prepared = prepare(out, statistics, replace(recipe, corrections="none"), Ledger())
    rules = _with_float_rules(prepared, recipe.rules, ledger)
    return Reopened(out, statistics, rules)


# -- quantized values become floats ---------------------------------------------------------------


def _reopened_graph(graph: Graph) -> tuple[Graph, dict[str, Range]]:
    """Returns a float copy, and the ranges of tensors that were quantized."""
    steps = (FloatIo(), OpenGroups("* |> *", chains=True), ExpandQdq())
    out = run_passes(graph, steps, Ledger())
    ranges: dict[str, Range] = {}
    for node in list(out):
        if node.op == "dequantize":
            _reopen_dequantize(out, node, ranges)
    # Files may hold images with their channels last; targets have kernels for channels first.
    out = run_passes(out, (Prune(), Layout(to="nchw")), Ledger())
    left = next((v for v in out.values.values() if v.type.quant), None)
    if left is not None:
        raise UsageError(f"{left.name} is quantized where {_readers(left)} it: {_REMEDY}")
    out.profile = "native"
    return out, ranges


def _reopen_dequantize(graph: Graph, node: Node, ranges: dict[str, Range]) -> None:
    """Replaces a dequantize by what was quantized, or by the floats of constant integers."""
    coded = node.operands["x"]
    producer, quant = coded.node, coded.type.quant
    if producer.op not in ("constant", "quantize") or quant is None:
        raise UsageError(f"{coded.name} is made quantized by {producer.op}: {_REMEDY}")
    x = coded if producer.op == "constant" else producer.operands["x"]
    if x.constant is not None and not quant.dynamic:
        data = x.constant.data if x is coded else _computed(graph, producer, x.constant.data)
        floats = graph.constant(_computed(graph, node, data), before=node)
        graph.set_origins(floats.node, x.node.origins)
        graph.substitute(node, floats)
        return
    if not quant.dynamic and (type_range := _range(quant)) is not None:
        if type_range[0] == 0 and not _never_negative(x):  # the type was the relu
            x = graph.add("relu", {"x": x}, before=node, origins=producer.origins).result
        tensor = x.lineage.tensor
        low, high = ranges.get(tensor, type_range)
        ranges[tensor] = min(low, type_range[0]), max(high, type_range[1])
    graph.replace(node.result, x)


def _never_negative(value: Value) -> bool:
    """Returns whether no element is negative; of an input its type alone says so."""
    node, x = value.node, value.node.operands.get("x")
    if node.op == "input" or never_negative(value):
        return True
    traits = spec(node.op).traits
    follows = traits.averages or traits.value_preserving
    return x is not None and not node.stages and follows and _never_negative(x)


def _computed(graph: Graph, node: Node, x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns what a quantize or dequantize makes of a constant."""
    results = compute_constants(node, {"x": x}, profile_name_of(graph, node))
    if len(results) != 1:
        raise UsageError(f"{node.result.name}: its integers cannot be computed: {_REMEDY}")
    return np.asarray(results[0])


def _range(quant: QuantType) -> Range | None:
    """Returns the lowest and the highest number of a type; of one about zero it is symmetric."""
    if quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None:
        return None
    scales, zeros = np.asarray(quant.scales(), np.float64), np.asarray(quant.zeros(), np.int64)
    low, high = (quant.low - zeros) * scales, (quant.high - zeros) * scales
    low = np.where(low == -high - scales, -high, low)
    return float(np.min(low)), float(np.max(high))


def _readers(value: Value) -> str:
    readers = [use.node.op for use in value.uses]
    return f"{readers[0]} reads" if readers else "nothing reads"


# -- ranges of the tensors beside them ------------------------------------------------------------


def _spread_ranges(graph: Graph, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Returns the ranges by tensor, with those that follow for ops that only move or limit."""
    known = dict(ranges)
    for node in graph:
        range_found = _result_range(node, known)
        for value in node.results if range_found is not None else ():
            assert range_found is not None
            known.setdefault(value.lineage.tensor, range_found)
    for node in reversed(list(graph)):
        x = node.operands.get("x")
        if x is not None and x.constant is None and _rearranges(node):
            range_found = known.get(node.result.lineage.tensor)
            if range_found is not None:
                known.setdefault(x.lineage.tensor, range_found)
    return known


def _result_range(node: Node, known: Mapping[str, Range]) -> Range | None:
    """Returns the range that follows from those of the operands."""
    traits = spec(node.op).traits if node.op != "fused" else None
    if traits is None or not node.results:
        return None
    slots = [v for s, v in node.operands.items() if s.partition(".")[0] in traits.same_params]
    if node.op in _CLAMPS or node.op == "avg_pool2d":
        slots = [node.operands["x"]]
    ranges = [known.get(value.lineage.tensor) for value in slots if value.constant is None]
    if (
        not ranges
        or any(range_found is None for range_found in ranges)
        or len(ranges) != len(slots)
    ):
        return None
    low = min(range_found[0] for range_found in ranges if range_found)
    high = max(range_found[1] for range_found in ranges if range_found)
    least = 0.0 if node.op == "relu" else node.attrs.get("min") if node.op == "clip" else None
    most = node.attrs.get("max") if node.op == "clip" else None
    least = least if isinstance(least, float) else -np.inf
    most = most if isinstance(most, float) else np.inf
    return min(max(low, least), most), max(min(high, most), least)


def _rearranges(node: Node) -> bool:
    """Whether the result has the elements of the operand, each once."""
    if node.op == "fused" or not spec(node.op).traits.value_preserving or len(node.results) != 1:
        return False
    if not set(node.operands) <= {"x", "shape"}:
        return False
    return _count(node.operands["x"].type.shape) == _count(node.result.type.shape)


def _count(shape: Iterable[Dim]) -> tuple[int, list[str]]:
    sizes = list(shape)
    names = sorted(str(size) for size in sizes if not isinstance(size, int))
    return prod(size for size in sizes if isinstance(size, int)), names


# -- ops for which there are none -----------------------------------------------------------------


def _with_float_rules(
    prepared: Prepared, rules: tuple[str, ...], ledger: Ledger
) -> tuple[str, ...]:
    """Returns the rules, and one for each op that needs a range which nothing states."""
    while True:
        planned = prepared.graph.copy()
        prepared.planned(rules).run(planned, Ledger())
        unranged = {
            node.name: value for node in planned if (value := _value_without_range(node, prepared))
        }
        if not unranged:
            return rules
        for name, value in unranged.items():
            message = f"stays float: no range of {value.name} is stated"
            ledger.add(Change.EXACT, _STEP, name, message)
        rules = (*rules, *(f"name={_literal(name)}: float" for name in unranged))


def _value_without_range(node: Node, prepared: Prepared) -> Value | None:
    """Returns a tensor that a planned op stores, and for which there is no range."""
    traits = spec(node.op).traits if node.op != "fused" else None
    for slot, scheme in node.schemes.items():
        values = node.results if slot == RESULT else (node.operands[slot],)
        if traits is not None and slot == traits.bias:
            continue
        for value in values:
            stated = Key(value.lineage.tensor, None) in prepared.statistics
            if scheme.scale is None and value.constant is None and not stated:
                return value
    return None


def _literal(name: str) -> str:
    """Returns a pattern that matches a name."""
    return "".join("?" if c.isspace() or c in "[]*" else c for c in name)
