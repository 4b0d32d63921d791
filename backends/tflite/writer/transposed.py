"""Transposed convolutions as TRANSPOSE_CONV has them: padded SAME or VALID, with biases of i32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qir.ir.dims import known_shape
from qir.ir.dtype import I16
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import Array
from qir.numerics.rounding import ROUNDINGS
from qir.passes.forms.group.pairs import put_pair

from .schema import SAME, VALID

OP = "conv_transpose2d"
PARAMETERS = ("w", "bias")
"""The slots of its weights and its bias."""


def padding_mode(node: Node) -> int | None:
    """Returns the mode in which TRANSPOSE_CONV cuts what a layer cuts; None where there is none."""
    totals = _totals(node)
    pad = _ints(node, "pad")
    if totals is None:
        return None
    if not any(pad[:2]) and max(totals) <= 0:
        return VALID
    return SAME if list(pad[:2]) == [max(total, 0) // 2 for total in totals] else None


def _totals(node: Node) -> list[int] | None:
    """Returns how many rows and columns are cut; below zero what is added; None where unknown."""
    x, made = node.operands["x"].type.shape[2:], node.result.type.shape[2:]
    kernel, stride = node.operands["w"].type.shape[2:], _ints(node, "stride")
    totals = []
    for size, result, taps, step in zip(x, made, kernel, stride, strict=True):
        if not (isinstance(size, int) and isinstance(result, int) and isinstance(taps, int)):
            return None
        totals.append((size - 1) * step + taps - result)
    return totals


def _ints(node: Node, name: str) -> Sequence[int]:
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return [int(each) for each in value]  # type: ignore[arg-type]


def cut_by_slices(graph: Graph) -> None:
    """Makes layers that cut otherwise than SAME and VALID whole ones, and slices their results."""
    for node in list(graph):
        if node.op != OP or node.stages or padding_mode(node) is not None or not _totals(node):
            continue
        totals, front = _totals(node), _ints(node, "pad")[:2]
        assert totals is not None
        more = tuple(max(start - total, 0) for start, total in zip(front, totals, strict=True))
        attrs = {**node.attrs, "pad": (0, 0, 0, 0), "output_pad": more}
        whole = graph.add(
            OP, node.operands, attrs, before=node, origins=node.origins, profile=node.profile
        ).result
        quant = node.result.type.quant
        readers = [use.node for use in node.result.uses]
        if quant is None and len(readers) == 1 and readers[0].op == "quantize":
            quant = readers[0].result.type.quant
            assert quant is not None
            whole = put_pair(graph, whole, quant, node)
        sizes = known_shape(node.result.type.shape[2:])
        assert sizes is not None
        cut = {
            "starts": tuple(front),
            "ends": tuple(s + n for s, n in zip(front, sizes, strict=True)),
            "axes": (2, 3),
            "steps": (1, 1),
        }
        made = graph.add("slice", {"x": whole}, cut, before=node, origins=node.origins)
        graph.substitute(node, made.result)


def store_biases(graph: Graph) -> None:
    """Stores float biases of layers on integers in the unit of their sums, as wide as these."""
    for node in list(graph):
        bias = node.operands.get("bias")
        if node.op != OP or node.result.type.quant is None or bias is None or node.stages:
            continue
        x, w = node.operands["x"].type.quant, node.operands["w"].type.quant
        if bias.constant is None or bias.type.dtype.is_integer or x is None or w is None:
            continue
        unit = np.float32(x.scales()) * np.asarray(w.scales(), np.float32)
        sums = ROUNDINGS["away"](np.asarray(bias.constant.data, np.float64) / unit.reshape(-1))
        kind = np.iinfo(np.int64 if x.storage == I16 else np.int32)
        # The largest int64 is no float64: biases in range are far below it.
        data = np.clip(sums, kind.min, min(kind.max, 2.0**62)).astype(kind.dtype)
        stored = Array.of(data, graph.fresh(f"{bias.name}.sums"))
        made = graph.constant(stored, name=stored.name, before=node)
        graph.set_origins(made.node, bias.node.origins)
        graph.set_operand(node, "bias", made)
