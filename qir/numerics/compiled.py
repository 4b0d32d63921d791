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
from qir.numerics.rounding import narrowed

Codes = NDArray[np.integer]
Reals = NDArray[np.floating]

LEAST = 2048  # elements; with fewer of them NumPy is as quick
_REACH = 1 << 16  # zero points of quantized values up to 16 bits


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> Codes | None:
    """Quantized values of floats, for integers up to 32 bits."""
    q = rule.quantize
    if x.size < LEAST or q.by not in ("divide", "reciprocal") or q.compute == "f16":
        return None
    if (
        q.zero in ("pair", "pair_once", "fused")
        or q.round == "half_added"
        or q.clip == "range_first"
        or next(clashes(rule), None)
    ):
        return None
    if isinstance(to, Map) and to.table is not None:
        return _nearest(x, to, to.table, rule)
    if q.sum == "real" or q.far != "end":
        return None
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    kind = F64 if q.compute == "f64" else F32
    zero = np.zeros_like(to.zero) if q.zero == "none" else to.zero
    inside = q.zero == "before" or zero.dtype.kind == "f"
    clipped = q.clip == "reals_first" and not inside
    if not _holds(to, low, high, zero, kind if clipped else None):
        return None
    rows = layout(x.shape, to)
    told = q.nan != "unspecified"
    nan = definition.nan_codes(zero, low, high, to.carrier, rule) if told else np.zeros(())
    codes = np.empty(x.shape, to.carrier)
    with np.errstate(all="ignore"):
        plus = to.plus if isinstance(to, Map) else None
        found = _codes.encode(
            _bytes(np.ascontiguousarray(x, kind)),
            _bytes(codes),
            rows.rows,
            wide=kind == F64,
            itemsize=codes.itemsize,
            round=_ROUNDS.get(q.round, q.round),
            low=low,
            high=high,
            factor=_bytes(rows.listed(definition.factor(to.scale, rule))),
            after=_whole(rows, np.zeros(()) if inside else zero),
            nan=_whole(rows, nan),
            minus=None if plus is None else _reals(rows, plus, kind),
            before=_reals(rows, zero, kind) if inside else None,
            divide=q.by == "divide",
        )
    if found and not told:
        raise definition.no_code(rule)
    return codes


def _nearest(x: NDArray[np.generic], to: Map, table: Reals, rule: Rule) -> Codes | None:
    """Quantized values of the nearest entries of a table that is not long."""
    q = rule.quantize
    middles, first = definition.neighbours(table)
    if table.size > _ENTRIES or not _holds(to, to.low, to.high, to.zero, None):
        return None
    if q.nan in ("high", "zero_code"):
        return None
    if not (middles[1:] > middles[:-1]).all():
        return None
    kind = F64 if q.compute == "f64" else F32
    steps = middles.astype(kind)
    below = (steps < middles) | ((steps == middles) & (first[:-1] < first[1:]))
    steps = np.where(below, np.nextafter(steps, kind.type(np.inf)), steps)
    entries = (first + to.low).astype(np.int32)
    rows = layout(x.shape, to)
    nan = np.asarray(to.low if q.nan == "low" else entries[(steps <= 0).sum()])
    codes = np.empty(x.shape, to.carrier)
    with np.errstate(all="ignore"):
        found = _codes.encode(
            _bytes(np.ascontiguousarray(x, kind)),
            _bytes(codes),
            rows.rows,
            wide=kind == F64,
            itemsize=codes.itemsize,
            round="even",
            low=to.low,
            high=to.high,
            factor=_bytes(rows.listed(definition.factor(to.scale, rule))),
            after=_whole(rows, np.zeros(())),
            nan=_whole(rows, nan),
            minus=None if to.plus is None else _reals(rows, to.plus, kind),
            steps=_bytes(steps),
            table=entries,
            divide=q.by == "divide",
        )
    if found and q.nan == "unspecified":
        raise definition.no_code(rule)
    return codes


_ENTRIES = 256  # of a table each of which is compared with
_ROUNDS = {"down": "zero"}


def _holds(
    of: AnyMap,
    low: int,
    high: int,
    zero: NDArray[np.generic],
    clipped: np.dtype[np.floating] | None,
) -> bool:
    """Returns whether the loops hold such integers; `clipped` is the type of floats that are
    clipped first."""
    if not of.storage.is_integer or of.carrier.itemsize > 4 or high >= 1 << 31:
        return False
    reach = 1 << 31 if of.carrier.itemsize == 4 else _REACH
    if zero.dtype.kind != "f" and zero.size and not -reach <= zero.min() <= zero.max() < reach:
        return False
    if clipped is None or of.carrier.itemsize < 4:
        return True
    # Bounds of 32 bits may be rounded inwards, which would be seen.
    return not zero.any() and bool(clipped.type(low) <= low and clipped.type(high) >= high)


