"""Reads `.params` files: storage versions V1 to V3, dense, row_sparse and csr arrays."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError

Array = NDArray[np.generic]
_Index = tuple[np.dtype[np.generic], tuple[int, ...]]
MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DTYPES: dict[int, np.dtype[np.generic]] = {
    flag: np.dtype(kind)
    for flag, kind in {
        0: np.float32,
        1: np.float64,
        2: np.float16,
        3: np.uint8,
        4: np.int32,
        5: np.int8,
        6: np.int64,
        7: np.bool_,
        8: np.int16,
        9: np.uint16,
        10: np.uint32,
        11: np.uint64,
        12: ml_dtypes.bfloat16,
    }.items()
}
"""Element types by MXNet's type flag."""
_DENSE, _ROWS, _CSR = 0, 1, 2
_INDEX_ARRAYS = {_DENSE: 0, _ROWS: 1, _CSR: 2}
"""Count of index arrays by storage type."""
_MAX_AXES = 32
_MAX_ELEMENTS = 1 << 48
"""Elements of an array, with an axis of 0 counted as 1: NumPy creates no larger views."""
_MAX_DENSE_BYTES = 1 << 28
"""Bytes of a dense array made of a sparse one, unless the file is large itself."""


class Parameters(dict[str, Array]):
    """Arrays by name, without the prefixes `arg:` and `aux:`."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[str] = set()
        """Names of the auxiliary states, which have the prefix `aux:`."""


def read_parameters(path: Path) -> Parameters:
    """Returns the arrays of a file by name.

    They are read-only views of one read of the file. Raises InputError with file and array for a
    damaged file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return _ParameterFile(path, content).arrays()


