"""Measures the distance of two arrays, and dequantizes for that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.types import Granularity, QuantType

_PART_SIZE = 1 << 20
"""Bytes that are compared at a time."""


@dataclass(frozen=True, slots=True)
class First:
    """The first element that differs: its index, and both numbers to the last bit."""

    index: tuple[int, ...]
    a: str
    b: str

    @property
    def place(self) -> str:
        """`[0, 3]`, or nothing where there is one element."""
        return f"[{', '.join(map(str, self.index))}]" if self.index else ""

    @property
    def texts(self) -> tuple[str, str]:
        """Both numbers, each with its place."""
        return f"{self.place} {self.a}".strip(), f"{self.place} {self.b}".strip()


@dataclass(frozen=True, slots=True)
class Measure:
    """The distance of two arrays of one shape."""

    elements: int
    differ: int
    """How many elements differ."""
    largest: float | None = None
    """The largest difference; None where it is infinite, or there are no numbers."""
    relative: float | None = None
    """The largest difference as a share of the first's number; None where that is 0."""
    ulps: int | None = None
    """The largest difference in steps of the float type, where both have one type."""
    steps: float | None = None
    """The largest difference in quantized values."""
    first: First | None = None


def measure(
    a: NDArray[np.generic],
    b: NDArray[np.generic],
    step: NDArray[np.float64] | None = None,
    shown: tuple[NDArray[np.generic], NDArray[np.generic]] | None = None,
) -> Measure | None:
    """Returns the distance, or None where the shapes differ; `step` is what one quantized value is
    worth.

    The first difference is shown by the elements of `shown` where that is given.
    """
    if a.shape != b.shape:
        return None
    texts = "O" in (a.dtype.kind, b.dtype.kind)
    # The usual case, without an array of differences.
    if not texts and same_bits(a, b):
        return Measure(a.size, 0, 0.0, 0.0, None, 0.0 if step is not None else None)
    if texts:
        differ = np.asarray(a != b).reshape(a.shape)
        return Measure(a.size, int(differ.sum()), first=_first(differ, a, b))
    steps = None if step is None else np.broadcast_to(step, a.shape)
    count, first = 0, None
    part_maxima: list[tuple[float, float, float]] = []
    ulps: list[int | None] = []
    # Part by part, so that no second copy of a large array is in memory.
    for part in _parts(a):
        differ = _difference_mask(a[part], b[part])
        if not (differ_count := int(differ.sum())):
            continue
        if first is None:
            start = part.start if isinstance(part, slice) else 0
            one, other = shown or (a, b)
            first = _first(differ, one[part], other[part], start)
        count += differ_count
        x, y = a[part][differ], b[part][differ]
        gaps = _absolute_differences(x, y)
        codes = 0.0 if steps is None else float((gaps / steps[part][differ]).max())
        part_maxima.append((float(gaps.max()), _relative(x, gaps), codes))
        ulps.append(_ulps(x, y) if steps is None else None)
    if not count:
        return Measure(a.size, 0, 0.0, 0.0, None, 0.0 if step is not None else None)
    largest, relative, most_steps = np.max(part_maxima, axis=0).tolist()
    ulps_found = [u for u in ulps if u is not None]
    return Measure(
        a.size,
        count,
        _finite(largest),
        _finite(relative),
        max(ulps_found) if ulps_found else None,
        _finite(most_steps) if step is not None else None,
        first,
    )


