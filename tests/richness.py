"""How much of what a comparison rounds is hard: ties, ends, odd zero points, scales of any kind.

Derived, while the reference runs, from the floats of each op by itself, in float64: whatever a
profile's method does. A result lies on a tie where its real is half way between two integers, and
beyond an end where clipping moves it by more than rounding could.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType
from qir.profiles import RuleSource
from qir.reference.companions import Resolved, resolve_companions
from qir.reference.products import is_affine, mapping_of
from qir.reference.table import compute, compute_all

Array = NDArray[np.generic]
Reals = NDArray[np.float64]
Rich = list[int]
"""Results rounded; of these on a tie, beyond the low end, the high end; with an odd zero point,
with one that is not 0, with scales whose ratio is no power of two, with the map of every operand
or of the data's own range: such a mean or code comes to no end, and is not scaled."""

LEAST = 0.05
NEAR = 2.0**-20
"""How near to half way a real is on a tie, for it is one in a runtime's float32."""
_NONE = (0,) * 8
_UNKNOWN = (QirError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
_MOST = 1 << 19
"""Elements of the largest operands that are looked at: larger ones say no more."""
CURVES = frozenset(
    "sigmoid tanh hard_swish softmax log_softmax gelu elu selu celu silu swish exp log sqrt rsqrt"
    " erf softplus mish hard_sigmoid layer_norm instance_norm group_norm batch_norm lp_normalize"
    " div lstm gru rnn pow sin cos reduce_prod reciprocal abs square".split()
)
"""Ops whose results hardly ever lie half way between two integers, or never come to both ends."""
_BOUNDS = frozenset({"relu", "clip"})
FACTORS = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear gemm matmul mul"
    " einsum".split()
)


def lacking(counted: Sequence[int], ops: Iterable[str]) -> list[str]:
    """Returns what comparisons lack to support a claim that rounds; nothing where they have all."""
    rounded, ties, low, high, odd, shifted, skewed, same = counted
    ops = list(ops)
    scaled, curve = rounded > same, bool(CURVES & set(ops))
    checks = {
        "ties": curve or ties >= LEAST * rounded,
        "low": curve or not scaled or low >= LEAST * (rounded - same) or all(map(never_below, ops)),
        "high": curve or not scaled or high >= LEAST * (rounded - same),
        "odd zeros": not shifted or odd > 0,
        "scales": not scaled or skewed > 0,
    }
    return [name for name, present in checks.items() if not present]


@cache
def never_below(op: str) -> bool:
    """Whether an op gives no real below zero, whatever it is given: none leaves the low end."""
    # 25 values a slot, each with each, show the sign of results well enough for element-wise ops.
    slots = [slot.name for slot in spec(op).operands]
    inputs = np.meshgrid(*[np.linspace(-3, 3, 25)] * len(slots))
    try:
        results = compute(op, dict(zip(slots, inputs, strict=True)), spec(op).default_attrs or {})
    except _UNKNOWN:
        return False
    return bool(np.min(results) >= 0)


def of_node(node: Node, operands: Mapping[str, Array], rules: RuleSource) -> Rich | None:
    """What a node rounds; None for one that rounds nothing, or whose floats are not known here."""
    if not node.results or node.results[0].type.quant is None or node.bodies:
        return None
    if sum(array.size for array in operands.values()) > _MOST:
        return None
    try:
        with np.errstate(all="ignore"):
            return _chain(node, operands, rules)
    except _UNKNOWN:
        return None


def _chain(node: Node, operands: Mapping[str, Array], rules: RuleSource) -> Rich | None:
    kinds = tuple(result.type for result in node.results)
    if not node.stages:
        values = dict(node.operands)
        resolved = resolve_companions(node.op, values, operands, kinds, rules)
        float_operands = _float_operands(resolved)
        counted = _counted(node.op, _made(node.op, float_operands, node.attrs), resolved)
        # A range chosen from the data itself counts as the map of every operand.
        return [*counted[:-1], counted[0]] if counted and _of_own_range(values) else counted
    carried: Array | None = None
    first_resolved: Resolved | None = None
    for index, stage in enumerate(node.stages):
        if index and stage.op in _BOUNDS:
            continue  # what is cut off there was rounded, too
        if stage.type is not None and index < len(node.stages) - 1:
            return None
        stage_values = node.stage_operands(index)
        slots = dict(zip(stage.slots, stage.group_slots(index), strict=True))
        resolved = resolve_companions(
            stage.op,
            stage_values,
            {slot: operands[slots[slot]] for slot in stage_values},
            kinds,
            rules,
        )
        float_operands = _float_operands(resolved)
        if carried is not None and stage.flow is not None:
            float_operands[stage.flow] = carried
        carried = _made(stage.op, float_operands, stage.attrs)
        first_resolved = first_resolved or resolved
    assert carried is not None
    assert first_resolved is not None
    return _counted(node.stages[0].op, carried, first_resolved)


def _of_own_range(operands: Mapping[str, Value]) -> bool:
    """Whether data is quantized by numbers that were chosen from that data."""
    makers = [operands[name].node for name in ("scale", "zero") if name in operands]
    from_own_data = [
        maker.op == "choose_qparams" and maker.operands["x"] is operands["x"] for maker in makers
    ]
    return bool(from_own_data) and all(from_own_data)


def _made(op: str, float_operands: Mapping[str, Array], attrs: Mapping[str, Any]) -> Array:
    """The floats that an op gives, the first of them where it gives several."""
    if op in ("quantize", "requantize"):
        return float_operands["x"]
    return compute_all(op, dict(float_operands), attrs)[0]


