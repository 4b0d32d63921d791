"""How much of what a comparison rounds is hard: ties, ends, odd zero points, scales of any kind.

Derived, while the reference runs, from the reals of each op by itself, in float64: whatever a
profile's method does. A result lies on a tie where its real is half way between two codes, and
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
"""Ops whose results hardly ever lie half way between two codes, or never come to both ends."""
_BOUNDS = frozenset({"relu", "clip"})
FACTORS = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear gemm matmul mul"
    " einsum".split()
)


def lacking(of: Sequence[int], ops: Iterable[str]) -> list[str]:
    """What comparisons lack to bear a claim that rounds; nothing where they have all."""
    rounded, ties, low, high, odd, moved, skew, same = of
    ops = list(ops)
    free, curve = rounded > same, bool(CURVES & set(ops))
    has = {
        "ties": curve or ties >= LEAST * rounded,
        "low": curve or not free or low >= LEAST * (rounded - same) or all(map(never_below, ops)),
        "high": curve or not free or high >= LEAST * (rounded - same),
        "odd zeros": not moved or odd > 0,
        "scales": not free or skew > 0,
    }
    return [name for name, there in has.items() if not there]


@cache
def never_below(op: str) -> bool:
    """Whether an op gives no real below zero, whatever it is given: none leaves the low end."""
    slots = [slot.name for slot in spec(op).operands]
    grids = np.meshgrid(*[np.linspace(-3, 3, 25)] * len(slots))
    try:
        made = compute(op, dict(zip(slots, grids, strict=True)), spec(op).default_attrs or {})
    except _UNKNOWN:
        return False
    return bool(np.min(made) >= 0)


def of_node(node: Node, operands: Mapping[str, Array], profile: str) -> Rich | None:
    """What a node rounds; None for one that rounds nothing, or whose reals are not known here."""
    if not node.results or node.results[0].type.quant is None or node.bodies:
        return None
    if sum(a.size for a in operands.values()) > _MOST:
        return None
    try:
        with np.errstate(all="ignore"):
            return _chain(node, operands, profile)
    except _UNKNOWN:
        return None


def _chain(node: Node, operands: Mapping[str, Array], profile: str) -> Rich | None:
    kinds = tuple(v.type for v in node.results)
    if not node.stages:
        values = dict(node.operands)
        given = resolve_companions(node.op, values, operands, kinds, profile)
        reals = _reals(given)
        counted = _counted(node.op, _made(node.op, reals, node.attrs), given)
        return [*counted[:-1], counted[0]] if counted and _of_own_range(values) else counted
    flow: Array | None = None
    first: Resolved | None = None
    for index, stage in enumerate(node.stages):
        if index and stage.op in _BOUNDS:
            continue  # what is cut off there was rounded, too
        if stage.type is not None and index < len(node.stages) - 1:
            return None
        own = node.stage_operands(index)
        slots = dict(zip(stage.slots, stage.group_slots(index), strict=True))
        given = resolve_companions(
            stage.op, own, {s: operands[slots[s]] for s in own}, kinds, profile
        )
        reals = _reals(given)
        if flow is not None and stage.flow is not None:
            reals[stage.flow] = flow
        flow = _made(stage.op, reals, stage.attrs)
        first = first or given
    assert flow is not None
    assert first is not None
    return _counted(node.stages[0].op, flow, first)


def _of_own_range(operands: Mapping[str, Value]) -> bool:
    """Whether data is quantized by numbers that were chosen from that data."""
    makers = [operands[name].node for name in ("scale", "zero") if name in operands]
    own = [m.op == "choose_qparams" and m.operands["x"] is operands["x"] for m in makers]
    return bool(own) and all(own)


def _made(op: str, reals: Mapping[str, Array], attrs: Mapping[str, Any]) -> Array:
    """The reals that an op gives, the first of them where it gives several."""
    if op in ("quantize", "requantize"):
        return reals["x"]
    return compute_all(op, dict(reals), attrs)[0]


def _reals(given: Resolved) -> dict[str, Array]:
    """What operands mean, in float64; sums' own codes in units of the product."""
    out: dict[str, Array] = {}
    for slot, array in given.arrays.items():
        kind = given.types[slot]
        if kind.quant is not None:
            out[slot] = _meant(array, kind.quant)
        elif slot == "bias" and kind.dtype.is_integer:
            out[slot] = array.astype(np.float64) * _unit(given.types)
        else:
            out[slot] = array.astype(np.float64) if kind.dtype.is_float else array
    return out


