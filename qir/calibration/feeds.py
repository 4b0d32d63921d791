"""Complete inputs of single runs, as `InferenceSession.run` takes them.

Nothing is cut along an axis or joined, so samples may be on any axis, be of any length, and share
inputs that have none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from qir.calibration.data import (
    Data,
    Item,
    as_array,
    convert_dtype,
    data_files,
    digest_of,
    is_array,
    named_arrays,
    open_file,
    refuse_nan,
)
from qir.calibration.pieces import InputSpec, arrays_for_inputs, fits_shape, rows_of_dtype
from qir.calibration.rows import Array, ArrayRows, MemoryRows
from qir.errors import DataError, UsageError

Found = tuple[str, Mapping[str, ArrayRows]]
"""Where a feed is from, and its arrays."""


class FeedReader(Protocol):
    """Where feeds come from."""

    name: str
    identity: str | None
    """Identifies feeds that can be read only once; None for all others."""
    count: int | None
    """How many there are, where that can be known before the end."""

    def __iter__(self) -> Iterator[Found]: ...


class Feeds:
    """Complete inputs for the runs of one model; iterating gives one mapping for each.

    DataError for what does not fit, naming the file, the input and the shapes.
    """

    def __init__(
        self, reader: FeedReader, inputs: Mapping[str, InputSpec], limit: int | None = None
    ) -> None:
        self.name = reader.name
        self.inputs = inputs
        self._reader = reader
        self._limit = limit
        if not inputs:
            raise DataError(f"{self.name}: the model has no inputs to feed")
        if limit is not None and limit < 1:
            raise UsageError(f"sample limit {limit}: give at least 1")
        if reader.count == 0:
            raise DataError(f"{self.name}: no feeds")

    @property
    def batches(self) -> int | None:
        """How many runs there are, None where that shows only at the end."""
        count = self._reader.count
        return count if count is None or self._limit is None else min(count, self._limit)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (feed for _, feed in self.numbered())

    def numbered(
        self, skip: Collection[int] = frozenset()
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yields the feeds with their numbers, but those to skip, which are not read."""
        # Numbers count those that are skipped as well: a resumed run knows its feeds by them.
        for number, (where, arrays) in enumerate(islice(self._reader, self._limit)):
            if number not in skip:
                yield number, self._complete(where, arrays)

    def digest(self) -> str:
        """Returns a hash over all feeds as the model gets them; reads the data once.

        Feeds that can be read only once are distinguished by their name alone.
        """
        return digest_of("feeds", self._reader.identity, self)

    def _complete(self, where: str, arrays: Mapping[str, ArrayRows]) -> dict[str, Array]:
        feed = {}
        for name, rows in arrays_for_inputs(where, arrays, self.inputs).items():
            spec, what = self.inputs[name], f"{where}: input {name!r}"
            meant = rows_of_dtype(rows, spec, what)
            shape = meant.shape
            if len(shape) != len(spec.shape) or not fits_shape(shape, spec.shape):
                raise DataError(f"{what} takes {spec}, the feed has shape {list(shape)}")
            # A scalar is read as one row; it has no first axis.
            array = convert_dtype(meant.read(0, shape[0] if shape else 1), spec.dtype)
            refuse_nan(np.atleast_1d(array), 0, what)
            feed[name] = array
        return feed


class FileFeeds:
    """One .npz file, or each of a folder in the order of their names; .npy for a single input."""

    identity: str | None = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.files = data_files(path)
        self.count: int | None = len(self.files)

    def __iter__(self) -> Iterator[Found]:
        return ((str(file), open_file(file)) for file in self.files)


class ItemFeeds:
    """Feeds as Python gives them: mappings of names to arrays, tuples of arrays in the order of the
    inputs, or arrays for a single input."""

    def __init__(self, items: Iterable[Item], inputs: Mapping[str, InputSpec], name: str) -> None:
        self.name = name
        self._inputs = inputs
        # Hashing would use an iterator up, so it is identified by its name.
        self.identity = None if isinstance(items, Sequence) else f"stream {name}"
        self.count = len(items) if isinstance(items, Sequence) else None
        self._items = items

    def __iter__(self) -> Iterator[Found]:
        for index, item in enumerate(self._items):
            where = f"{self.name}[{index}]"
            named = named_arrays(item, self._inputs)
            yield where, {n: MemoryRows(as_array(value, where, n)) for n, value in named.items()}


def open_feeds(
    data: Data,
    inputs: Mapping[str, InputSpec],
    *,
    limit: int | None = None,
    name: str = "feeds",
) -> Feeds:
    """Opens a file, a folder of files, a mapping of names to arrays, or many of these.

    An iterator can be read once only; its `name` identifies it. Raises DataError for data that do
    not fit, UsageError for a limit below one.
    """
    if isinstance(data, str | Path):
        return Feeds(FileFeeds(Path(data)), inputs, limit)
    # One array or one mapping is iterable as well, and is one feed.
    if is_array(data) or isinstance(data, Mapping):
        return Feeds(ItemFeeds([data], inputs, name), inputs, limit)
    if isinstance(data, Iterable):
        return Feeds(ItemFeeds(data, inputs, name), inputs, limit)
    kind = type(data).__name__
    raise DataError(f"feeds are {kind}: not a file, nor an iterable of mappings of arrays")
