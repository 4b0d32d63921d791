"""Aligns two values of different layout: axes in the order of the source tensor."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

_PERMUTED = re.compile(r"permuted\(([\d, ]+)\)")

ArrayOrType: TypeAlias = "tuple[NDArray[np.generic], QuantType | None]"
"""Elements and, where they are quantized, their map."""


def in_source_axis_order(a: Value, b: Value) -> tuple[TensorType, TensorType]:
    """Returns both types with the axes in the source's order, where the two orders differ."""
    orders = source_axis_orders(a, b)
    if orders is None:
        return a.type, b.type
    return permute(a.type, orders[0]), permute(b.type, orders[1])


def source_axis_orders(a: Value, b: Value) -> tuple[list[int], list[int]] | None:
    """Returns the axis order of the source for both values; None where they have one layout."""
    if a.type.rank != b.type.rank:
        return None
    orders = (_source_axes(a), _source_axes(b)) if a.lineage.tensor == b.lineage.tensor else None
    if (orders is None or orders[0] == orders[1]) and _is_read_transposed(a) != _is_read_transposed(
        b
    ):
        return ([0, 1], [1, 0]) if _is_read_transposed(b) else ([1, 0], [0, 1])
    return None if orders is None or orders[0] == orders[1] else orders


def _source_axes(value: Value) -> list[int]:
    """Returns the source's axis that each axis of a value is."""
    axes = list(range(value.type.rank))
    for step in value.lineage.how:
        if match := _PERMUTED.fullmatch(step):
            # The lineage is text of a file: a permutation that fits no such rank is passed over.
            perm = [int(p) for p in match[1].split(",")]
            if sorted(perm) == list(range(value.type.rank)):
                axes = [axes[p] for p in perm]
    return axes


def _is_read_transposed(value: Value) -> bool:
    """Returns whether a matrix is read with its axes the other way round, through its integers
    too."""
    if value.type.rank != 2 or (value.node.op not in ("constant", "dequantize")):
        return False
    use = value.only_use
    if use is not None and use.node.op == "dequantize" and use.slot == "x":
        use = use.node.result.only_use
    if use is None or use.slot not in ("a", "b"):
        return False
    attrs = use.node.stages[0].attrs if use.node.stages else use.node.attrs
    return attrs.get(f"trans_{use.slot}") is True


def permute(kind: TensorType, axes: list[int]) -> TensorType:
    """Returns a type with its axes moved to where they are in the source."""
    shape = tuple(kind.shape[axes.index(i)] for i in range(kind.rank))
    quant = kind.quant
    if quant is None or quant.granularity is None or quant.axis is None:
        return TensorType(shape, kind.element)
    granularity = Granularity(((axes[quant.axis], 1),))
    return TensorType(shape, replace(quant, granularity=granularity))


def align_to_source(array: Array, quant: QuantType | None, axes: list[int] | None) -> ArrayOrType:
    """Returns elements and their type, with the axes in the source's order where that is given."""
    if axes is None:
        return array.data, quant
    kind = permute(TensorType(array.type.shape, quant or array.type.dtype), axes)
    return np.transpose(array.data, [axes.index(i) for i in range(len(axes))]), kind.quant