def _unit(types: Mapping[str, TensorType]) -> Reals:
    """What a step of a sum of products means."""
    unit = np.ones((), np.float64)
    for slot in ("x", "w"):
        quant = types[slot].quant
        assert quant is not None
        unit = unit * np.asarray(mapping_of(quant).scale, np.float64).reshape(-1)
    return unit


def _meant(codes: Array, quant: QuantType) -> Reals:
    numbers = mapping_of(quant).over(codes.shape)
    if quant.storage.is_float:
        raise ValueError
    steps = codes.astype(np.float64) - np.asarray(numbers.zero, np.float64)
    return np.asarray(steps * np.asarray(numbers.scale, np.float64) + _offset(numbers.plus))


def _offset(plus: Array | None) -> Reals:
    return np.asarray(0.0 if plus is None else plus, np.float64)


def _in_steps(quant: QuantType) -> bool:
    """Whether codes are whole steps of one scale, counted from zero or from a real of their own."""
    return is_affine(quant if quant.plus is None else replace(quant, plus=None))


def _counted(op: str, reals: Array, given: Resolved) -> Rich | None:
    quant = given.results[0].quant
    if quant is None or not _in_steps(quant):
        return None
    maps = {s: k.quant for s, k in given.types.items() if k.quant is not None}
    out = mapping_of(quant)
    numbers = out.over(reals.shape)
    zero = np.asarray(numbers.zero, np.int64)
    steps = reals.astype(np.float64) - _offset(numbers.plus)
    steps /= np.asarray(numbers.scale, np.float64)
    codes = steps + zero
    same = bool(maps) and op not in FACTORS and all(map(quant.has_same_mapping, maps.values()))
    if same and (spec(op).traits.value_preserving or np.array_equal(steps, np.rint(steps))):
        return None
    if op == "mul" and len(maps) == 1 and _renamed(given, quant):
        return None
    low, high = codes < out.low - 0.5, codes > out.high + 0.5
    beyond = low | high | ~np.isfinite(steps)
    cut = np.where(beyond, 0.0, steps)
    tie = ~beyond & (np.abs(cut - np.floor(cut) - 0.5) <= NEAR * np.maximum(1, np.abs(cut)))
    shifted = [q for q in (quant, *maps.values()) if is_affine(q)]
    zeros = [np.asarray(mapping_of(q).zero, np.int64) for q in shifted]
    odd = any((z & 1).any() for z in zeros)
    moved = any(z.any() for z in zeros)
    size = int(reals.size)
    skew = _skew(op, [_mantissas(q) for s, q in maps.items() if s != "bias"], _mantissas(quant))
    sums = [int(np.count_nonzero(x)) for x in (tie, low, high)]
    return [size, *sums, *(size * told for told in (odd, moved, skew, same))]


def _renamed(given: Resolved, quant: QuantType) -> bool:
    """Whether codes are multiplied with a number that the result's scale is multiplied with, too:
    they stay, or are counted from the other end."""
    (of,) = (mapping_of(k.quant) for k in given.types.values() if k.quant is not None)
    (by,) = (given.arrays[s] for s, kind in given.types.items() if kind.quant is None)
    out = mapping_of(quant)
    if not by.size == of.scale.size == out.scale.size == 1:
        return False
    number = float(by.item())
    ratio = abs(number) * float(of.scale.item()) / float(out.scale.item())
    zero = of.zero if number > 0 else of.low + of.high - of.zero
    return abs(ratio - 1) <= NEAR and bool(np.all(out.zero == zero))


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


def add(into: Rich, more: Sequence[int]) -> None:
    """Adds counts to counts."""
    into[:] = [a + b for a, b in zip(into or _NONE, more, strict=True)]
