"""The statistics of a calibration run: summaries by tensor and channel axis, and which batches."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.arguments import checked
from qir.calibration import header, store
from qir.calibration.record import (
    MAX_BATCHES,
    BatchId,
    Key,
    Log,
    StatisticsContents,
    StatisticsEntry,
    Trace,
    sort_key,
)
from qir.calibration.summary import Extremes, Summary
from qir.errors import DataError


class Batch:
    """The statistics of one batch while the program runs on it."""

    def __init__(self) -> None:
        self.summaries: dict[Key, Summary] = {}

    def update(self, tensor: str, array: NDArray[np.generic], axis: int | None = None) -> Summary:
        """Adds one tensor's values and returns what the batch holds of it by now.

        All updates of one tensor in a batch count as one, such as the iterations of a loop.
        DataError names the tensor when the array cannot be summed up.
        """
        key = Key(tensor, axis)
        summary = self.summaries.get(key)
        if summary is None:
            summary = self.summaries[key] = Summary(axis)
        try:
            summary.update(array)
        except DataError as error:
            raise DataError(f"tensor {tensor}: {error}") from None
        return summary

    def update_axes(
        self, tensor: str, array: NDArray[np.generic], axes: Collection[int | None]
    ) -> int:
        """Adds one tensor's values for several axes; returns how many of the batch are NaN."""
        by_channel = [self.update(tensor, array, axis) for axis in axes if axis is not None]
        if not by_channel:
            return self.update(tensor, array).nan if axes else 0
        # Values are read once: what the whole tensor holds, its channels hold too.
        if None in axes:
            self.summaries[Key(tensor)] = by_channel[0].whole()
        return by_channel[0].nan


