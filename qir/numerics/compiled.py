"""What the definition says, by compiled loops, where arrays are large and fields are common.

Each function gives None where it does not have what is asked; the definition does then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _codes
from qir.numerics import definition
from qir.numerics.affine import Affine
from qir.numerics.consistency import clashes
from qir.numerics.definition import F32, F64
from qir.numerics.fields import Rule
from qir.numerics.layout import RowLayout, along, layout
from qir.numerics.maps import AnyMap, Map
from qir.numerics.rounding import round_to_float_type

Integers = NDArray[np.integer]
Floats = NDArray[np.floating]

MIN_COMPILED_SIZE = 2048  # elements; with fewer of them NumPy is as quick
_MAX_ZERO_POINT = 1 << 16  # zero points of quantized values up to 16 bits


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> Integers | None:
    """Quantized values of floats, for integers up to 32 bits."""
    q = rule.quantize
    # What the loops do not have is left to the definition: rare fields, short arrays, clashing
    # rules.
    if x.size < MIN_COMPILED_SIZE or q.by not in ("divide", "reciprocal") or q.compute == "f16":
        return None
    if (
        q.zero in ("pair", "pair_once", "fused")
        or q.round == "half_added"
        or q.clip == "range_first"
        or next(clashes(rule), None)
    ):
        return None
    if isinstance(to, Map) and to.table is not None:
        return _quantize_to_table(x, to, to.table, rule)
    if q.sum == "real" or q.far != "end":
        return None
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    float_type = F64 if q.compute == "f64" else F32
    zero = np.zeros_like(to.zero) if q.zero == "none" else to.zero
    adds_before = q.zero == "before" or zero.dtype.kind == "f"
    clips_first = q.clip == "reals_first" and not adds_before
    if not _fits_loops(to, low, high, zero, float_type if clips_first else None):
        return None
    rows = layout(x.shape, to)
    has_nan_rule = q.nan != "unspecified"
    nan = (
        definition.nan_results(zero, low, high, to.carrier, rule) if has_nan_rule else np.zeros(())
    )
    quantized = np.empty(x.shape, to.carrier)
    with np.errstate(all="ignore"):
        plus = to.plus if isinstance(to, Map) else None
        met_nan = _codes.encode(
            _as_bytes(np.ascontiguousarray(x, float_type)),
            _as_bytes(quantized),
            rows.rows,
            wide=float_type == F64,
            itemsize=quantized.itemsize,
            round=_ROUND_ALIASES.get(q.round, q.round),
            low=low,
            high=high,
            factor=_as_bytes(rows.listed(definition.scale_factor(to.scale, rule))),
            after=_int32_rows(rows, np.zeros(()) if adds_before else zero),
            nan=_int32_rows(rows, nan),
            minus=None if plus is None else _float_rows(rows, plus, float_type),
            before=_float_rows(rows, zero, float_type) if adds_before else None,
            divide=q.by == "divide",
        )
    if met_nan and not has_nan_rule:
        raise definition.nan_unspecified_error(rule)
    return quantized


def _quantize_to_table(
    x: NDArray[np.generic], to: Map, table: Floats, rule: Rule
) -> Integers | None:
    """Quantized values of the nearest entries of a table that is not long."""
    q = rule.quantize
    midpoints, first_index = definition.table_midpoints(table)
    if table.size > _MAX_TABLE_ENTRIES or not _fits_loops(to, to.low, to.high, to.zero, None):
        return None
    if q.nan in ("high", "zero_code"):
        return None
    # Entries so near that their midpoints are equal cannot be told apart by comparisons.
    if not (midpoints[1:] > midpoints[:-1]).all():
        return None
    float_type = F64 if q.compute == "f64" else F32
    steps = midpoints.astype(float_type)
    is_below = (steps < midpoints) | ((steps == midpoints) & (first_index[:-1] < first_index[1:]))
    # float32 steps that compare as the float64 midpoints do: rounded up where rounding went below.
    steps = np.where(is_below, np.nextafter(steps, float_type.type(np.inf)), steps)
    entries = (first_index + to.low).astype(np.int32)
    rows = layout(x.shape, to)
    # A NaN becomes an end, or the entry that a zero would have.
    nan = np.asarray(to.low if q.nan == "low" else entries[(steps <= 0).sum()])
    quantized = np.empty(x.shape, to.carrier)
    with np.errstate(all="ignore"):
        met_nan = _codes.encode(
            _as_bytes(np.ascontiguousarray(x, float_type)),
            _as_bytes(quantized),
            rows.rows,
            wide=float_type == F64,
            itemsize=quantized.itemsize,
            round="even",
            low=to.low,
            high=to.high,
            factor=_as_bytes(rows.listed(definition.scale_factor(to.scale, rule))),
            after=_int32_rows(rows, np.zeros(())),
            nan=_int32_rows(rows, nan),
            minus=None if to.plus is None else _float_rows(rows, to.plus, float_type),
            steps=_as_bytes(steps),
            table=entries,
            divide=q.by == "divide",
        )
    if met_nan and q.nan == "unspecified":
        raise definition.nan_unspecified_error(rule)
    return quantized


_MAX_TABLE_ENTRIES = 256  # of a table each of which is compared with
_ROUND_ALIASES = {"down": "zero"}


def _fits_loops(
    mapping: AnyMap,
    low: int,
    high: int,
    zero: NDArray[np.generic],
    clip_type: np.dtype[np.floating] | None,
) -> bool:
    """Returns whether the loops hold such integers; `clip_type` is the type of floats that are
    clipped first."""
    if not mapping.storage.is_integer or mapping.carrier.itemsize > 4 or high >= 1 << 31:
        return False
    limit = 1 << 31 if mapping.carrier.itemsize == 4 else _MAX_ZERO_POINT
    if zero.dtype.kind != "f" and zero.size and not -limit <= zero.min() <= zero.max() < limit:
        return False
    if clip_type is None or mapping.carrier.itemsize < 4:
        return True
    # Bounds of 32 bits may be rounded inwards, which would be seen.
    return not zero.any() and bool(clip_type.type(low) <= low and clip_type.type(high) >= high)


def dequantize(integers: NDArray[np.generic], of: AnyMap, rule: Rule) -> Floats | None:
    """Float values of integers: whole ones up to 32 bits, and all that are eight bits or fewer."""
    d = rule.dequantize
    float_type = F64 if d.compute == "f64" else F32
    if d.by == "q/gain" or rule.params.round != "none":
        return None
    if d.by == "q*s+plus" and of.zero.any():
        return None
    # A table is read by unsigned bytes, so it serves float storage of 8 bits too.
    table = _byte_table(integers, of, float_type)
    has_float_zero = of.zero.dtype.kind == "f"
    if integers.size < MIN_COMPILED_SIZE or integers.dtype != of.carrier or of.carrier.itemsize > 4:
        return None
    if table is None and (
        not of.storage.is_integer or (isinstance(of, Map) and of.table is not None)
    ):
        return None
    if of.carrier.itemsize == 4 and of.zero.any() and not (has_float_zero or d.by == "q*s-z*s"):
        return None  # the difference has more than 32 bits
    rows = layout(integers.shape, of)
    plus = of.plus if isinstance(of, Map) else None
    y = np.empty(integers.shape, float_type)
    separate_products = d.by == "q*s-z*s"
    with np.errstate(all="ignore"):
        scale = of.scale.astype(float_type)
        _codes.decode(
            _as_bytes(np.ascontiguousarray(integers)),
            _as_bytes(y),
            rows.rows,
            wide=float_type == F64,
            carrier="u1" if table is not None else f"{integers.dtype.kind}{integers.itemsize}",
            scale=_as_bytes(rows.listed(scale)),
            zero=None
            if separate_products or not of.zero.any()
            else _float_rows(rows, of.zero, float_type),
            minus=_float_rows(rows, of.zero.astype(float_type) * scale, float_type)
            if separate_products
            else None,
            plus=None if plus is None else _float_rows(rows, plus, float_type),
            table=None if table is None else _as_bytes(table),
        )
    return round_to_float_type(y, definition.express_dtype(of))


def _byte_table(
    quantized: NDArray[np.generic], mapping: AnyMap, float_type: np.dtype[np.floating]
) -> Floats | None:
    """Returns what each byte stands for, where integers are floats or name the entries of a
    table."""
    if mapping.carrier.itemsize > 1:
        return None
    if mapping.storage.is_float:
        with np.errstate(all="ignore"):
            return np.arange(256).astype(np.uint8).view(mapping.carrier).astype(float_type)
    if not isinstance(mapping, Map) or mapping.table is None or not quantized.size:
        return None
    if not mapping.low <= quantized.min() <= quantized.max() < mapping.low + mapping.table.size:
        return None  # the definition says which code has no entry
    out = np.zeros(256, float_type)
    # The byte's bits as an unsigned index: signed quantized values wrap to the upper half.
    out[(mapping.low + np.arange(mapping.table.size)) % 256] = mapping.table.astype(float_type)
    return out


def requantize(
    acc: NDArray[np.generic], factor: Floats, y: Affine, rule: Rule, axis: int
) -> Integers | None:
    """Quantized values of sums, by factors that are floats or are shifted."""
    r = rule.requant
    if r.multiplier not in ("f32", "f64", "q31") or next(clashes(rule), None):
        return None
    # The fixed-point loop adds the zero point last and rounds halves up, or twice as gemmlowp does.
    if r.multiplier == "q31" and (r.zero == "before" or r.round in ("even", "away", "double_up")):
        return None
    if r.clip == "codes_32":
        return None
    if acc.size < MIN_COMPILED_SIZE or acc.dtype != np.int32 or factor.dtype not in (F32, F64):
        return None
    if y.axis is not None and (y.axis % acc.ndim != axis % acc.ndim or not factor.ndim):
        return None
    float_type = factor.dtype
    after = y.zero if r.zero == "after" else np.zeros_like(y.zero)
    if not _fits_loops(y, y.low, y.high, after, float_type if r.clip == "reals" else None):
        return None
    rows = along(acc.shape, axis if factor.ndim else None)
    if r.multiplier == "q31":
        return _requantize_fixed_point(acc, factor, y, after, rows, r.round == "double")
    quantized = np.empty(acc.shape, y.carrier)
    _codes.encode(
        _as_bytes(np.ascontiguousarray(acc)),
        _as_bytes(quantized),
        rows.rows,
        wide=float_type == F64,
        itemsize=quantized.itemsize,
        round=r.round,
        low=y.low,
        high=y.high,
        factor=_as_bytes(rows.listed(factor)),
        after=_int32_rows(rows, after),
        nan=_int32_rows(rows, np.asarray(y.low)),
        before=_float_rows(rows, y.zero, float_type) if r.zero == "before" else None,
        sums=True,
    )
    return quantized


def _requantize_fixed_point(
    acc: NDArray[np.generic],
    factor: Floats,
    y: Affine,
    zero: NDArray[np.generic],
    rows: RowLayout,
    rounds_twice: bool,
) -> Integers | None:
    """Quantized values of sums by 31-bit multipliers and shifts that are not longer."""
    if not (np.isfinite(factor) & (factor > 2.0**-29) & (factor < 2.0**29)).all():
        return None
    q, exponent = definition.fixed_point_multiplier(factor)
    quantized = np.empty(acc.shape, y.carrier)
    _codes.fixed(
        np.ascontiguousarray(acc).reshape(-1),
        _as_bytes(quantized),
        rows.rows,
        multiplier=_int32_rows(rows, q),
        left=_int32_rows(rows, np.maximum(exponent, 0)),
        right=_int32_rows(rows, np.maximum(-exponent, 0)),
        zero=_int32_rows(rows, zero),
        itemsize=quantized.itemsize,
        low=y.low,
        high=y.high,
        twice=rounds_twice,
    )
    return quantized


def lookup(integers: NDArray[np.generic], table: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the table's entry for each quantized value of one byte or two, taken as unsigned."""
    out = np.empty(integers.shape, table.dtype)
    _codes.lookup(
        _as_bytes(np.ascontiguousarray(integers)),
        _as_bytes(table),
        _as_bytes(out),
        itemsize=integers.itemsize,
        entry=table.itemsize,
    )
    return out


def _as_bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns the bytes of an array without gaps."""
    return array.reshape(-1).view(np.uint8)


def _float_rows(
    rows: RowLayout, values: NDArray[np.generic], kind: np.dtype[np.floating]
) -> NDArray[np.uint8]:
    return _as_bytes(rows.listed(values.astype(kind)))


def _int32_rows(rows: RowLayout, values: NDArray[np.generic]) -> NDArray[np.int32]:
    return rows.listed(values.astype(np.int32))  # type: ignore[return-value]