def _parts(a: NDArray[np.generic]) -> list[slice | EllipsisType]:
    """Places along the first axis that are looked at one after the other."""
    if not a.ndim:
        return [...]
    rows = max(1, _PART_SIZE * len(a) // max(a.nbytes, 1))
    return [slice(i, i + rows) for i in range(0, len(a), rows)]


def same_bits(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Returns whether two arrays of one type and shape hold the same bits, found with room for a
    part."""
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind == "O":
        return False
    if a.flags.c_contiguous and b.flags.c_contiguous:
        a, b = a.reshape(-1), b.reshape(-1)
    return all(bool((_bits(a[part]) == _bits(b[part])).all()) for part in _parts(a))


def _bits(part: NDArray[np.generic]) -> NDArray[np.unsignedinteger]:
    raw_bytes = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return raw_bytes if raw_bytes.size % 8 else raw_bytes.view(np.uint64)


def _first(
    differ: NDArray[np.bool_], a: NDArray[np.generic], b: NDArray[np.generic], start: int = 0
) -> First | None:
    """Returns the first that differs, of parts that start there along the first axis."""
    if not differ.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(differ.argmax()), differ.shape))
    x, y = number(a[index]), number(b[index])
    if x == y:  # two that are no numbers, or are printed alike
        x, y = (f"{x} ({np.asarray(v[index]).tobytes()[::-1].hex()})" for v in (a, b))
    return First((index[0] + start, *index[1:]) if index else index, x, y)


def number(value: object) -> str:
    """Returns the shortest text that distinguishes a number from its neighbours."""
    return repr(value) if isinstance(value, str | bytes) else str(value)


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _difference_mask(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Returns which elements differ; of floats of one type, those whose bits do."""
    same: NDArray[np.bool_]
    if a.dtype == b.dtype and a.dtype.itemsize in (1, 2, 4, 8):
        kind = f"u{a.dtype.itemsize}"
        same = np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)
    elif {a.dtype.kind, b.dtype.kind} <= set("iub"):
        same = np.equal(a, b)
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
    return ~np.asarray(same).reshape(a.shape)


def _absolute_differences(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float64]:
    if a.dtype == b.dtype and a.dtype.kind in "iu" and a.dtype.itemsize == 8:
        # Differences of 64-bit integers may not fit int64; as unsigned numbers they wrap to the
        # right one.
        high, low = np.maximum(a, b).astype(np.uint64), np.minimum(a, b).astype(np.uint64)
        return np.asarray((high - low).astype(np.float64))
    with np.errstate(all="ignore"):
        return np.abs(a.astype(np.float64) - b.astype(np.float64))


def _relative(a: NDArray[np.generic], gaps: NDArray[np.float64]) -> float:
    with np.errstate(all="ignore"):
        return float((gaps / np.abs(a.astype(np.float64))).max())


def _ulps(a: NDArray[np.generic], b: NDArray[np.generic]) -> int | None:
    if a.dtype != b.dtype or a.dtype.kind not in "fV":
        return None
    x, y = _ordered_bits(a), _ordered_bits(b)
    return int((np.maximum(x, y) - np.minimum(x, y)).max())


def _ordered_bits(values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Numbers that rise with the floats, one apart for neighbours; both zeros are one."""
    bits = 8 * values.dtype.itemsize
    raw = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)
    middle = np.uint64(1 << (bits - 1))
    magnitude = raw & (middle - np.uint64(1))
    # Sign and magnitude to one rising number: negatives below the middle, positives above it.
    return np.where(raw & middle, middle - magnitude, middle + magnitude)


def dequantize_for_measure(
    quantized: NDArray[np.generic], quant: QuantType
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Returns the floats of a uniform type's integers in float64, and the scale at each; None for
    others."""
    if quant.dynamic or quant.kind != "uniform" or quant.plus is not None:
        return None
    scale, zero = np.asarray(quant.scales()), np.asarray(quant.zeros())
    scale_at_each = spread(scale.astype(np.float64), quant.granularity, quantized.shape)
    zero_at_each = spread(zero.astype(np.float64), quant.granularity, quantized.shape)
    if scale_at_each is None or zero_at_each is None:
        return None
    return (quantized.astype(np.float64) - zero_at_each) * scale_at_each, scale_at_each


def spread(
    values: NDArray[np.float64], granularity: Granularity | None, shape: tuple[int, ...]
) -> NDArray[np.float64] | None:
    """Reshapes parameters to broadcast with elements; None where an array names the groups."""
    if granularity is None or values.size == 1:
        return values.reshape(())
    if granularity.by is not None:
        return None
    if (axis := granularity.axis) is not None and values.ndim == 1:
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if values.ndim != len(shape):
        grid = dims.known_shape(granularity.grid(shape))
        if grid is None or values.size != math.prod(grid):
            return None
        values = values.reshape(grid)
    for axis, size in granularity.blocks:
        values = np.repeat(values, size, axis)
        values = values[(slice(None),) * axis + (slice(shape[axis]),)]
    return values