class Statistics(Mapping[Key, Summary]):
    """Ranges and histograms of the tensors of one model, over a set of batches.

    Equal for the same batches whatever their order, as are the bytes that `save` writes. Batches
    may be added from several threads, and saved at any time: every method holds the lock for as
    long as it reads or changes what the statistics hold, packing included.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.source = ""
        """The file they were read from, if they were."""
        self.unfinished = False
        """Whether that file was left by a run that did not come to its end."""
        self._summaries: dict[Key, Summary] = {}
        self._traces: dict[Key, Trace] = {}
        self._done: dict[BatchId, int] = {}
        self._lock = threading.RLock()

    def __getitem__(self, key: Key) -> Summary:
        """Returns the summary of one tensor, which grows with each batch that is added."""
        with self._lock:
            return self._summaries[key]

    def __iter__(self) -> Iterator[Key]:
        with self._lock:
            return iter(sorted(self._summaries, key=sort_key))

    def __len__(self) -> int:
        with self._lock:
            return len(self._summaries)

    def __repr__(self) -> str:
        with self._lock:
            found = f"{len(self._summaries)} tensors, {len(self._done)} batches"
        return f"<Statistics: {found}{', unfinished' if self.unfinished else ''}>"

    @property
    def batches(self) -> tuple[BatchId, ...]:
        """Every batch that is included, in the order of the data."""
        with self._lock:
            return tuple(sorted(self._done))

    def done(self, data: str) -> frozenset[int]:
        """Returns which batches of these data are included."""
        with self._lock:
            return frozenset(batch.number for batch in self._done if batch.data == data)

    @contextmanager
    @checked
    def batch(self, data: str, number: int) -> Iterator[Batch]:
        """Collects one batch, which is included as a whole at the end, or not at all after an
        error.

        Raises DataError when it is included already, has other channels than batches before, or is
        one too many.
        """
        batch = BatchId(data, number)
        with self._lock:
            self._require_new([batch])
        collected = Batch()
        yield collected
        with self._lock:
            # Asked again, since another thread may have included the same batch while this one ran.
            self._require_new([batch])
            self._require_mergeable(collected.summaries)
            arrival = self._done[batch] = len(self._done)
            self._add(collected.summaries)
            for key, summary in collected.summaries.items():
                self._traces[key].append(arrival, Extremes(*summary.extremes))

    @checked
    def merge(self, other: Statistics) -> None:
        """Includes the batches of another run of the same model; an error changes nothing.

        Raises DataError when the models differ, a batch is in both, or a tensor has other channels.
        """
        first, second = sorted((self, other), key=id)  # one order, so that no two threads deadlock
        with first._lock, second._lock:
            self.require_model(other.model)
            self._require_new(other._done)
            self._require_mergeable(other._summaries)
            before = len(self._done)
            self._done.update((batch, before + n) for batch, n in other._done.items())
            self._add(other._summaries)
            for key, trace in other._traces.items():
                # Batches of the other run follow in the order of arrival, so their numbers are
                # shifted.
                mine = self._traces[key]
                mine.batch.extend(before + arrival for arrival in trace.batch)
                mine.low.extend(trace.low)
                mine.high.extend(trace.high)

    def derived(self, more: Mapping[Key, tuple[Summary, Key]]) -> Statistics:
        """Returns these statistics with more summaries, each with the key of its source.

        Existing summaries stay shared.
        """
        with self._lock:
            copy = Statistics(self.model)
            copy.source, copy._done = self.source, dict(self._done)
            copy._summaries, copy._traces = dict(self._summaries), dict(self._traces)
            for key, (summary, source) in more.items():
                copy._summaries[key] = summary
                # The log of each batch's extremes is scaled as the summary was.
                log = self._traces[source].stretched(self._summaries[source], summary)
                copy._traces[key] = log
            return copy

    def log(self, key: Key) -> Log:
        """Returns the extremes of one tensor batch by batch; raises KeyError when it was not
        watched."""
        with self._lock:
            return self._traces[key].log(tuple(self._done))

    def require_model(self, model: str) -> None:
        """Raises DataError when the statistics are another model's."""
        if self.model != model:
            raise DataError(
                f"{self._where}the statistics are of model {self.model}, not of {model}: "
                "calibrate this one to a file of its own"
            )

    def require_only(self, data: str, count: int | None = None) -> None:
        """Raises DataError when batches of other data are included than these, which have so
        many."""
        # Statistics of several data sets may be merged, but a run can be resumed only on its own.
        for batch in self.batches:
            if batch.data != data:
                raise DataError(
                    f"{self._where}the statistics include other data, or the same in another "
                    "batch size or limit: give the same three again, or calibrate to another file"
                )
            if count is not None and batch.number >= count:
                raise DataError(
                    f"{self._where}the statistics include batch {batch.number}, the data have "
                    f"{count}: calibrate to another file"
                )

    def require_among(self, keys: Collection[Key]) -> None:
        """Raises DataError when tensors are included that are not among those that will be
        watched."""
        for key in self:
            if key not in keys:
                named = header.shown(key.tensor) + (
                    "" if key.axis is None else f" by axis {key.axis}"
                )
                raise DataError(
                    f"{self._where}the statistics include tensor {named}, which this run does not "
                    "watch: calibrate to another file"
                )

    @property
    def _where(self) -> str:
        return f"{self.source}: " if self.source else ""

    @property
    def digest(self) -> str:
        """Returns a hash of all that was seen; equal statistics have equal ones."""
        return hashlib.blake2b(self._packed(), digest_size=16).hexdigest()

    @checked
    def save(self, path: str | Path, *, unfinished: bool = False) -> None:
        """Writes everything to a file by rename; raises InputError when it cannot be written.

        The bytes are equal for equal statistics. `unfinished` says that more batches are to come.
        """
        store.write(self._packed(unfinished=unfinished), Path(path))

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Statistics:
        """Reads what `save` wrote; raises InputError for other or damaged files."""
        contents = store.read(Path(path))
        statistics = cls(contents.model)
        statistics.source, statistics.unfinished = str(path), contents.unfinished
        statistics._done = {batch: number for number, batch in enumerate(contents.batches)}
        for key, summary, trace in contents.entries:
            statistics._summaries[key], statistics._traces[key] = summary, trace
        return statistics

    def _packed(self, *, unfinished: bool = False) -> bytes:
        """Returns the bytes of the file, of one moment: summaries and traces change under the lock
        only."""
        with self._lock:
            entries = tuple(StatisticsEntry(key, self[key], self._traces[key]) for key in self)
            return store.pack(
                StatisticsContents(self.model, tuple(self._done), entries, unfinished)
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return self._packed() == other._packed()

    __hash__ = None  # type: ignore[assignment]

    def _add(self, summaries: Mapping[Key, Summary]) -> None:
        for key, summary in summaries.items():
            if key not in self._summaries:
                self._summaries[key], self._traces[key] = Summary(key.axis), Trace()
            self._summaries[key].merge(summary)

    def _require_new(self, batches: Collection[BatchId]) -> None:
        for batch in batches:
            if batch in self._done:
                raise DataError(f"batch {batch.number} of data {batch.data} is already included")
        if len(self._done) + len(batches) > MAX_BATCHES:
            raise DataError(f"statistics hold at most {MAX_BATCHES} batches: use larger ones")

    def _require_mergeable(self, summaries: Mapping[Key, Summary]) -> None:
        for key, summary in summaries.items():
            if key in self._summaries:
                try:
                    self._summaries[key].require_mergeable(summary)
                except DataError as error:
                    raise DataError(f"tensor {key.tensor}: {error}") from None