def _float_operands(resolved: Resolved) -> dict[str, Array]:
    """What operands mean, in float64; sums' own integers in units of the product."""
    floats: dict[str, Array] = {}
    for slot, array in resolved.arrays.items():
        kind = resolved.types[slot]
        if kind.quant is not None:
            floats[slot] = _meant(array, kind.quant)
        elif slot == "bias" and kind.dtype.is_integer:
            floats[slot] = array.astype(np.float64) * _unit(resolved.types)
        else:
            floats[slot] = array.astype(np.float64) if kind.dtype.is_float else array
    return floats


def _unit(types: Mapping[str, TensorType]) -> Reals:
    """What a step of a sum of products means."""
    unit = np.ones((), np.float64)
    for slot in ("x", "w"):
        quant = types[slot].quant
        assert quant is not None
        unit = unit * np.asarray(mapping_of(quant).scale, np.float64).reshape(-1)
    return unit


def _meant(quantized: Array, quant: QuantType) -> Reals:
    numbers = mapping_of(quant).over(quantized.shape)
    if quant.storage.is_float:
        # Float storage has no steps: the caller takes the error as "not known here".
        raise ValueError
    steps = quantized.astype(np.float64) - np.asarray(numbers.zero, np.float64)
    return np.asarray(steps * np.asarray(numbers.scale, np.float64) + _offset(numbers.plus))


def _offset(plus: Array | None) -> Reals:
    return np.asarray(0.0 if plus is None else plus, np.float64)


def _in_steps(quant: QuantType) -> bool:
    """Whether integers are whole steps of one scale, counted from zero or from a real of their
    own."""
    return is_affine(quant if quant.plus is None else replace(quant, plus=None))


def _counted(op: str, floats: Array, resolved: Resolved) -> Rich | None:
    quant = resolved.results[0].quant
    if quant is None or not _in_steps(quant):
        return None
    operand_maps = {s: k.quant for s, k in resolved.types.items() if k.quant is not None}
    result_map = mapping_of(quant)
    spread = result_map.over(floats.shape)
    zero = np.asarray(spread.zero, np.int64)
    steps = floats.astype(np.float64) - _offset(spread.plus)
    steps /= np.asarray(spread.scale, np.float64)
    integers = steps + zero
    same_map = (
        bool(operand_maps)
        and op not in FACTORS
        and all(map(quant.has_same_mapping, operand_maps.values()))
    )
    if same_map and (spec(op).traits.value_preserving or np.array_equal(steps, np.rint(steps))):
        return None
    if op == "mul" and len(operand_maps) == 1 and _renamed(resolved, quant):
        return None
    low, high = integers < result_map.low - 0.5, integers > result_map.high + 0.5
    beyond = low | high | ~np.isfinite(steps)
    finite_steps = np.where(beyond, 0.0, steps)
    tie = ~beyond & (
        np.abs(finite_steps - np.floor(finite_steps) - 0.5)
        <= NEAR * np.maximum(1, np.abs(finite_steps))
    )
    affine_types = [kind for kind in (quant, *operand_maps.values()) if is_affine(kind)]
    zeros = [np.asarray(mapping_of(kind).zero, np.int64) for kind in affine_types]
    odd = any((zero_point & 1).any() for zero_point in zeros)
    nonzero = any(zero_point.any() for zero_point in zeros)
    size = int(floats.size)
    skew = _skew(
        op, [_mantissas(kind) for s, kind in operand_maps.items() if s != "bias"], _mantissas(quant)
    )
    sums = [int(np.count_nonzero(mask)) for mask in (tie, low, high)]
    return [size, *sums, *(size * flag for flag in (odd, nonzero, skew, same_map))]


def _renamed(resolved: Resolved, quant: QuantType) -> bool:
    """Whether integers are multiplied with a number that the result's scale is multiplied with,
    too: they stay, or are counted from the other end."""
    (operand_map,) = (mapping_of(k.quant) for k in resolved.types.values() if k.quant is not None)
    (factor,) = (resolved.arrays[s] for s, kind in resolved.types.items() if kind.quant is None)
    result_map = mapping_of(quant)
    if not factor.size == operand_map.scale.size == result_map.scale.size == 1:
        return False
    factor_value = float(factor.item())
    ratio = abs(factor_value) * float(operand_map.scale.item()) / float(result_map.scale.item())
    zero = (
        operand_map.zero
        if factor_value > 0
        else operand_map.low + operand_map.high - operand_map.zero
    )
    return abs(ratio - 1) <= NEAR and bool(np.all(result_map.zero == zero))


def _mantissas(quant: QuantType) -> Reals:
    """Scales without their powers of two."""
    return np.asarray(np.frexp(np.asarray(mapping_of(quant).scale, np.float64))[0]).reshape(-1)


def _skew(op: str, operands: Sequence[Reals], result: Reals) -> bool:
    """Whether what an op multiplies with is no power of two."""
    if op in FACTORS:
        ratios = [math.prod(np.max(m) for m in operands) / np.max(result)]
    elif op in CURVES or not operands:
        ratios = [np.max(m) for m in (*operands, result)]
    else:
        ratios = [np.max(m) / np.max(result) for m in operands]
    return any(math.frexp(float(r))[0] != 0.5 for r in ratios)


def add(into: Rich, new_counts: Sequence[int]) -> None:
    """Adds counts to counts."""
    into[:] = [a + b for a, b in zip(into or _NONE, new_counts, strict=True)]
