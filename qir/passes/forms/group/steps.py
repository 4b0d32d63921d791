"""Preparation steps that several backends share; they change no results."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, QuantType
from qir.numerics import affine_of, quantize
from qir.passes.forms.group.flattened_softmax import is_restoring_reshape
from qir.passes.forms.group.pairs import has_one_scale, put_pair
from qir.profiles import query_for_node
from qir.profiles.preparation import PreparationStep
from qir.rewrite.linear_layers import as_linear, knows_linear
from qir.rewrite.preparation import Preparation


def _quantize_constants(graph: Graph, prepared: Preparation) -> int:
    """Quantized values of constants are constants."""
    count = 0
    for node in list(graph):
        if node.op != "quantize" or len(node.operands) > 1 or node.attrs["round"]:
            continue
        constant, quant = node.operands["x"].constant, node.result.type.quant
        if (
            constant is None
            or quant is None
            or not (has_one_scale(quant) or quant.axis is not None)
        ):
            continue
        if quant.dynamic or not quant.storage.is_integer or quant.kind != "uniform":
            continue
        # What `affine_of` takes no numbers of; such quantizes stay and are computed when the model
        # runs.
        if quant.has_float_zero or quant.plus is not None:
            continue
        quantized = quantize(
            constant.data, affine_of(quant), prepared.profile.resolve(query_for_node(node))
        )
        array = Array(quantized, node.result.type, node.name)
        stored = graph.constant(array, name=graph.fresh(node.name), before=node)
        graph.set_origins(stored.node, [*node.operands["x"].node.origins, *node.origins])
        graph.substitute(node, stored)
        count += 1
    return count


def _move_pairs(graph: Graph, prepared: Preparation) -> int:
    """Puts quantize and dequantize on both sides of ops that only move elements."""
    moving, views = prepared.moving, knows_linear(prepared.profile)
    # There the parts of a split are moved as slices are.
    parts = frozenset({"split"}) if views and "slice" in moving else frozenset()
    return _move_up(graph, moving) + _move_down(graph, moving | parts, weights=not views)


def _move_up(graph: Graph, moving: frozenset[str]) -> int:
    """Moves a quantize after ops that only move elements also before them; returns how many."""
    count = 0
    # From the outputs up, so that a quantize can pass several moves in one sweep.
    for node in reversed(list(graph)):
        if node.op not in moving or is_restoring_reshape(node):
            continue
        use, x = node.result.only_use, node.operands["x"]
        if use is None or use.node.op != "quantize" or x.only_use is None:
            continue
        quant = use.node.result.type.quant
        # Before a dequantize there is a quantized value already.
        if x.node.op == "dequantize" or x.type.quant or quant is None or not has_one_scale(quant):
            continue
        graph.set_operand(node, "x", put_pair(graph, x, quant, node))
        count += 1
    return count


def _move_down(graph: Graph, moving: frozenset[str], *, weights: bool) -> int:
    """Moves a dequantize before ops that only move elements also after them; returns how many.

    With `weights` also those of weights, for runtimes without layers that transpose weights.
    """
    count = 0
    for node in graph:
        x = node.operands.get("x")
        if node.op not in moving or x is None or x.node.op != "dequantize":
            continue
        quantized = x.node.operands["x"]
        if not has_one_scale(quantized.type.quant) or (
            quantized.constant is not None and not weights
        ):
            continue
        for result in node.results:
            count += _put_pair(graph, result, quantized.type.quant)
    return count


def _put_pair(graph: Graph, value: Value, quant: QuantType | None) -> bool:
    """Puts a pair after a value that something reads and nothing quantizes."""
    readers = [use.node.op for use in value.uses]
    if quant is None or not readers or "quantize" in readers:
        return False
    moved = put_pair(graph, value, quant)
    graph.replace(value, moved, except_in=moved.node.operands["x"].node)
    return True


def _linear_layers(graph: Graph, prepared: Preparation) -> int:
    """Makes linear layers of products, for runtimes that have no gemm."""
    return as_linear(graph, prepared.profile, prepared.ledger)


STEPS: Mapping[str, PreparationStep] = {
    "quantize_constants": PreparationStep(
        "A quantize of a constant becomes a constant.", _quantize_constants
    ),
    "move_pairs": PreparationStep(
        "Quantize and dequantize are moved over ops whose groups say `propagates = true`; where "
        "linear layers are what matrix products are, over the parts of a split like over slices, "
        "and not over weights.",
        _move_pairs,
    ),
    "linear_layers": PreparationStep(
        "Where the groups know linear layers and no gemm, matrix products with constant weights "
        "become linear layers.",
        _linear_layers,
    ),
}
"""The steps that several backends' profiles name, and profiles that name none."""
