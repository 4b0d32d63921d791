"""The calibration run: batches through a program, its tensors into statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qir.calibration.data import InputSpec, Source
from qir.calibration.record import Key
from qir.calibration.statistics import Batch, Statistics
from qir.errors import DataError

Array = NDArray[np.generic]
Observe = Callable[[str, Array], None]


class Program(Protocol):
    """What can be calibrated: something that runs, and shows its tensors as it goes."""

    @property
    def digest(self) -> str:
        """A hash of the model: statistics of one are refused for another."""
        ...

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """What it takes, by name."""

    def run(self, inputs: Mapping[str, Array], observe: Observe) -> None:
        """Run once, calling `observe` with tensor id and value for every tensor.

        Called from several threads at once where more than one is asked for.
        """
        ...


def collect(
    program: Program,
    source: Source,
    watch: Collection[Key],
    *,
    resume: Statistics | None = None,
    checkpoint: Path | None = None,
    every: int = 16,
    progress: Callable[[int, int | None], None] | None = None,
    threads: int = 1,
) -> Statistics:
    """Run a program on all batches that `resume` does not include yet, and return the statistics.

    They are equal whatever `threads` is and however often the run was resumed. With `checkpoint`
    they are saved after every so many batches and at the end. DataError when a tensor has a NaN,
    when `resume` is of another model or other data, and for what the source finds.
    """
    data = source.digest()
    statistics = resume if resume is not None else Statistics(program.digest)
    statistics.require_model(program.digest)
    statistics.require_only(data, source.batches)
    statistics.require_among(watch)
    axes: dict[str, list[int | None]] = {}
    for key in watch:
        axes.setdefault(key.tensor, []).append(key.axis)

    def one(number: int, inputs: Mapping[str, Array]) -> None:
        with statistics.batch(data, number) as batch:
            where = f"batch {number} of {source.name}"
            program.run(inputs, lambda tensor, array: observe(batch, tensor, array, where))

    def observe(batch: Batch, tensor: str, array: Array, where: str) -> None:
        for axis in axes.get(tensor, ()):
            refuse_nan(batch.update(tensor, array, axis).nan, tensor, array, where)

    def finished() -> None:
        count = len(statistics.batches)
        if checkpoint is not None and count % every == 0:
            statistics.save(checkpoint, unfinished=True)
        if progress is not None:
            progress(count, source.batches)

    done = statistics.done(data)
    if progress is not None:
        progress(len(done), source.batches)
    if threads == 1:
        for number, inputs in source.numbered(done):
            one(number, inputs)
            finished()
    else:
        with ThreadPoolExecutor(threads) as pool:
            running: set[Future[None]] = set()
            for number, inputs in source.numbered(done):
                running.add(pool.submit(one, number, inputs))
                if len(running) >= threads:  # so many batches are in memory and no more
                    running = take(running, finished)
            while running:
                running = take(running, finished)
    if checkpoint is not None:
        statistics.save(checkpoint)
    return statistics


def take(running: set[Future[None]], finished: Callable[[], None]) -> set[Future[None]]:
    """Wait for one or more, report them, and return those that still run; raises what they did."""
    ended, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in ended:
        future.result()
        finished()
    return rest


def refuse_nan(count: int, tensor: str, array: Array, where: str) -> None:
    """DataError when there are NaN, naming the tensor: its range would mean nothing."""
    if count:
        raise DataError(
            f"tensor {tensor}: {count} of {array.size} values are NaN in {where}: "
            "the model cannot be calibrated with these data"
        )
