"""Lazy arrays: large tensors whose elements are computed box by box when they are read.

Weights derived from a file (quantized, unpacked or transposed) are written, hashed and compared
piece by piece, so that a model larger than the memory can be converted. Reading a whole array
caches it; the most recently read arrays stay cached.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MIN_LAZY_SIZE = 1 << 16
"""Arrays of fewer elements are computed at once."""
PIECE_SIZE = 1 << 20
"""The approximate number of elements in a piece."""
CACHE_BYTES = 64 << 20
"""The size of the cache of arrays that were read whole."""

Tensor: TypeAlias = NDArray[np.generic]
"""Elements of any type."""
Box: TypeAlias = tuple[slice, ...]
"""A range with start and stop on each axis."""
ReadRange: TypeAlias = Callable[[int, int], Tensor]
"""Reads the elements from one flat index up to another."""
_MAX_RUNS = 64  # a box of more contiguous runs is cut from the whole array, if that is small


class LazyArray:
    """An array given by its shape, its dtype and a function that computes any box of it.

    `make_box` depends on the box alone. `read_range`, if given, reads elements by flat index.
    `bounds` are the least and greatest possible quantized value, where they are known.
    """

    __slots__ = (
        "__weakref__",
        "_cached",
        "_last_result",
        "bounds",
        "dtype",
        "is_stored",
        "make_box",
        "read_range",
        "shape",
    )

    def __init__(
        self,
        shape: Sequence[int],
        dtype: np.dtype[np.generic],
        make: Callable[[Box], Tensor] | None = None,
        bounds: tuple[int, int] | None = None,
        read: ReadRange | None = None,
        *,
        is_stored: bool = False,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.make_box = make
        self.bounds = bounds
        self.read_range = read
        self.is_stored = is_stored
        """Whether `read_range` computes nothing, so that it may read all elements at once."""
        self._cached: Tensor | None = None
        # While somebody still holds the last result it is reused, though no longer cached.
        self._last_result: weakref.ref[Tensor] | None = None

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def read_box(self, box: Box) -> Tensor:
        """Returns the elements of a box."""
        array = self._computed()
        return self._make_box(box) if array is None else array[box]

    def read_all(self) -> Tensor:
        """Returns all elements as a read-only array, and caches them."""
        array = self._computed()
        if array is None:
            if self.is_stored and self.read_range is not None:
                array = self.read_range(0, self.size).reshape(self.shape)
            else:
                array = np.empty(self.shape, self.dtype)
                for box in boxes(self.shape):
                    array[box] = self._make_box(box)
            array.flags.writeable = False
            self._last_result = weakref.ref(array)
        _RECENT.keep(self, array)
        return array

    def _computed(self) -> Tensor | None:
        if (cached := self._cached) is not None:
            return cached
        return None if self._last_result is None else self._last_result()

    def _make_box(self, box: Box) -> Tensor:
        return self._read_by_ranges(box) if self.make_box is None else self.make_box(box)

    def _read_by_ranges(self, box: Box) -> Tensor:
        """Returns a box read as contiguous runs, or cut from all where these are many and short."""
        assert self.read_range is not None
        sizes = [s.stop - s.start for s in box]
        # The axes after `axis` are complete, so that each run spans them without a gap.
        axis = len(sizes)
        while axis and (axis == len(sizes) or sizes[axis] == self.shape[axis]):
            axis -= 1
        if 0 in sizes:
            return np.empty(sizes, self.dtype)
        # Many short reads cost more than one read of the whole array, where the cache can hold it.
        if math.prod(sizes[:axis]) > _MAX_RUNS and self.nbytes <= CACHE_BYTES // 4:
            return self.read_all()[box]
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(sizes))]
        length = sizes[axis] * strides[axis] if sizes else 1
        first = box[axis].start * strides[axis] if sizes else 0
        if not axis:
            return self.read_range(first, first + length).reshape(sizes)
        runs = np.empty((math.prod(sizes[:axis]), length), self.dtype)
        for row, lead in enumerate(
            itertools.product(*(range(s.start, s.stop) for s in box[:axis]))
        ):
            start = first + sum(i * n for i, n in zip(lead, strides, strict=False))
            runs[row] = self.read_range(start, start + length)
        return runs.reshape(sizes)


class _RecentArrays:
    """A least-recently-used cache of whole arrays, bounded by CACHE_BYTES."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, tuple[weakref.ref[LazyArray], int]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, lazy: LazyArray, array: Tensor) -> None:
        # An array larger than the cache would push out all others and itself.
        if array.nbytes > CACHE_BYTES:
            return
        with self._lock:
            lazy._cached = array
            self._order[id(lazy)] = weakref.ref(lazy), array.nbytes
            # The most recently read one is at the end; the loop below drops from the front.
            self._order.move_to_end(id(lazy))
            # Entries hold weak references: a dead array frees its share of the cache.
            for key in [k for k, (ref, _) in self._order.items() if ref() is None]:
                del self._order[key]
            while sum(size for _, size in self._order.values()) > CACHE_BYTES:
                _, (ref, _) = self._order.popitem(last=False)
                if (old := ref()) is not None:
                    old._cached = None


_RECENT = _RecentArrays()
ArrayData: TypeAlias = "Tensor | LazyArray"
"""Elements in memory, or lazy ones."""