def dequantize(codes: NDArray[np.generic], of: AnyMap, rule: Rule) -> Reals | None:
    """Float values of integers: whole ones up to 32 bits, and all that are eight bits or fewer."""
    d = rule.dequantize
    kind = F64 if d.compute == "f64" else F32
    if d.by == "q/gain" or rule.params.round != "none":
        return None
    if d.by == "q*s+plus" and of.zero.any():
        return None
    table = _table(codes, of, kind)
    real = of.zero.dtype.kind == "f"
    if codes.size < LEAST or codes.dtype != of.carrier or of.carrier.itemsize > 4:
        return None
    if table is None and (
        not of.storage.is_integer or (isinstance(of, Map) and of.table is not None)
    ):
        return None
    if of.carrier.itemsize == 4 and of.zero.any() and not (real or d.by == "q*s-z*s"):
        return None  # the difference has more than 32 bits
    rows = layout(codes.shape, of)
    plus = of.plus if isinstance(of, Map) else None
    y = np.empty(codes.shape, kind)
    two = d.by == "q*s-z*s"
    with np.errstate(all="ignore"):
        scale = of.scale.astype(kind)
        _codes.decode(
            _bytes(np.ascontiguousarray(codes)),
            _bytes(y),
            rows.rows,
            wide=kind == F64,
            carrier="u1" if table is not None else f"{codes.dtype.kind}{codes.itemsize}",
            scale=_bytes(rows.listed(scale)),
            zero=None if two or not of.zero.any() else _reals(rows, of.zero, kind),
            minus=_reals(rows, of.zero.astype(kind) * scale, kind) if two else None,
            plus=None if plus is None else _reals(rows, plus, kind),
            table=None if table is None else _bytes(table),
        )
    return narrowed(y, definition.result_of(of))


def _table(codes: NDArray[np.generic], of: AnyMap, kind: np.dtype[np.floating]) -> Reals | None:
    """Returns what each byte stands for, where integers are floats or name the entries of a
    table."""
    if of.carrier.itemsize > 1:
        return None
    if of.storage.is_float:
        with np.errstate(all="ignore"):
            return np.arange(256).astype(np.uint8).view(of.carrier).astype(kind)
    if not isinstance(of, Map) or of.table is None or not codes.size:
        return None
    if not of.low <= codes.min() <= codes.max() < of.low + of.table.size:
        return None  # the definition says which code has no entry
    out = np.zeros(256, kind)
    out[(of.low + np.arange(of.table.size)) % 256] = of.table.astype(kind)
    return out


def requantize(
    acc: NDArray[np.generic], factor: Reals, y: Affine, rule: Rule, axis: int
) -> Codes | None:
    """Quantized values of sums, by factors that are floats or are shifted."""
    r = rule.requant
    if r.multiplier not in ("f32", "f64", "q31") or next(clashes(rule), None):
        return None
    if r.multiplier == "q31" and (r.zero == "before" or r.round in ("even", "away", "double_up")):
        return None
    if r.clip == "codes_32":
        return None
    if acc.size < LEAST or acc.dtype != np.int32 or factor.dtype not in (F32, F64):
        return None
    if y.axis is not None and (y.axis % acc.ndim != axis % acc.ndim or not factor.ndim):
        return None
    kind = factor.dtype
    after = y.zero if r.zero == "after" else np.zeros_like(y.zero)
    if not _holds(y, y.low, y.high, after, kind if r.clip == "reals" else None):
        return None
    rows = along(acc.shape, axis if factor.ndim else None)
    if r.multiplier == "q31":
        return _fixed(acc, factor, y, after, rows, r.round == "double")
    codes = np.empty(acc.shape, y.carrier)
    _codes.encode(
        _bytes(np.ascontiguousarray(acc)),
        _bytes(codes),
        rows.rows,
        wide=kind == F64,
        itemsize=codes.itemsize,
        round=r.round,
        low=y.low,
        high=y.high,
        factor=_bytes(rows.listed(factor)),
        after=_whole(rows, after),
        nan=_whole(rows, np.asarray(y.low)),
        before=_reals(rows, y.zero, kind) if r.zero == "before" else None,
        sums=True,
    )
    return codes


def _fixed(
    acc: NDArray[np.generic],
    factor: Reals,
    y: Affine,
    zero: NDArray[np.generic],
    rows: RowLayout,
    twice: bool,
) -> Codes | None:
    """Quantized values of sums by 31-bit multipliers and shifts that are not longer."""
    if not (np.isfinite(factor) & (factor > 2.0**-29) & (factor < 2.0**29)).all():
        return None
    q, exponent = definition.mantissa(factor)
    codes = np.empty(acc.shape, y.carrier)
    _codes.fixed(
        np.ascontiguousarray(acc).reshape(-1),
        _bytes(codes),
        rows.rows,
        multiplier=_whole(rows, q),
        left=_whole(rows, np.maximum(exponent, 0)),
        right=_whole(rows, np.maximum(-exponent, 0)),
        zero=_whole(rows, zero),
        itemsize=codes.itemsize,
        low=y.low,
        high=y.high,
        twice=twice,
    )
    return codes


def looked_up(codes: NDArray[np.generic], table: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the table's entry for each quantized value of one byte or two, taken as unsigned."""
    out = np.empty(codes.shape, table.dtype)
    _codes.lookup(
        _bytes(np.ascontiguousarray(codes)),
        _bytes(table),
        _bytes(out),
        itemsize=codes.itemsize,
        entry=table.itemsize,
    )
    return out


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns the bytes of an array without gaps."""
    return array.reshape(-1).view(np.uint8)


def _reals(
    rows: RowLayout, values: NDArray[np.generic], kind: np.dtype[np.floating]
) -> NDArray[np.uint8]:
    return _bytes(rows.listed(values.astype(kind)))


def _whole(rows: RowLayout, values: NDArray[np.generic]) -> NDArray[np.int32]:
    return rows.listed(values.astype(np.int32))  # type: ignore[return-value]
