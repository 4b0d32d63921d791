"""The plain map between integers and floats, as integer kernels take it; `maps` has the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import F64, DType, dtype
from qir.ir.types import Array, QuantType
from qir.numerics.wide_integers import integer_zeros
from qir.records import record


@record(eq=False)
class AffineParameters:
    """A quantized type's numbers, shaped to go with the array they are meant for."""

    scale: NDArray[np.floating]
    zero: NDArray[np.generic]
    plus: NDArray[np.floating] | None = None
    ends: DeclaredRange | None = None


@record(eq=False)
class DeclaredRange:
    """The range that a framework's file declares for integers, one or as many as there are
    scales."""

    low: NDArray[np.floating]
    high: NDArray[np.floating]
    level: float | None = None
    """The quantized value that stands for its far end, where the file says it."""
    gain: NDArray[np.floating] | None = None
    """Quantized values a float unit, where a kernel made them itself."""

    def reshaped(self, shape: tuple[int, ...]) -> DeclaredRange:
        """Returns the same numbers in another shape."""
        gain = None if self.gain is None else self.gain.reshape(shape)
        return DeclaredRange(self.low.reshape(shape), self.high.reshape(shape), self.level, gain)


@record(eq=False)
class Affine:
    """Quantized values of a storage type in [low, high] that mean (q - zero) * scale.

    One scale and zero for all, or one each along an axis. Quantized values mean float values of the
    type `express`; where none is named, of the scale's own.
    """

    storage: DType
    scale: NDArray[np.floating]
    zero: NDArray[np.integer]
    low: int
    high: int
    axis: int | None = None
    express: DType | None = None
    ends: DeclaredRange | None = None

    @property
    def carrier(self) -> np.dtype[np.generic]:
        """The NumPy type of the stored integers."""
        return self.storage.carrier

    def along(self, rank: int) -> tuple[NDArray[np.floating], NDArray[np.integer]]:
        """Scale and zero, shaped to go with an array of that rank."""
        if self.axis is None:
            return self.scale, self.zero
        # The array is the caller's, and may have fewer axes than the type was made for.
        if not -rank <= self.axis < rank:
            raise OpError(f"scales are along axis {self.axis}, the array has rank {rank}")
        shape = [1] * rank
        shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero.reshape(shape)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises OpError where there is not one scale an index of the axis."""
        if self.axis is not None and shape[self.axis] != self.scale.size:
            raise OpError(
                f"axis {self.axis} has {shape[self.axis]} indices, but {self.scale.size} scales"
            )

    def numbers(self) -> tuple[NDArray[np.generic], ...]:
        """Scales and zeros."""
        return self.scale, self.zero

    def over(self, shape: tuple[int, ...]) -> AffineParameters:
        """Returns the numbers for an array of that shape; raises OpError where they do not fit
        it."""
        scale, zero = self.along(len(shape))
        self.check(shape)
        ends = None if self.ends is None else self.ends.reshaped(scale.shape)
        return AffineParameters(scale, zero, None, ends)

    def same_map(self, other: Affine) -> bool:
        """Returns whether equal integers mean equal floats in both."""
        return (
            self.storage == other.storage
            and (self.low, self.high, self.axis) == (other.low, other.high, other.axis)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero, other.zero)
        )


def affine(
    storage: DType | str,
    scale: float | NDArray[np.floating],
    zero: int | NDArray[np.integer] = 0,
    *,
    axis: int | None = None,
    bounds: tuple[int, int] | None = None,
) -> Affine:
    """Returns a quantized type made of plain numbers; a Python float becomes float32.

    Any scale is taken, also 0, NaN or below zero: runtimes compute with them, and are predicted.
    Raises OpError for a zero point outside the storage type, or counts that do not fit.
    """
    kind = dtype(storage) if isinstance(storage, str) else storage
    # Scales of runtimes are float32: a Python float would compute in float64 without a word.
    scales = np.asarray(scale if isinstance(scale, np.ndarray | np.generic) else np.float32(scale))
    if scales.dtype.kind != "f":
        raise OpError(f"scales are floats, not {scales.dtype}")
    # Zero points of u64 may exceed int64; all others are int64, in which differences are exact.
    zeros = integer_zeros(np.asarray(zero))
    # One scale along an axis would look like one for all once it is broadcast.
    if (axis is None) != (scales.ndim == 0):
        raise OpError(f"{scales.size} scales {'without an' if axis is None else 'for an'} axis")
    if zeros.ndim == 0 and scales.ndim:
        zeros = np.full(scales.shape, zeros)
    if zeros.shape != scales.shape:
        raise OpError(f"there are {scales.size} scales but {zeros.size} zero points")
    low, high = bounds or kind.bounds
    least, greatest = kind.bounds
    if zeros.size and not least <= zeros.min() <= zeros.max() <= greatest:
        raise OpError(f"zero point {int(zeros.min())}..{int(zeros.max())} does not fit {kind}")
    return Affine(kind, scales, zeros, low, high, axis)


def affine_of(kind: QuantType) -> Affine:
    """Returns the parameters of a quantized type as NumPy arrays, where the type states them.

    Raises OpError for tables, offsets, float zero points, quantized floats and blocks: `map_of`
    takes these, and no integer kernel does.
    """
    if (
        kind.kind != "uniform"
        or kind.plus is not None
        or kind.has_float_zero
        or kind.storage.is_float
    ):
        raise OpError(f"{kind} is not a plain scale and integer zero point")
    if kind.granularity is not None and kind.axis is None:
        raise OpError(f"{kind} has blocks of scales; integer kernels take one scale an axis")
    if isinstance(kind.scale, Array) and kind.scale.type.quant is not None:
        raise OpError(f"{kind} has quantized scales; integer kernels take plain ones")
    if kind.granularity is None and isinstance(kind.scale, tuple) and isinstance(kind.zero, tuple):
        # The usual case, without arrays of one number each.
        (scale,), (zero,) = kind.scale, kind.zero or (0,)
        least, greatest = kind.storage.bounds
        if least <= zero <= greatest < 1 << 63:
            return Affine(
                kind.storage,
                np.array(scale, np.float64 if kind.scale_type == F64 else np.float32),
                np.array(zero, np.int64),
                kind.low,
                kind.high,
                None,
                kind.express,
                declared_range_of(kind),
            )
    scales, zeros = np.asarray(kind.scales()), integer_zeros(np.asarray(kind.zeros()))
    plain = affine(
        kind.storage, as_float32_or_64(scales), zeros, axis=kind.axis, bounds=(kind.low, kind.high)
    )
    return replace(plain, express=kind.express, ends=declared_range_of(kind))


def declared_range_of(kind: QuantType) -> DeclaredRange | None:
    """Returns the range that a type declares, as many ends as it has scales."""
    if kind.declared is None:
        return None
    shape = np.shape(kind.scales())
    low, high = (
        np.broadcast_to(end.data if isinstance(end, Array) else np.array(end), shape or (1,))
        for end in (kind.declared.low, kind.declared.high)
    )
    return DeclaredRange(
        # Files declare ends as float32, by which kernels compute.
        low.astype(np.float32).reshape(shape),
        high.astype(np.float32).reshape(shape),
        kind.declared.level,
    )


def as_float32_or_64(floats: NDArray[np.generic]) -> NDArray[np.floating]:
    """Float values of any float type as float64 if they are that, else as float32, which
    is exact."""
    return floats.astype(np.float64 if floats.dtype == np.float64 else np.float32, copy=False)
