"""Statistics that several threads fill while they are saved, merged and read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.calibration import Batch, InputSpec, Key, Statistics, collect, open_data

Array = NDArray[np.generic]
DATA = np.random.default_rng(0).standard_normal((120, 3)).astype(np.float32)
BATCH, COUNT = 2, 60
FACTORS = range(1, 9)
WATCH = (*(Key(f"t{factor}") for factor in FACTORS), Key("t1", 1))


@pytest.fixture(autouse=True)
def _tiny_switch_interval() -> Iterator[None]:
    """Lets Python switch threads between almost any two instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Multiples:
    """Shows whole multiples of its input: exact up to one rounding, which NumPy does alike."""

    digest = "multiples"
    inputs = {"x": InputSpec((None, 3), np.dtype(np.float32))}  # noqa: RUF012

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        for factor in FACTORS:
            observe(f"t{factor}", np.multiply(inputs["x"], np.float32(factor)))


def require_exact(statistics: Statistics) -> None:
    """Compares what is included with NumPy's values of exactly the batches that are listed."""
    numbers = [batch.number for batch in statistics.batches]
    rows = DATA.reshape(COUNT, BATCH, 3)[numbers]
    for factor in FACTORS if numbers else ():
        wanted = rows * np.float32(factor)
        summary, log = statistics[Key(f"t{factor}")], statistics.log(Key(f"t{factor}"))
        assert summary.count == summary.finite == int(summary.bins.sum()) == wanted.size
        assert summary.extremes.tolist() == [wanted.min(), wanted.max()]
        assert [batch.number for batch in log.batches] == numbers
        assert log.low.tolist() == wanted.min((1, 2)).tolist()
        assert log.high.tolist() == wanted.max((1, 2)).tolist()


def test_any_number_of_threads_gives_the_same_bytes_and_sound_checkpoints(tmp_path: Path) -> None:
    whole = b""
    for threads in (1, 2, 4, 9):
        path = tmp_path / f"{threads}.stats"
        seen: set[int] = set()

        def check(done: int, total: int | None, path: Path = path, seen: set[int] = seen) -> None:
            if path.exists():
                saved = Statistics.load(path)
                require_exact(saved)
                seen.add(len(saved.batches))

        data = open_data(DATA, Multiples.inputs, batch=BATCH)
        made = collect(
            Multiples(), data, WATCH, checkpoint=path, every=0, threads=threads, progress=check
        )
        require_exact(made)
        assert max(seen) == COUNT
        whole = whole or path.read_bytes()
        assert path.read_bytes() == whole, f"{threads} threads"


def show(batch: Batch, tensor: str, array: Array) -> None:
    batch.update(tensor, array)


def fill(statistics: Statistics, numbers: range) -> None:
    for number in numbers:
        with statistics.batch("data", number) as batch:
            rows = DATA.reshape(COUNT, BATCH, 3)[number]
            Multiples().run({"x": rows}, lambda tensor, array: show(batch, tensor, array))


def test_statistics_are_read_and_merged_while_they_grow(tmp_path: Path) -> None:
    growing, other = Statistics("multiples"), Statistics("multiples")

    def read(i: int) -> None:
        growing.save(tmp_path / f"{i % 2}")
        require_exact(Statistics.load(tmp_path / f"{i % 2}"))
        for key in growing:
            assert growing.log(key).low.size <= len(growing.batches)

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(fill, growing, range(i, 30, 3)) for i in range(3)]
        jobs += [pool.submit(fill, other, range(30, COUNT))]
        jobs += [pool.submit(read, i) for i in range(10)]
        for job in jobs:
            job.result()
    with ThreadPoolExecutor(2) as pool:  # each into the other: one is refused, neither deadlocks
        both = [pool.submit(growing.merge, other), pool.submit(other.merge, growing)]
        assert sum(job.exception(timeout=60) is not None for job in both) == 1
    merged = growing if len(growing.batches) == COUNT else other
    assert len(merged.batches) == COUNT
    require_exact(merged)
