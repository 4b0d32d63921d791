"""Every map between integers and float values that a quantized type can say, on plain arrays."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.types import Granularity
from qir.numerics.affine import Affine, AffineParameters, DeclaredRange
from qir.records import record

Floats = NDArray[np.floating]
_Kind = TypeVar("_Kind", bound=np.generic)


@record(eq=False)
class Map:
    """Quantized values in [low, high] that mean (q - zero) * scale + plus, or table[code - low] *
    scale + plus; float values of the type `express`.

    Scale, zero and plus are one number each, or as many as the granularity has blocks. Axes of the
    granularity that are in blocks of several indices have one number a block, the last one may be
    shorter; `by` of the granularity names the block of each index of its last axis.
    """

    storage: DType
    express: DType
    scale: Floats
    zero: NDArray[np.generic]
    low: int
    high: int
    grain: Granularity | None = None
    plus: Floats | None = None
    table: Floats | None = None
    ends: DeclaredRange | None = None

    @property
    def carrier(self) -> np.dtype[np.generic]:
        """The NumPy type of the stored integers."""
        return self.storage.carrier

    @property
    def real_zero(self) -> bool:
        """Whether the zero is a float value and not a quantized value."""
        return self.zero.dtype.kind == "f"

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises OpError where there is not one number of each kind a block."""
        grid = self.grid(shape)
        for name, values in (("scales", self.scale), ("zeros", self.zero), ("offsets", self.plus)):
            if values is not None and values.size not in (1, int(np.prod(grid))):
                blocks = "x".join(map(str, grid)) or "one block"
                raise OpError(f"there are {values.size} {name}, the blocks make {blocks}")

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns how many blocks each axis has. OpError for axes or groups that are not there."""
        if self.grain is None:
            return (1,) * len(shape)
        last_axis = self.grain.blocks[-1][0]
        if last_axis >= len(shape):
            raise OpError(f"scales are along axis {last_axis}, the array has rank {len(shape)}")
        sizes = dict(self.grain.blocks)
        # Rounded up: the last block may be shorter.
        grid = tuple(-(-dim // sizes[i]) if i in sizes else 1 for i, dim in enumerate(shape))
        if self.grain.by is not None:
            groups = self.grain.by.data
            if groups.shape != (shape[last_axis],):
                raise OpError(
                    f"{groups.size} groups for {shape[last_axis]} indices of axis {last_axis}"
                )
            if groups.size and not 0 <= groups.min() <= groups.max() < grid[last_axis]:
                found = f"{groups.min()}..{groups.max()}"
                raise OpError(f"groups {found}, but axis {last_axis} has {grid[last_axis]} blocks")
        return grid

    def numbers(self) -> tuple[NDArray[np.generic], ...]:
        """Scales, zeros, and offsets where there are any."""
        return (self.scale, self.zero) if self.plus is None else (self.scale, self.zero, self.plus)

    def over(self, shape: tuple[int, ...]) -> AffineParameters:
        """Returns the numbers for an array of that shape; raises OpError where they do not fit
        it."""
        self.check(shape)
        plus = None if self.plus is None else self._spread(self.plus, shape)
        ends = self.ends
        if ends is not None:
            low, high = (self._spread(end, shape) for end in (ends.low, ends.high))
            ends = DeclaredRange(low, high, ends.level)
        return AffineParameters(
            self._spread(self.scale, shape), self._spread(self.zero, shape), plus, ends
        )

    def _spread(self, values: NDArray[_Kind], shape: tuple[int, ...]) -> NDArray[_Kind]:
        if values.size == 1 or self.grain is None:
            return values.reshape(())
        # Numbers are stored one a block; the kernels index them by element.
        out = values.reshape(self.grid(shape))
        by = self.grain.by
        last_axis = self.grain.blocks[-1][0]
        for axis, size in self.grain.blocks:
            if axis == last_axis and by is not None:
                out = out.take(by.data.astype(np.int64), axis)
            elif size > 1:
                # By index instead of `np.repeat`, as the last block may be shorter.
                out = out.take(np.arange(shape[axis]) // size, axis)
        return out

    def same_map(self, other: Map) -> bool:
        """Returns whether equal integers mean equal floats in both."""
        return (
            (self.storage, self.express, self.low, self.high, self.grain)
            == (other.storage, other.express, other.low, other.high, other.grain)
            and np.array_equal(self.scale, other.scale)
            and self.real_zero == other.real_zero
            and np.array_equal(self.zero, other.zero)
            and _equal_or_none(self.plus, other.plus)
            and _equal_or_none(self.table, other.table)
        )


AnyMap: TypeAlias = Affine | Map
"""A quantized type as the arithmetic needs it: affine, or a table."""


def _equal_or_none(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def same_map(one: AnyMap, other: AnyMap) -> bool:
    """Returns whether equal integers certainly mean equal floats in both."""
    if isinstance(one, Affine) and isinstance(other, Affine):
        return one.same_map(other)
    # An affine map and a table may agree as well; here "certainly" is asked, and no is always safe.
    return isinstance(one, Map) and isinstance(other, Map) and one.same_map(other)
