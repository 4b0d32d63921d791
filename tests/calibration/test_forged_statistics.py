"""Statistics files whose contents are wrong under a digest that is right."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qir.calibration import Key, Statistics, collect, open_data
from qir.errors import DataError, InputError
from tests import fuzz
from tests.fuzzing import statistics as files

Head = dict[str, Any]
Arrays = dict[str, files.Array]
DATA = np.arange(36, dtype=np.float32).reshape(12, 3) - 9
SEED = random.SystemRandom().randrange(2**32)


def made(path: Path) -> Statistics:
    """The statistics of six batches, saved as unfinished."""
    source = open_data(DATA, files.SPECS, batch=2)
    statistics = collect(files.Program(), source, files.WATCH)
    statistics.save(path, unfinished=True)
    return statistics


def forge(path: Path, change: Callable[[Head, Arrays], object]) -> None:
    head, arrays = files.unsealed(path.read_bytes())
    change(head, arrays)
    path.write_bytes(files.sealed(head, arrays))


def spans(head: Head, *wanted: list[int]) -> None:
    (data,) = head["batches"]
    head["batches"][data] = list(wanted)


def number(head: Head, tensor: str) -> int:
    return [each["tensor"] for each in head["tensors"]].index(tensor)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h, a: spans(h, [0, 10**9]), "it lists 1000000000 batches, statistics hold at most"),
        (lambda h, a: spans(h, [0, 2**20], [2**21, 2**21 + 1]), "it lists 1048577 batches"),
        (lambda h, a: h.update(batches={}), "names a batch that is not among the 0 listed"),
        (lambda h, a: spans(h, [0, 5]), "names a batch that is not among the 5 listed"),
        (lambda h, a: spans(h, [0, 3], [2, 6]), "batches 2 to 6 are out of order, or listed twice"),
        (lambda h, a: spans(h, [0, 3], [3, 6]), "batches 3 to 6 are out of order, or listed twice"),
        (lambda h, a: spans(h, [3, 0]), r"\[3, 0\] is no interval of batches"),
        (lambda h, a: spans(h, [-1, 6]), r"\[-1, 6\] is no interval of batches"),
        (lambda h, a: h["tensors"].reverse(), "not in order, or one is listed twice"),
        (
            lambda h, a: h["tensors"].append(h["tensors"][-1]),
            "not in order, or one is listed twice",
        ),
        (lambda h, a: h["tensors"].pop(), "holds more than the tensors of the header"),
        (lambda h, a: a["log.batch"].fill(0), "out of order, or listed twice"),
        (lambda h, a: a.pop("bins"), "the file has no 'bins'"),
        (lambda h, a: a.update(bins=a["bins"].astype(np.float64)), "array bins is float64"),
        (lambda h, a: a["bins"].fill(2**63), "the bins do not add up to the count"),
        (
            lambda h, a: h["tensors"][-1].update(total=hex(1 << 600)),
            "the sum does not fit the bins",
        ),
        (lambda h, a: h["tensors"][-1].update(squares="-0x1"), "of squares does not fit the bins"),
        (lambda h, a: h["tensors"][-1].update(axis=10**9), "axis is 1000000000"),
        (lambda h, a: h.update(version=True), "format version true, this QIR reads up to 2"),
        (lambda h, a: h.update(model="m" * 129), "model is 'mmm"),
        (lambda h, a: h.update(more=1), "the header has an unknown field 'more'"),
    ],
)
def test_what_no_run_writes_is_refused(
    tmp_path: Path, change: Callable[[Head, Arrays], object], said: str
) -> None:
    made(tmp_path / "s")
    forge(tmp_path / "s", change)
    with pytest.raises(InputError, match=f"s: damaged statistics: .*{said}"):
        Statistics.load(tmp_path / "s")


def test_no_file_makes_a_reader_take_memory_without_end(tmp_path: Path) -> None:
    made(tmp_path / "s")
    forge(tmp_path / "s", lambda head, arrays: spans(head, [0, 10**12]))
    script = (
        "import resource, sys\n"
        "from qir.calibration import Statistics\n"
        "from qir.errors import InputError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        f"    Statistics.load({str(tmp_path / 's')!r})\n"
        "except InputError:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 50_000  # KB


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h, a: spans(h, [1, 7]), "include batch 6, the data have 6"),
        (lambda h, a: spans(h, [0, 5], [100, 101]), "include batch 100, the data have 6"),
        (lambda h, a: h.update(model="other"), "of model other, not of program"),
        (lambda h, a: h.update(batches={"other": [[0, 6]]}), "include other data"),
        (
            lambda h, a: h["tensors"][number(h, "y")].update(tensor="z"),
            "include tensor 'z', which this run does not watch",
        ),
    ],
)
def test_a_run_does_not_go_on_with_what_is_not_its_own(
    tmp_path: Path, change: Callable[[Head, Arrays], object], said: str
) -> None:
    made(tmp_path / "s")
    forge(tmp_path / "s", change)
    source = open_data(DATA, files.SPECS, batch=2)
    with pytest.raises(DataError, match=f"s: the statistics (are )?{said}"):
        collect(files.Program(), source, files.WATCH, resume=Statistics.load(tmp_path / "s"))


def test_statistics_that_are_full_take_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qir.calibration.statistics.MAX_BATCHES", 2)
    statistics, other = Statistics("m"), Statistics("m")
    for each, numbers in ((statistics, (0, 1)), (other, (2,))):
        for n in numbers:
            with each.batch("data", n) as batch:
                batch.update("t", np.ones(1))
    with (
        pytest.raises(DataError, match="hold at most 2 batches"),
        statistics.batch("data", 5),
    ):
        pass
    with pytest.raises(DataError, match="hold at most 2 batches"):
        statistics.merge(other)
    assert len(statistics.batches) == 2
    assert statistics[Key("t")].count == 2


def test_random_changes_are_refused_clearly_or_harmless(tmp_path: Path) -> None:
    for number_ in range(300):
        said = fuzz.attempt("statistics", SEED, number_, tmp_path)
        assert not said, f"--seed {SEED} --case statistics:{number_}\n{said}"


def as_version_1(head: Head, arrays: Arrays) -> None:
    """Takes what version 2 added out of a file."""
    head["version"] = 1
    arrays.pop("channel.sum")
    for tensor in head["tensors"]:
        del tensor["sums"]


def test_files_of_version_1_load_and_leave_sums_of_channels_unknown(tmp_path: Path) -> None:
    whole = made(tmp_path / "s")
    forge(tmp_path / "s", as_version_1)
    old = Statistics.load(tmp_path / "s")
    for key, summary in whole.items():
        assert old[key].counts().tolist() == summary.counts().tolist()
        assert old[key].channel_high.tolist() == summary.channel_high.tolist()
    assert whole[Key("x", 1)].channel_mean is not None
    assert old[Key("x", 1)].channel_mean is None
    old.save(tmp_path / "again")
    assert Statistics.load(tmp_path / "again") == old


def test_sums_stay_unknown_when_files_of_both_versions_are_merged(tmp_path: Path) -> None:
    made(tmp_path / "s")
    forge(tmp_path / "s", as_version_1)
    halves = [Statistics("program"), Statistics("program")]
    for number, half in enumerate(halves):
        with half.batch("other", number) as batch:
            batch.update("x", DATA[2 * number : 2 * number + 2], 1)
    first, second = Statistics.load(tmp_path / "s"), Statistics.load(tmp_path / "s")
    first.merge(halves[0])
    first.merge(halves[1])
    halves[1].merge(second)
    halves[1].merge(halves[0])
    assert first == halves[1]
    assert first[Key("x", 1)].channel_mean is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h, a: a["channel.sum"].fill(127), "sum of a channel does not fit its extremes"),
        (lambda h, a: h.update(version=1), "version is 1"),
        (lambda h, a: [t.update(sums=2) for t in h["tensors"]], "2 sums of 0 channels"),
        (lambda h, a: h["tensors"][-1].update(sums=-1), "sums is -1"),
    ],
)
def test_sums_that_no_run_writes_are_refused(
    tmp_path: Path, change: Callable[[Head, Arrays], object], said: str
) -> None:
    made(tmp_path / "s")
    forge(tmp_path / "s", change)
    with pytest.raises(InputError, match=said):
        Statistics.load(tmp_path / "s")
