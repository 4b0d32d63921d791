"""The calibration run: resuming, threads, progress, and what stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.calibration import DataSource, InputSpec, Key, Statistics, collect, open_data
from qir.calibration.data import Data
from qir.errors import DataError, UsageError

Array = NDArray[np.generic]
WATCH = (Key("x"), Key("y"), Key("y", 1))
DATA = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)


class Twice:
    """A program that doubles its input; y is exact, so expected values need no tolerance."""

    digest = "twice"

    def __init__(self, wait: float = 0.0) -> None:
        self.inputs = {"x": InputSpec((None, 3), np.dtype(np.float32))}
        self.runs = 0
        self._wait = wait
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        with self._lock:
            self.runs += 1
        time.sleep(self._wait)
        observe("x", inputs["x"])
        observe("unwatched", np.full(3, np.nan))
        observe("y", np.multiply(inputs["x"], np.float32(2)))


def source(data: Data = DATA) -> DataSource:
    return open_data(data, Twice().inputs, batch=4)


def test_everything_that_is_watched_is_summed_up() -> None:
    statistics = collect(Twice(), source(), WATCH)
    assert list(statistics) == sorted(WATCH, key=str)
    assert statistics[Key("y")].extremes.tolist() == [2 * DATA.min(), 2 * DATA.max()]
    assert statistics[Key("y", 1)].channel_high.tolist() == (2 * DATA.max(0)).tolist()
    assert statistics[Key("x")].count == DATA.size
    log = statistics.log(Key("x"))
    assert log.low.tolist() == [DATA[i : i + 4].min() for i in range(0, 50, 4)]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing_and_hold_few_batches(threads: int, tmp_path: Path) -> None:
    collect(Twice(), source(), WATCH, checkpoint=tmp_path / "one")
    collect(Twice(0.001), source(), WATCH, checkpoint=tmp_path / "many", threads=threads)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


def test_no_threads_are_refused() -> None:
    with pytest.raises(UsageError, match="threads 0: give at least 1"):
        collect(Twice(), source(), WATCH, threads=0)


def test_a_run_that_stopped_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    path, whole = tmp_path / "s", tmp_path / "whole"
    collect(Twice(), source(), WATCH, checkpoint=whole)

    def stop(done: int, total: int | None) -> None:
        assert total == 13
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(Twice(), source(), WATCH, checkpoint=path, progress=stop)
    saved = Statistics.load(path)
    assert saved.unfinished
    assert len(saved.batches) == 7
    program, seen = Twice(), []
    collect(
        program,
        source(),
        WATCH,
        resume=saved,
        checkpoint=path,
        progress=lambda *at: seen.append(at),
    )
    assert program.runs == 6
    assert seen == [(done, 13) for done in range(7, 14)]
    assert path.read_bytes() == whole.read_bytes()


class Interrupted(Twice):
    """Is interrupted after so many batches, as if by Ctrl-C."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self._before = before

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        if self.runs == self._before:
            observe("x", inputs["x"])
            raise KeyboardInterrupt
        super().run(inputs, observe)


@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupted_run_saves_whole_batches_if_there_are_any(
    before: int, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(Interrupted(before), source(), WATCH, checkpoint=tmp_path / "s")
    if not before:
        assert not list(tmp_path.iterdir())
        return
    saved = Statistics.load(tmp_path / "s")
    assert saved.unfinished
    assert [batch.number for batch in saved.batches] == [0, 1]
    assert saved[Key("x")].count == DATA[:8].size


def test_a_killed_process_leaves_a_file_to_go_on_from(tmp_path: Path) -> None:
    path, whole = tmp_path / "s", tmp_path / "whole"
    script = (
        "from tests.calibration.test_collect import *\n"
        f"collect(Twice(0.02), source(), WATCH, checkpoint=Path({str(path)!r}), every=0)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    saved = Statistics.load(path)
    assert 0 < len(saved.batches) < 13
    collect(Twice(), source(), WATCH, resume=saved, checkpoint=path)
    collect(Twice(), source(), WATCH, checkpoint=whole)
    assert path.read_bytes() == whole.read_bytes()


def test_two_machines_with_half_of_the_data_each_merge() -> None:
    one = collect(Twice(), source(DATA[:24]), WATCH)
    two = collect(Twice(), source(DATA[24:]), WATCH)
    whole = collect(Twice(), source(), WATCH)
    one.merge(two)
    for key in WATCH:
        assert one[key] == whole[key]


def test_statistics_of_another_model_or_other_data_are_refused() -> None:
    statistics = collect(Twice(), source(), WATCH)
    program = Twice()
    program.digest = "thrice"
    with pytest.raises(DataError, match="of model twice, not of thrice"):
        collect(program, source(), WATCH, resume=statistics)
    with pytest.raises(DataError, match="include other data"):
        collect(Twice(), source(DATA + 1), WATCH, resume=statistics)


class Broken(Twice):
    """Divides by zero in the middle."""

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        observe("x", inputs["x"])
        observe("y", np.multiply(inputs["x"], np.array([1, np.nan, 1], np.float32)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_tensor_with_nan_is_named_and_stops_the_run(threads: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tensor y: 4 of 12 values are NaN in batch [01] of data"):
        collect(Broken(), source(), WATCH, checkpoint=tmp_path / "s", threads=threads)
    assert not (tmp_path / "s").exists()


def test_data_from_a_stream_are_run_once() -> None:
    program = Twice()
    seen: list[tuple[int, int | None]] = []
    statistics = collect(program, source(iter(DATA)), WATCH, progress=lambda *at: seen.append(at))
    assert program.runs == len(statistics.batches) == 13
    assert seen[-1] == (13, None)
