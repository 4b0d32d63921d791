"""Quantized types that a model has before it is planned, and how new ops use them."""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from dataclasses import replace

import numpy as np

from qir.analysis.quantized_regions import (
    computes_parameters,
    continues_raw_sum,
    dequantized_types,
    fits_scheme,
    is_dequantized,
    quantized_types,
    touches_quantized,
)
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType

_KEEPS_ALL_ELEMENTS = frozenset(
    {"reshape", "flatten", "transpose", "squeeze", "unsqueeze", "depth_to_space", "expand", "tile"}
)
"""Ops that move elements and leave none out."""
_SIGN_OFFSET = 128
"""u8 value minus the i8 value that means the same float."""


def is_settled(node: Node, on_integers: bool) -> bool:
    """Returns whether an op needs no planning, because quantized values already decide it.

    It works on quantized values, or computes or applies their scales and zero points. So is a
    product with quantized weights, whatever its data are.
    """
    if (
        on_integers
        or touches_quantized(node)
        or continues_raw_sum(node)
        or computes_parameters(node)
    ):
        return True
    traits = spec(node.op).traits
    weight, data = node.operands.get(traits.weight or ""), node.operands.get(traits.data)
    if weight is None or not is_dequantized(weight):
        return False
    return weight.node.operands["x"].constant is not None or (
        data is not None and is_dequantized(data)
    )


def values_moved_to_quantize(graph: Graph, moves: Container[str]) -> set[Value]:
    """Returns the values that are quantized directly, or after ops that only move elements."""
    moved: set[Value] = set()
    for node in reversed(graph):
        moved.update(v for v in node.results if quantized_types(v))
        if node.op in moves and not moved.isdisjoint(node.results):
            moved.add(node.operands[spec(node.op).traits.data])
    return moved


def leaves_out_elements(node: Node, quantized_later: Set[Value]) -> bool:
    """Returns whether an op before a quantize drops elements that other ops read.

    The range of the existing quantized type may not cover those elements.
    """
    if node.op in _KEEPS_ALL_ELEMENTS or quantized_later.isdisjoint(node.results):
        return False
    return len(node.results) > 1 or node.operands[spec(node.op).traits.data].only_use is None


def existing_type(value: Value) -> QuantType | None:
    """Returns the quantized type that a value is dequantized from or quantized to, if any.

    Types that are computed at run time are skipped: each reader may have another.
    """
    types = dequantized_types(value) or [m for m in quantized_types(value) if not m.dynamic]
    return next((m for m in types if _is_plain_8_bit(m)), types[0] if types else None)


def accepts(allowed: Sequence[Scheme], quant: QuantType) -> bool:
    """Returns whether a slot accepts an existing type, or its equivalent of the other sign."""
    types = [quant, _with_other_sign(quant)] if _is_plain_8_bit(quant) else []
    return any(m is not None and fits_scheme(m, a) for m in types for a in allowed)


def scheme_of_type(allowed: Sequence[Scheme], quant: QuantType, *, first: bool) -> Scheme:
    """Returns the scheme of an existing type, in the storage that a slot accepts.

    With `first` that is the storage that the slot prefers. u8 and i8 hold the same floats with
    zero points that differ by 128.
    """
    candidates = [a for a in allowed if not first or a.storage == allowed[0].storage]
    fits = any(fits_scheme(quant, a) for a in candidates)
    chosen = quant if fits else _with_other_sign(quant) or quant
    scale, zero = float(np.float32(chosen.scales())), int(np.asarray(chosen.zeros()))
    symmetric = chosen.storage == I8 and zero == 0
    return Scheme(chosen.storage, symmetric, bounds=chosen.bounds, scale=scale, zero=zero)


def _is_plain_8_bit(quant: QuantType) -> bool:
    uniform = quant.kind == "uniform" and quant.granularity is None and not quant.dynamic
    return uniform and quant.storage in (I8, U8) and not quant.has_float_zero and quant.plus is None


def _with_other_sign(quant: QuantType) -> QuantType | None:
    """Returns the same float values by quantized values of the other sign."""
    if not _is_plain_8_bit(quant):
        return None
    step = _SIGN_OFFSET if quant.storage == I8 else -_SIGN_OFFSET
    bounds = (quant.low + step, quant.high + step) if quant.bounds else None
    zero = (int(np.asarray(quant.zeros())) + step,)
    return replace(quant, storage=U8 if step > 0 else I8, zero=zero, bounds=bounds)