def lazy_array(
    shape: Sequence[int],
    dtype: np.dtype[np.generic],
    make: Callable[[Box], Tensor],
    bounds: tuple[int, int] | None = None,
) -> ArrayData:
    """Returns the lazy array of a function of boxes; a small one is computed at once."""
    if is_small(shape):
        return np.asarray(make(full_box(shape)), order="C")
    return LazyArray(shape, dtype, make, bounds)


def is_small(shape: Sequence[int]) -> bool:
    """Returns whether an array of that shape is computed at once."""
    return math.prod(shape) < MIN_LAZY_SIZE


def full_box(shape: Sequence[int]) -> Box:
    """Returns the box that covers a whole array."""
    return tuple(slice(0, size) for size in shape)


def boxes(shape: Sequence[int], each: int = 1) -> Iterator[Box]:
    """Yields boxes that together cover an array in C order, each of about PIECE_SIZE elements.

    `each` is how many elements of another array one element stands for, as in packed bytes.
    """
    limit = max(PIECE_SIZE // each, 1)
    # `axis` is the first whose entries fit into a piece: boxes are single indices before it, ranges
    # on it, and all of the axes after it.
    axis, inner = 0, math.prod(shape[1:])
    while axis < len(shape) - 1 and inner > limit:
        axis += 1
        inner = math.prod(shape[axis + 1 :])
    if not shape or 0 in shape:
        yield full_box(shape)
        return
    step = 1 << max(limit // inner, 1).bit_length() - 1
    trailing = full_box(shape[axis + 1 :])
    for lead in itertools.product(*(range(size) for size in shape[:axis])):
        leading = tuple(slice(i, i + 1) for i in lead)
        for start in range(0, shape[axis], step):
            yield (*leading, slice(start, min(start + step, shape[axis])), *trailing)


def read_box(array: ArrayData, box: Box) -> Tensor:
    """Returns the elements of a box."""
    return array.read_box(box) if isinstance(array, LazyArray) else array[box]


def read_all(array: ArrayData) -> Tensor:
    """Returns all elements."""
    return array.read_all() if isinstance(array, LazyArray) else array


def iter_pieces(array: ArrayData) -> Iterator[Tensor]:
    """Yields all elements in C order as contiguous arrays."""
    if not isinstance(array, LazyArray) and (
        array.flags.c_contiguous or array.size < MIN_LAZY_SIZE
    ):
        yield np.asarray(array, order="C")
        return
    for box in boxes(array.shape):
        yield np.asarray(read_box(array, box), order="C")


def arrays_equal(one: ArrayData, other: ArrayData) -> bool:
    """Returns whether shapes and elements are equal, compared piece by piece."""
    if one is other or one.shape != other.shape:
        return one is other
    return all(np.array_equal(read_box(one, b), read_box(other, b)) for b in boxes(one.shape))


def transposed(array: ArrayData, perm: Sequence[int]) -> ArrayData:
    """Returns the array with its axes permuted."""
    inverse = [list(perm).index(axis) for axis in range(len(perm))]

    def make(box: Box) -> Tensor:
        part = read_box(array, tuple(box[axis] for axis in inverse))
        return np.asarray(part.transpose(perm), order="C")

    shape = [array.shape[axis] for axis in perm]
    return lazy_array(shape, array.dtype, make, bounds_of(array))


def reshape(array: ArrayData, shape: Sequence[int]) -> ArrayData:
    """Returns the elements, in their order, in another shape."""
    if tuple(shape) == array.shape:
        return array
    if not isinstance(array, LazyArray):
        return array.reshape(shape)
    # Flat reads do not depend on the shape, so they serve the new one as well.
    if array.read_range is not None:
        return LazyArray(
            shape, array.dtype, None, array.bounds, array.read_range, is_stored=array.is_stored
        )
    return LazyArray(
        shape, array.dtype, lambda box: array.read_all().reshape(shape)[box], array.bounds
    )


def add_offset(array: ArrayData, by: int, dtype: np.dtype[np.generic]) -> ArrayData:
    """Returns integers plus a constant, in a dtype that holds the sums."""
    bounds = bounds_of(array)

    def make(box: Box) -> Tensor:
        return (read_box(array, box).astype(np.int64) + by).astype(dtype)

    if array.dtype == dtype and not by:
        return array
    new_bounds = None if bounds is None else (bounds[0] + by, bounds[1] + by)
    return lazy_array(array.shape, dtype, make, new_bounds)


def crop(array: ArrayData, shape: Sequence[int]) -> ArrayData:
    """Returns the elements of the box of that shape at the start of each axis."""
    if tuple(shape) == array.shape or not isinstance(array, LazyArray):
        return array[full_box(shape)] if not isinstance(array, LazyArray) else array
    # The flat index of an element stays the same only where one axis is cropped.
    read = array.read_range if len(shape) == 1 else None
    return LazyArray(shape, array.dtype, array.read_box, array.bounds, read)


def file_array(elements: Tensor) -> ArrayData:
    """Returns the elements of a memory-mapped file that are not aligned: copied when read."""

    def read(first: int, last: int) -> Tensor:
        return elements.reshape(-1)[first:last].copy()

    if is_small(elements.shape):
        return elements.copy()
    return LazyArray(elements.shape, elements.dtype, lambda box: elements[box].copy(), None, read)


def bounds_of(array: ArrayData) -> tuple[int, int] | None:
    """Returns the least and greatest quantized value, where they are known without reading."""
    return array.bounds if isinstance(array, LazyArray) else None
