"""Sources of calibration data: files, folders and Python iterables, in batches.

An array holds samples along its first axis; one with an axis less than the model's input is a
single sample. Whatever the data come in, they go out in batches of the size that was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np

from qir.calibration import images, tokens
from qir.calibration.pieces import (
    HINT,
    InputSpec,
    Piece,
    Pieces,
    make_piece,
)
from qir.calibration.preprocess import Preprocess, read_preprocess
from qir.calibration.rows import (
    Array,
    ArrayRows,
    MemoryRows,
    open_npy,
    open_npz,
    refuse_objects,
)
from qir.errors import DataError, UsageError
from qir.ir.dtype import decode_texts
from qir.ir.types import Array as Held


class ArrayLike(Protocol):
    """What NumPy makes an array of, such as a tensor of PyTorch."""

    @property
    def shape(self) -> Sequence[int]:
        """The size of each axis."""

    def __array__(self) -> Array:
        """Returns the array."""


Item = Array | ArrayLike | Mapping[str, Array | ArrayLike] | Sequence[Array | ArrayLike]
Data = str | Path | Item | Iterable[Item]
DEFAULT_BATCH = 32


class SampleRange(NamedTuple):
    """Samples start to stop of a piece."""

    piece: Piece
    start: int
    stop: int


class DataSource:
    """Calibration data in batches, for the inputs of one model.

    Iterating gives one mapping of input names to arrays a batch; the last may be smaller where the
    model allows. DataError for what does not fit, naming the file, the input and the shapes.
    """

    def __init__(
        self,
        pieces: Pieces,
        inputs: Mapping[str, InputSpec],
        batch: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.name = pieces.name
        self.limit = limit
        self.inputs = inputs
        self._pieces = pieces
        if not inputs:
            raise DataError(f"{self.name}: the model has no inputs that take samples")
        self._fixed = fixed_batch(inputs)
        for what, value in (("batch", batch), ("sample limit", limit)):
            if value is not None and value < 1:
                raise UsageError(f"{what} {value}: give at least 1")
        if self._fixed is not None and batch not in (None, self._fixed):
            raise UsageError(f"batch {batch}: the model takes batches of {self._fixed} only")
        self.batch_size = self._fixed or batch or DEFAULT_BATCH
        if self.samples is not None and self.samples < (self._fixed or 1):
            raise DataError(
                f"{self.name}: {self.samples} samples, a batch takes {self._fixed or 1}"
            )

    @property
    def samples(self) -> int | None:
        """How many samples will be used at most, None where that shows only at the end."""
        known = self._pieces.samples()
        if known is None or self.limit is None:
            return known
        return min(known, self.limit)

    @property
    def left_out(self) -> int:
        """How many samples at the end do not fill the batch that the model insists on."""
        return (self.samples or 0) % self._fixed if self._fixed else 0

    @property
    def what_is_left_out(self) -> str:
        """Says how many samples are left out and why; empty where none is."""
        if not self.left_out:
            return ""
        text = f"{self.left_out:,} of {self.samples:,} samples left out"
        return f"{text}: the model takes batches of {self._fixed:,}"

    def __len__(self) -> int:
        """Returns how many batches there are; raises TypeError where that shows only at the end."""
        if self.batches is None:
            raise TypeError(f"{self.name}: length unknown")
        return self.batches

    @property
    def batches(self) -> int | None:
        """How many batches there are, None where that shows only at the end."""
        if self.samples is None:
            return None
        used = self.samples - self.left_out
        return -(-used // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (batch for _, batch in self.numbered())

    def numbered(
        self, skip: Collection[int] = frozenset()
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yields the batches with their numbers, but those to skip, which are not read."""
        for number, parts in enumerate(self._parts()):
            if number not in skip:
                yield number, self._assembled(parts)

    def _parts(self) -> Iterator[list[SampleRange]]:
        """Yields what each batch is put together from."""
        parts: list[SampleRange] = []
        missing = self.batch_size
        left = self.limit
        for piece in self._pieces:
            at = 0
            while at < piece.samples and left != 0:
                count = min(missing, piece.samples - at, missing if left is None else left)
                parts.append(SampleRange(piece, at, at + count))
                at += count
                missing -= count
                left = None if left is None else left - count
                if missing == 0:
                    yield parts
                    parts, missing = [], self.batch_size
            if left == 0:
                break
        # A last batch that is not full is left out where the model insists on its size.
        if parts and self._fixed is None:
            yield parts

    def digest(self) -> str:
        """Returns a hash over all batches as the model gets them; reads the data once.

        Data that can be read only once are distinguished by their name alone.
        """
        return digest_of(f"{self.batch_size}", self._pieces.identity, self)

    def _assembled(self, parts: list[SampleRange]) -> dict[str, Array]:
        """Returns one batch; what it was put together from is dropped before the batch is used."""
        batch = self._assemble(parts)
        parts.clear()
        return batch

    def _assemble(self, parts: Sequence[SampleRange]) -> dict[str, Array]:
        """Returns one batch out of parts of pieces, in the model's dtypes."""
        batch: dict[str, Array] = {}
        for name, spec in self.inputs.items():
            if not spec.shape:
                batch[name] = self._number(parts, name)
                continue
            arrays = []
            for piece, start, stop in parts:
                array = piece.inputs[name].read(start, stop)
                converted = convert_dtype(array, spec.dtype)
                refuse_nan(converted, start, f"{piece.where}: input {name!r}")
                arrays.append(converted)
            require_same_rows(arrays, parts, name)
            batch[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return batch

    def _number(self, parts: Sequence[SampleRange], name: str) -> Array:
        """Returns the number that all samples of a batch share; raises DataError where theirs
        differ."""
        found = [piece.inputs[name].read(0, 1) for piece, _, _ in parts]
        if any(f.tobytes() != found[0].tobytes() for f in found):
            where = f"{parts[0][0].where}: input {name!r}"
            raise DataError(f"{where} is one number, and other samples have another: use `batch=1`")
        converted = convert_dtype(found[0], self.inputs[name].dtype)
        refuse_nan(converted, 0, f"{parts[0][0].where}: input {name!r}")
        return converted.reshape(())


class FilePieces:
    """Samples in one .npy or .npz file, or in all of a folder in the order of their names."""

    identity: str | None = None

    def __init__(self, path: Path, inputs: Mapping[str, InputSpec]) -> None:
        self.name = str(path)
        self._inputs = inputs
        self._files = data_files(path)
        self._samples = sum(self._open(file).samples for file in self._files)

    def __iter__(self) -> Iterator[Piece]:
        return map(self._open, self._files)

    def samples(self) -> int:
        return self._samples

    def _open(self, file: Path) -> Piece:
        return make_piece(str(file), open_file(file), self._inputs)


class ItemPieces:
    """Samples or batches as Python gives them: arrays, or mappings of names to arrays."""

    def __init__(
        self, items: Iterable[Item], inputs: Mapping[str, InputSpec], name: str = "data"
    ) -> None:
        self.name = name
        # Hashing its contents would use an iterator up, so a stream goes by its name.
        self.identity = None if isinstance(items, Sequence) else f"stream {name}"
        self._items = items
        self._inputs = inputs
        self._samples = (
            sum(piece.samples for piece in self) if isinstance(items, Sequence) else None
        )

    def __iter__(self) -> Iterator[Piece]:
        for index, item in enumerate(self._items):
            where = f"{self.name}[{index}]"
            named = named_arrays(item, self._inputs)
            arrays: dict[str, ArrayRows] = {}
            for name, value in named.items():
                array = as_array(value, where, name)
                arrays[name] = MemoryRows(array)
            yield make_piece(where, arrays, self._inputs)

    def samples(self) -> int | None:
        return self._samples


def data_files(path: Path) -> Sequence[Path]:
    """Returns the file, or those of the folder in the order of their names; DataError without
    any."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_dir():
        # Batches are numbered in this order, and the order of `iterdir` differs between file
        # systems.
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        if not files:
            raise DataError(f"{path}: no .npy or .npz file in this folder, and no image")
        return files
    if path.suffix not in (".npy", ".npz"):
        raise DataError(
            f"{path}: not an .npy or .npz file, nor a folder of them, nor images, .jsonl or .csv"
        )
    return [path]


def open_file(file: Path) -> Mapping[str, ArrayRows]:
    """Returns the arrays of a file by name; that of an .npy file has the name ''."""
    return {"": open_npy(file)} if file.suffix == ".npy" else open_npz(file)


def digest_of(head: str, identity: str | None, batches: Iterable[Mapping[str, Array]]) -> str:
    """Returns a hash over batches, or over their identity where they cannot be read more than
    once."""
    state = hashlib.blake2b(head.encode(), digest_size=16)
    if identity is not None:
        state.update(identity.encode())
        return state.hexdigest()
    for batch in batches:
        # The order of a mapping is the caller's, and changes no number.
        for name in sorted(batch):
            array = np.ascontiguousarray(batch[name])
            state.update(f"{name} {array.dtype} {array.shape}".encode())
            if array.dtype == object:  # texts, of any length
                state.update(Held.of(array).digest.encode())
            else:
                state.update(array.reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def open_data(
    data: Data,
    inputs: Mapping[str, InputSpec],
    *,
    batch: int | None = None,
    limit: int | None = None,
    name: str = "data",
    preprocess: Preprocess | str | Path | None = None,
) -> DataSource:
    """Opens a file or folder, an array, a mapping of names to arrays, or many of these.

    `batch` defaults to the model's own fixed size, else 32. An iterator can be read once only; its
    `name` identifies it. `preprocess`, or its file, is for folders of images. Raises DataError for
    data that do not fit, UsageError for sizes below one.
    """
    if isinstance(preprocess, str | Path):
        preprocess = read_preprocess(preprocess)
    pieces: Pieces
    if isinstance(data, str | Path):
        pieces = path_pieces(Path(data), inputs, preprocess)
    elif preprocess is not None:
        raise UsageError("preprocess is for a folder of images")
    elif is_array(data) or isinstance(data, Mapping):
        pieces = ItemPieces([data], inputs, name)
    elif isinstance(data, Iterable):
        pieces = ItemPieces(data, inputs, name)
    else:
        kind = type(data).__name__
        raise DataError(f"data are {kind}: not an array, a file, or an iterable of arrays")
    return DataSource(pieces, inputs, batch, limit)


def path_pieces(
    path: Path, inputs: Mapping[str, InputSpec], preprocess: Preprocess | None
) -> Pieces:
    """Returns the samples of a file or a folder: arrays, images, or lines of numbers."""
    if images.holds_images(path):
        return images.ImagePieces(path, inputs, preprocess)
    if preprocess is not None:
        raise UsageError(f"{path}: --preprocess is for images, and these are none")
    if path.suffix.lower() in tokens.SUFFIXES and path.is_file():
        return tokens.LinePieces(path, inputs)
    return FilePieces(path, inputs)


def named_arrays(item: Item, inputs: Mapping[str, InputSpec]) -> Mapping[str, Array | ArrayLike]:
    """Returns the arrays of an item by name; one alone has none.

    A tuple holds arrays in the order of the inputs, as a DataLoader gives them; so does a list that
    is no array itself. What is left over is ignored, such as labels.
    """
    if isinstance(item, Mapping):
        return item
    if isinstance(item, (tuple, list)) and item and all(map(is_array, item)):
        # A list of arrays of one shape may be one array, row by row; arrays of other shapes cannot
        # be.
        alike = len({np.shape(part) for part in item}) == 1
        if isinstance(item, tuple) or len(inputs) > 1 or not alike:
            return dict(zip(inputs, item, strict=False))
    return {"": item}  # type: ignore[dict-item]


def is_array(part: object) -> TypeGuard[Array | ArrayLike]:
    """Returns whether it is an array, or what NumPy makes one of."""
    return hasattr(part, "__array__") and hasattr(part, "shape")


def as_array(value: Array | ArrayLike, where: str, name: str) -> Array:
    """Returns what Python gave as an array; raises DataError when it is none of numbers."""
    what = f"{where}: input {name!r}" if name else where
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # PyTorch's of a tensor with a gradient
        raise DataError(f"{what}: not an array: {error}") from None
    refuse_objects(array.dtype, what)
    return array


def convert_dtype(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Converts elements to the model's type; strings become objects, bytes are decoded as UTF-8."""
    return decode_texts(array) if array.dtype.kind in "SU" else array.astype(dtype, copy=False)


def refuse_nan(array: Array, start: int, where: str) -> None:
    """Raises DataError when there is a NaN, saying in which sample and where."""
    if array.dtype.kind not in "fV":
        return
    bad = np.isnan(array)
    if bad.any():
        first = [int(i) for i in np.argwhere(bad)[0]]
        first[0] += start
        count = int(bad.sum())
        raise DataError(f"{where} has NaN at {first}, {count} in this batch: leave the sample out")


def refuse_infinite(array: Array, where: str) -> None:
    """Raises DataError when a number is infinite, saying where; a mask of 0 and -inf is let be."""
    if array.dtype.kind not in "fV" or np.isfinite(array).all():
        return
    bad = np.isinf(array)
    # Attention masks are such inputs.
    if ((array == 0) | (array == -np.inf)).all():
        return
    first = [int(i) for i in np.argwhere(bad)[0]]
    raise DataError(
        f"{where} has an infinite number at {first}, {int(bad.sum())} in this batch: "
        "leave the sample out, or clip it"
    )


def require_same_rows(arrays: Sequence[Array], parts: Sequence[SampleRange], name: str) -> None:
    """Raises DataError when samples of different shapes would have to share a batch."""
    for array, (piece, _, _) in zip(arrays, parts, strict=True):
        if array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"{piece.where}: input {name!r} has samples of shape {list(array.shape[1:])}, "
                f"{parts[0][0].where} of {list(arrays[0].shape[1:])}: use a batch of 1"
            )


def fixed_batch(inputs: Mapping[str, InputSpec]) -> int | None:
    """Returns the batch size that the inputs insist on; raises DataError when they disagree."""
    found: int | None = None
    for name, spec in inputs.items():
        size = spec.shape[0] if spec.shape else None
        if size is None:
            continue
        if found not in (None, size):
            problem = f"input {name!r} takes {size} samples at a time, another {found}"
            raise DataError(f"{problem}; {HINT}")
        found = size
    return found


def first_batch(
    data: Data,
    inputs: Mapping[str, InputSpec],
    most: int,
    *,
    batch: int | None = None,
    limit: int | None = None,
    preprocess: Preprocess | str | Path | None = None,
) -> dict[str, Array] | None:
    """Returns the first samples as inputs of one run, at most so many unless the model's batch is
    fixed.

    None where they fill no batch; DataError as `DataSource` has it.
    """
    # A model of a fixed batch size takes no fewer samples than that.
    few = fixed_batch(inputs) or min(limit or most, most)
    return next(iter(open_data(data, inputs, batch=batch, limit=few, preprocess=preprocess)), None)
