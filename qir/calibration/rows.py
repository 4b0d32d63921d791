"""Reads arrays from files a few rows at a time, so that memory holds one batch."""

from __future__ import annotations

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qir.errors import DataError

Array = NDArray[np.generic]


class ArrayRows(Protocol):
    """An array that gives parts of its first axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.generic]: ...

    def read(self, start: int, stop: int) -> Array:
        """Reads rows start to stop; raises DataError when the file is damaged there."""
        ...


class MemoryRows:
    """An array in memory."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, start: int, stop: int) -> Array:
        return self.array[start:stop] if self.shape else self.array


class FileRows:
    """An .npy file whose rows are read when they are needed.

    Mapped into memory, all that was read of it would count as memory of the process.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic], start: int
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._start = start
        """Where the numbers begin in the file."""

    def read(self, start: int, stop: int) -> Array:
        # A last batch may ask for more rows than there are.
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        size = math.prod(self.shape[1:])
        wanted = max(0, stop - start) * size
        with reading(self.path), self.path.open("rb") as file:
            file.seek(self._start + start * size * self.dtype.itemsize)
            found = np.fromfile(file, self.dtype, wanted)
        if found.size < wanted:
            raise DataError(f"{self.path}: ends too early for its shape {list(self.shape)}")
        return found.reshape(max(0, stop - start), *self.shape[1:])


class SampleRows:
    """An array that is one sample, as its only row."""

    def __init__(self, rows: ArrayRows) -> None:
        self._rows = rows
        self.shape, self.dtype = (1, *rows.shape), rows.dtype

    def read(self, start: int, stop: int) -> Array:
        rows = self._rows.read(0, self.shape[1] if len(self.shape) > 1 else 1)
        return rows.reshape(self.shape)[start:stop]


class TypedRows:
    """Elements that a file has as bare bytes, of the type that they are meant in."""

    def __init__(self, rows: ArrayRows, dtype: np.dtype[np.generic]) -> None:
        self._rows = rows
        self.shape, self.dtype = rows.shape, dtype

    def read(self, start: int, stop: int) -> Array:
        return self._rows.read(start, stop).view(self.dtype)


class StreamedRows:
    """A member of an .npz file, decompressed from front to back as its rows are read."""

    def __init__(self, path: Path, member: str) -> None:
        self.path, self.member = path, member
        self._stream: IO[bytes] | None = None
        self._at = 0
        with reading(path), zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            self.shape, fortran, self.dtype = read_header(stream)
            content = archive.getinfo(member).file_size - stream.tell()
        require_size(self.shape, self.dtype, content, self.name)
        # Rows of Fortran order are not contiguous in the stream.
        self._loaded = load_member(path, member) if fortran or not self.shape else None

    @property
    def name(self) -> str:
        return f"{self.path}: {self.member.removesuffix('.npy')}"

    def read(self, start: int, stop: int) -> Array:
        if self._loaded is not None:
            return self._loaded[start:stop] if self.shape else self._loaded
        stop = min(stop, self.shape[0])
        row = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        with reading(self.path):
            # A compressed stream cannot go back, so it is opened again.
            if self._stream is None or self._at > start:
                self._stream = zipfile.ZipFile(self.path).open(self.member)
                read_header(self._stream)
                self._at = 0
            while self._at < start:  # skipped rows are decompressed, some at a time
                skip = min(start - self._at, max(1, (1 << 20) // max(row, 1)))
                self._read_bytes(skip * row)
                self._at += skip
            content = self._read_bytes((stop - start) * row)
            self._at = stop
            if stop == self.shape[0]:
                self._stream.read(1)  # at the end the checksum is compared
        return np.ndarray((stop - start, *self.shape[1:]), self.dtype, content)

    def _read_bytes(self, count: int) -> bytes:
        assert self._stream is not None
        content = self._stream.read(count)
        if len(content) < count:
            raise DataError(f"{self.name}: ends too early for its shape {list(self.shape)}")
        return content


def open_npy(path: Path) -> ArrayRows:
    """Opens an .npy file; raises DataError when it is not one, is truncated, or holds objects."""
    with reading(path):
        with path.open("rb") as file:
            shape, fortran, dtype = read_header(file)
            start = file.tell()
        require_size(shape, dtype, path.stat().st_size - start, str(path))
        # Rows in Fortran order are scattered over the file, and the others have none to read one by
        # one.
        if fortran or 0 in shape or not shape:
            return MemoryRows(np.load(path, allow_pickle=False))
        return FileRows(path, shape, dtype, start)


def open_npz(path: Path) -> Mapping[str, ArrayRows]:
    """Returns the arrays of an .npz file by name; raises DataError when it is not one, or is cut
    off."""
    with reading(path), zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".npy")]
    return {name.removesuffix(".npy"): StreamedRows(path, name) for name in members}


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Returns shape, order and dtype of an .npy header; raises ValueError for anything else."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy format version {version[0]}.{version[1]}")
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype


def load_member(path: Path, member: str) -> Array:
    """Returns a member of an .npz file as a whole, where its layout does not allow rows."""
    with reading(path), zipfile.ZipFile(path) as archive, archive.open(member) as stream:
        array: Array = npy.read_array(stream, allow_pickle=False)
        return array


def require_size(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], content: int, where: str
) -> None:
    """Raises DataError when there are not as many bytes as the shape says, or objects."""
    refuse_objects(dtype, where)
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != content:
        raise DataError(
            f"{where}: cut off or damaged: holds {content} bytes where its shape {list(shape)} and "
            f"{dtype} make {wanted}"
        )


def is_raw_bytes(dtype: np.dtype[np.generic]) -> bool:
    """Returns whether elements are bytes without a meaning, as NumPy saves types that it has not
    itself."""
    return dtype.type is np.void and dtype.fields is None and dtype.subdtype is None


def refuse_objects(dtype: np.dtype[np.generic], where: str) -> None:
    """Raises DataError for arrays that only a pickle could read."""
    if dtype.hasobject:
        raise DataError(
            f"{where}: holds Python objects, which are not read: save numbers, or strings "
            "by array.astype(str)"
        )


_WHAT: Mapping[type[Exception], str] = {
    UnicodeError: "a name is not UTF-8",
    MemoryError: "its shape needs more memory than there is",
    lzma.LZMAError: "its data cannot be decompressed",
    zlib.error: "its data cannot be decompressed",
}
"""What Python says of these is not clear."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what can go wrong in a file into a DataError of one line that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or first_line(error)}") from None
    except (UnicodeError, MemoryError, lzma.LZMAError, zlib.error) as error:
        what = next(text for kind, text in _WHAT.items() if isinstance(error, kind))
        raise DataError(f"{path}: not a NumPy file, or damaged: {what}") from None
    except (
        ValueError,
        EOFError,
        TypeError,
        SyntaxError,
        NotImplementedError,
        RuntimeError,
        LookupError,
        OverflowError,
        zipfile.BadZipFile,
        tokenize.TokenError,
    ) as error:
        raise DataError(f"{path}: not a NumPy file, or damaged: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Returns the start of what an error says, short enough for one line."""
    return str(error).partition("\n")[0][:100] or type(error).__name__
