"""The calibration run: batches through a program, its tensors into statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qir.calibration.data import refuse_infinite
from qir.calibration.pieces import InputSpec
from qir.calibration.record import Key
from qir.calibration.statistics import Batch, Statistics
from qir.errors import DataError, Stopped, UsageError

Array = NDArray[np.generic]
Observe = Callable[[str, Array], None]
CHECKPOINT_SECONDS = 5.0
"""After so long a checkpoint is saved."""


class Batches(Protocol):
    """What a program is run on: a `Source` of samples, or `Feeds`."""

    name: str

    @property
    def batches(self) -> int | None:
        """How many there are, None where that shows only at the end."""
        ...

    def numbered(self, skip: Collection[int]) -> Iterator[tuple[int, dict[str, Array]]]:
        """Returns the batches with their numbers, but those to skip."""
        ...

    def digest(self) -> str:
        """Returns a hash over all batches."""
        ...


class Calibratable(Protocol):
    """What can be calibrated: something that runs, and shows its tensors as it goes."""

    @property
    def digest(self) -> str:
        """A hash of the model: statistics of one are refused for another."""
        ...

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """What it takes, by name."""

    def run(self, inputs: Mapping[str, Array], observe: Observe) -> None:
        """Runs once, calling `observe` with tensor id and value for every tensor.

        It is called from threads of the run, from several at once where more than one is asked for.
        """
        ...


def collect(
    program: Calibratable,
    source: Batches,
    watch: Collection[Key],
    *,
    resume: Statistics | None = None,
    fitting: bool = False,
    checkpoint: Path | None = None,
    every: float | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    threads: int = 1,
) -> Statistics:
    """Runs a program on all batches that `resume` lacks, and returns the statistics.

    They are equal for any `threads` and any number of resumed runs. With `checkpoint` they are
    saved every `every` seconds (5 by default), on interruption, and at the end. Raises DataError
    for a tensor with NaN, for data that do not fit, and for `resume` of another model or other
    data; with `fitting` the latter is ignored.
    """
    if threads < 1:
        raise UsageError(f"threads {threads}: give at least 1")
    # The digest identifies the batches, so that a resumed run skips those that it has.
    data = source.digest()
    every = CHECKPOINT_SECONDS if every is None else every
    statistics = resume if resume is not None else Statistics(program.digest)
    try:
        statistics.require_model(program.digest)
        statistics.require_only(data, source.batches)
        statistics.require_among(watch)
    except DataError:
        # With `fitting` old statistics are a cache: what does not fit is collected anew.
        if not fitting:
            raise
        statistics = Statistics(program.digest)
    run = _CalibrationRun(program, source, data, watch, statistics)
    saved = time.monotonic()
    done = statistics.done(data)
    if progress is not None:
        progress(len(done), source.batches)
    try:
        with closing(run.batches(done, threads)) as counts:
            for count in counts:
                if checkpoint is not None and time.monotonic() - saved >= every:
                    statistics.save(checkpoint, unfinished=True)
                    saved = time.monotonic()
                if progress is not None:
                    progress(count, source.batches)
    except (KeyboardInterrupt, Stopped):
        # An interrupted run is saved too, unless it has nothing that a later run could resume.
        if checkpoint is not None and statistics.batches:
            statistics.save(checkpoint, unfinished=True)
        raise
    if checkpoint is not None:
        statistics.save(checkpoint)
    return statistics


class _CalibrationRun:
    """Batches of a source through a program, in threads.

    None runs in the main thread, where Ctrl-C could come while a batch is half included.
    """

    def __init__(
        self,
        program: Calibratable,
        source: Batches,
        data: str,
        watch: Collection[Key],
        statistics: Statistics,
    ) -> None:
        self._program = program
        self._source = source
        self._data = data
        self._statistics = statistics
        self._interrupted = threading.Event()
        self._axes: dict[str, list[int | None]] = {}
        for key in watch:
            self._axes.setdefault(key.tensor, []).append(key.axis)

    def batches(self, done: Collection[int], threads: int) -> Generator[int, None, None]:
        """Runs those that are not done, and yields how many are included, after each.

        So many batches are in memory as there are threads, and no more. What a batch raises is
        raised here; batches that still run then stop at their next tensor, and are not included.
        """
        with ThreadPoolExecutor(threads) as pool:
            try:
                running: set[Future[None]] = set()
                for number, inputs in self._source.numbered(done):
                    # Threads inherit the context, which says for which processor profiles hold.
                    running.add(pool.submit(copy_context().run, self._one, number, inputs))
                    del inputs  # or it would stay while the next batch is read
                    if len(running) >= threads:
                        running, ended = _wait_for_some(running)
                        yield from self._counts(ended)
                while running:
                    running, ended = _wait_for_some(running)
                    yield from self._counts(ended)
            except BaseException:
                # Batches that still run check this event at each tensor.
                self._interrupted.set()
                raise

    def _counts(self, ended: Iterable[Future[None]]) -> Iterator[int]:
        for future in ended:
            future.result()
            yield len(self._statistics.batches)

    def _one(self, number: int, inputs: Mapping[str, Array]) -> None:
        # Infinite inputs are refused before the run, where the error can still name the input.
        where = f"batch {number} of {self._source.name}"
        for name, array in inputs.items():
            refuse_infinite(np.asarray(array), f"{where}: input {name!r}")
        with self._statistics.batch(self._data, number) as batch:
            self._program.run(inputs, lambda tensor, array: self._see(batch, tensor, array, where))

    def _see(self, batch: Batch, tensor: str, array: Array, where: str) -> None:
        if self._interrupted.is_set():
            raise Stopped
        nan = batch.update_axes(tensor, array, self._axes.get(tensor, ()))
        refuse_nan(nan, tensor, array, where)


def _wait_for_some(running: set[Future[None]]) -> tuple[set[Future[None]], set[Future[None]]]:
    """Waits for one or more, and gives those that still run, and those that ended."""
    ended, rest = wait(running, return_when=FIRST_COMPLETED)
    return rest, ended


def refuse_nan(count: int, tensor: str, array: Array, where: str) -> None:
    """Raises DataError when there are NaN, naming the tensor: its range would mean nothing."""
    if count:
        raise DataError(
            f"tensor {tensor}: {count} of {array.size} values are NaN in {where}: "
            "the model cannot be calibrated with these data"
        )
