"""Statistics of a run: merging, files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qir.calibration import Key, Statistics
from qir.errors import DataError, InputError
from tests.calibration.naive import KINDS, values


def tensors(seed: int) -> dict[Key, NDArray[np.float32]]:
    """What one batch shows of three tensors, one of them by channel, one not in every batch."""
    rng = np.random.default_rng(seed)
    found = {
        Key("a"): values(rng, str(rng.choice(KINDS)), int(rng.integers(0, 500))),
        Key("b", 1): rng.standard_normal((2, 3, 5)).astype(np.float32),
    }
    if seed % 3:
        found[Key("sometimes")] = values(rng, "relu", 10)
    return found


def add(statistics: Statistics, number: int, data: str = "data") -> None:
    with statistics.batch(data, number) as batch:
        for key, array in tensors(number).items():
            batch.update(key.tensor, array, key.axis)


def run(*numbers: int, data: str = "data") -> Statistics:
    statistics = Statistics("model")
    for number in numbers:
        add(statistics, number, data)
    return statistics


def bytes_of(statistics: Statistics, folder: Path) -> bytes:
    path = folder / "s.qirstats"
    statistics.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return bytes_of(run(*range(12)), tmp_path_factory.mktemp("whole"))


@given(
    order=st.permutations(range(12)),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    data=st.data(),
)
def test_any_order_and_grouping_of_batches_saves_the_same_bytes(
    whole: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    order: list[int],
    cuts: list[int],
    data: st.DataObject,
) -> None:
    bounds = [0, *sorted(cuts), 12]
    parts = [run(*order[a:b]) for a, b in pairwise(bounds)]
    while len(parts) > 1:
        other = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts[data.draw(st.integers(0, len(parts) - 1))].merge(other)
    assert bytes_of(parts[0], tmp_path_factory.getbasetemp()) == whole


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_leave_no_trace(whole: bytes, tmp_path: Path, threads: int) -> None:
    statistics = Statistics("model")
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: add(statistics, number), range(12)))
    assert bytes_of(statistics, tmp_path) == whole


@pytest.mark.parametrize("isa", ["scalar", "avx2", "best"])
def test_processes_instruction_sets_and_hash_seeds_leave_no_trace(
    whole: bytes, tmp_path: Path, isa: str
) -> None:
    script = (
        "from tests.calibration.test_statistics import *\n"
        f"print(hashlib.sha256(bytes_of(run(*range(12)), Path({str(tmp_path)!r}))).hexdigest())"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "QIR_ISA": isa, "PYTHONHASHSEED": str(len(isa))},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.strip() == hashlib.sha256(whole).hexdigest()


def test_a_file_reads_back_as_it_was_and_goes_on(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s"
    run(*range(5)).save(path)
    statistics = Statistics.load(path)
    assert statistics == run(*range(5))
    assert statistics != run(*range(6))
    assert list(statistics) == [Key("a"), Key("b", 1), Key("sometimes")]
    assert statistics.done("data") == frozenset(range(5))
    assert statistics.done("other") == frozenset()
    for number in range(5, 12):
        add(statistics, number)
    assert bytes_of(statistics, tmp_path) == whole


def test_the_log_is_in_the_order_of_the_data() -> None:
    statistics = run(5, 1, 4, 2)
    log = statistics.log(Key("sometimes"))
    arrays = [tensors(number)[Key("sometimes")] for number in (1, 2, 4, 5)]
    assert [batch.number for batch in log.batches] == [1, 2, 4, 5]
    assert log.low.tolist() == [array.min() for array in arrays]
    assert log.high.tolist() == [array.max() for array in arrays]


def test_updates_of_one_tensor_in_one_batch_count_as_one() -> None:
    statistics = Statistics("model")
    with statistics.batch("data", 0) as batch:
        for value in (3.0, -1.0, 2.0):
            batch.update("loop", np.array([value]))
    log = statistics.log(Key("loop"))
    assert (log.low.tolist(), log.high.tolist()) == ([-1], [3])
    assert statistics[Key("loop")].count == 3


def test_several_axes_at_once_are_as_one_after_the_other() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        together, apart = Statistics("m"), Statistics("m")
        for number in range(3):
            with together.batch("d", number) as one, apart.batch("d", number) as other:
                for _ in range(2):  # as the rounds of a loop
                    x = values(rng, str(rng.choice(KINDS)), 24).reshape(4, 3, 2)
                    x[rng.random(x.shape) < 0.05] = np.nan
                    missing = one.update_axes("x", x, [None, 1])
                    assert missing == other.update("x", x, 1).nan == other.update("x", x).nan
                    assert one.update_axes("y", x, [None]) == other.update("y", x).nan
                    assert one.update_axes("z", x, []) == 0
        assert together == apart, f"seed {seed}"


def test_a_batch_without_finite_values_is_not_logged() -> None:
    statistics = Statistics("model")
    with statistics.batch("data", 0) as batch:
        batch.update("t", np.array([np.inf]))
    assert statistics.log(Key("t")).low.size == 0
    assert statistics[Key("t")].above == 1


def test_a_batch_that_fails_leaves_nothing_behind() -> None:
    statistics = run(0)

    def stop() -> None:
        with statistics.batch("data", 1) as batch:
            batch.update("a", np.ones(3))
            raise RuntimeError("the program stopped")

    def grow() -> None:
        with statistics.batch("data", 1) as batch:
            batch.update("a", np.ones(3))
            batch.update("b", np.ones((2, 4)), 1)

    with pytest.raises(RuntimeError):
        stop()
    assert statistics == run(0)
    with pytest.raises(DataError, match="tensor b: axis 1 has 4 channels, in other batches 3"):
        grow()
    assert statistics == run(0)


def test_the_same_batch_or_another_model_is_refused() -> None:
    statistics = run(0, 1)
    with pytest.raises(DataError, match="batch 1 of data data is already included"):
        add(statistics, 1)
    with pytest.raises(DataError, match="batch 1 of data data is already included"):
        statistics.merge(run(1, 2))
    with pytest.raises(DataError, match="of model model, not of other"):
        statistics.merge(Statistics("other"))
    with pytest.raises(DataError, match="include other data"):
        statistics.require_only("elsewhere")
    assert statistics == run(0, 1)
    statistics.merge(run(1, data="elsewhere"))
    assert len(statistics.batches) == 3


def refusal(path: Path) -> str:
    """What is said of a file that is not read."""
    try:
        Statistics.load(path)
    except InputError as error:
        return str(error)
    return ""


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    content = bytes_of(run(0, 1), tmp_path)
    rng = np.random.default_rng(0)
    size = int.from_bytes(content[:8], "little")
    for spot in [*range(0, 8 + size, 7), *rng.integers(0, len(content), 300).tolist()]:
        bad = bytearray(content)
        bad[spot] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        said = refusal(path)
        if said:
            assert said.startswith(str(path))
            assert len(said.splitlines()) == 1
            assert len(said) < 240
        else:  # padding of the header may change without a change of meaning
            assert Statistics.load(path) == run(0, 1), f"byte {spot}"
    for length in [0, 1, 7, 8, 100, *range(200, len(content), 1009), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(InputError):
            Statistics.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    def refused(path: Path, said: str) -> None:
        with pytest.raises(InputError, match=said):
            Statistics.load(path)

    refused(tmp_path / "missing", "no such file")
    refused(tmp_path, "cannot be read|not a file")
    path = tmp_path / "s"
    save_file({"x": np.ones(3)}, path)
    refused(path, "holds no calibration statistics")
    save_file({"x": np.ones(3)}, path, {"qir": "{}"})
    refused(path, "damaged statistics")
    save_file({"x": np.ones(3)}, path, {"qir": "[" * 100000})
    refused(path, "damaged statistics")
    head = json.dumps({"format": "qir.statistics", "version": 99})
    save_file({"x": np.ones(3)}, path, {"qir": json.dumps({"head": head, "digest": ""})})
    refused(path, "format version 99, this QIR reads up to 2")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s"
    run(0).save(path)
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444 & ~current_umask()
    with pytest.raises(InputError, match=r"cannot write .*missing/s: No such file"):
        run(0).save(tmp_path / "missing" / "s")
    limited = (
        "import resource, signal\n"
        "from tests.calibration.test_statistics import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"  # then a write says that it failed
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    run(0, 1).save({str(path)!r})\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"cannot write {path}: File too large" in done.stdout
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_run_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Statistics("model").save(path)
    assert Statistics.load(path) == Statistics("model")
    assert len(Statistics.load(path)) == 0