class _ParameterFile:
    """The bytes of a file, and the current offset."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.offset = path, content, 0
        self.entry = "header"

    def arrays(self) -> Parameters:
        (magic,) = self.unpack("<Q") if len(self.content) >= 8 else (0,)
        if magic != MAGIC:
            raise self.bad(f"its first 8 bytes are no {MAGIC:#x}: it is no .params file")
        # The second word is reserved.
        self.unpack("<Q")
        count = self.count("arrays", 4)
        arrays_read = []
        for index in range(count):
            self.entry = f"array {index}"
            arrays_read.append(self.array())
        self.entry = "names"
        if self.count("names", 8) != count:
            raise self.bad(f"it does not have one name for each of {count} arrays")
        parameters = Parameters()
        for index, array in enumerate(arrays_read):
            self.entry = f"name {index}"
            prefixed_name = self.name()
            name = prefixed_name.removeprefix("arg:").removeprefix("aux:")
            if name in parameters:
                raise self.bad(f"a second array is named {name}")
            # An array without a shape has no elements: the variable counts as missing.
            if array is not None:
                parameters[name] = array
            if prefixed_name.startswith("aux:"):
                parameters.states.add(name)
        if self.offset != len(self.content):
            raise self.bad(f"{len(self.content) - self.offset} bytes follow the last name")
        return parameters

    def array(self) -> Array | None:
        """Reads one array; None for one without a shape."""
        (magic,) = self.unpack("<I")
        if magic not in (V1, V2, V3):
            raise self.bad(f"its storage version is {magic:#x}; V1 to V3 are read")
        storage = _DENSE
        if magic != V1:
            (storage,) = self.unpack("<i")
            if storage not in _INDEX_ARRAYS:
                raise self.bad(f"its storage type is {storage}; dense, row_sparse, csr are read")
        # Sparse arrays state the shape of their stored data first.
        data_shape = self.shape(magic) if _INDEX_ARRAYS[storage] else None
        shape = self.shape(magic)
        # Versions before V3 have no 0-D arrays.
        if shape is None or (not shape and magic != V3):
            return None  # an array without elements, as of a parameter that was never initialized
        self.unpack("<ii")  # the device type and id, which are of no use here
        dtype = self.kind()
        indices: list[_Index] = []
        for _ in range(_INDEX_ARRAYS[storage]):
            index_kind, index_shape = self.kind(), self.shape(magic)
            if index_kind.kind not in "iu":
                raise self.bad(f"its indices are {index_kind}")
            indices.append((index_kind, index_shape or ()))
        if data_shape is not None and not prod(data_shape):  # MXNet writes it before it is computed
            data_shape = self.stored(storage, shape, indices)
        data = self.elements(dtype, shape if data_shape is None else data_shape)
        rows = [self.elements(*index) for index in indices]
        return self.dense(storage, shape, data, rows) if rows else data

    def stored(
        self, storage: int, shape: tuple[int, ...], indices: list[_Index]
    ) -> tuple[int, ...]:
        """Returns the shape of a sparse array's data by its indices, as MXNet computes it."""
        _, index_shape = indices[-1]
        return index_shape if storage == _CSR else self.possible((prod(index_shape), *shape[1:]))

    def dense(
        self, storage: int, shape: tuple[int, ...], data: Array, indices: list[Array]
    ) -> Array:
        """Returns a sparse array as a dense one."""
        size = prod(shape) * data.dtype.itemsize
        if size > max(_MAX_DENSE_BYTES, 16 * len(self.content)):
            raise self.bad(f"its shape {shape} has {size} bytes, of which few are in the file")
        index_vectors = [index.astype(np.int64).reshape(-1) for index in indices]
        dense_array = np.zeros(shape, data.dtype)
        if storage == _ROWS:
            (rows,) = index_vectors
            is_consistent = bool(shape) and data.shape == (len(rows), *shape[1:])
            if not is_consistent or (len(rows) and not 0 <= rows.min() <= rows.max() < shape[0]):
                raise self.bad("its row indices do not fit its shape")
            dense_array[rows] = data
        else:
            starts, columns = index_vectors
            row_lengths = np.diff(starts)
            is_consistent = len(shape) == 2 and len(starts) == shape[0] + 1 and starts[0] == 0
            is_consistent = (
                is_consistent
                and data.size == len(columns) == starts[-1]
                and bool((row_lengths >= 0).all())
            )
            if not is_consistent or (
                len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]
            ):
                raise self.bad("its csr indices do not fit its shape")
            # CSR: row i has the columns starts[i] to starts[i + 1].
            dense_array[np.repeat(np.arange(shape[0]), row_lengths), columns] = data.reshape(-1)
        dense_array.flags.writeable = False
        return dense_array

    # -- pieces ---------------------------------------------------------------------------------

    def unpack(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        if len(self.content) - self.offset < size:
            raise self.bad("the file ends early")
        values = struct.unpack_from(form, self.content, self.offset)
        self.offset += size
        return values

    def count(self, what: str, min_bytes: int) -> int:
        """Reads a count of entries of at least `min_bytes` each."""
        (entry_count,) = self.unpack("<Q")
        # Checked before anything is allocated for them.
        if entry_count > (len(self.content) - self.offset) // min_bytes:
            raise self.bad(f"{entry_count} {what} do not fit into the file")
        return entry_count

    def shape(self, version: int) -> tuple[int, ...] | None:
        (axes,) = self.unpack("<i")
        if axes == -1 and version == V3:
            return None
        if not 0 <= axes <= _MAX_AXES:
            raise self.bad(f"it has {axes} axes")
        return self.possible(self.unpack(f"<{axes}q"))

    def possible(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a shape; raises InputError for an impossible one."""
        # A size of 0 could hide sizes whose product overflows.
        if any(size < 0 for size in sizes) or prod(max(size, 1) for size in sizes) >= _MAX_ELEMENTS:
            raise self.bad(f"its shape is {str(sizes)[:80]}")
        return sizes

    def kind(self) -> np.dtype[np.generic]:
        (flag,) = self.unpack("<i")
        if flag not in DTYPES:
            raise self.bad(f"its element type has the flag {flag}, which MXNet does not have")
        return DTYPES[flag]

    def elements(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
        count = prod(shape)
        size = count * dtype.itemsize
        if size > len(self.content) - self.offset:
            raise self.bad(f"its shape {shape} needs {size} bytes, the file ends early")
        array: Array = np.frombuffer(self.content, dtype, count, self.offset).reshape(shape)
        self.offset += size
        # The names and shapes before an array may leave it unaligned.
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        return array

    def name(self) -> str:
        size = self.count("bytes", 1)
        text = self.content[self.offset : self.offset + size]
        self.offset += size
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self.bad("it is no UTF-8") from None

    def bad(self, what: str) -> InputError:
        return InputError(f"{self.path}: {self.entry}: {what}")
