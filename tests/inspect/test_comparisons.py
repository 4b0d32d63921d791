"""Comparisons, ranges and timings, against arithmetic done here."""

import math
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.calibration import Statistics
from qir.errors import DataError
from qir.inspect import compare, environment, ranges, time_interleaved, timing
from tests.inspect.programs import INTEGER, QDQ, program

Results = dict[str, NDArray[np.generic]]


def test_equal_bytes_are_equal() -> None:
    a: Results = {"f": np.array([1.0, np.nan], np.float32), "s": np.array([3, 4], np.uint8)}
    found = compare(program(INTEGER), a, {name: array.copy() for name, array in a.items()})
    assert [(d.name, d.elements, d.differ, d.equal) for d in found] == [
        ("f", 2, 0, True),
        ("s", 2, 0, True),
    ]


def test_integers_that_differ_are_counted_with_how_far() -> None:
    a: Results = {"f": np.zeros(4, np.float32), "s": np.array([3, 4, 250, 7], np.uint8)}
    b: Results = {"f": np.zeros(4, np.float32), "s": np.array([3, 6, 2, 7], np.uint8)}
    s = compare(program(INTEGER), a, b)[1]
    assert (s.differ, s.largest, s.codes, s.equal) == (2, 248.0, 248.0, False)


def test_floats_that_come_from_integers_differ_by_integers() -> None:
    graph = program(QDQ.replace("output(s=%s)", "output(p=%pd)"))
    a, b = np.array([[1.5, 2.0]], np.float32), np.array([[1.5, 3.5]], np.float32)
    (p,) = compare(graph, {"p": a}, {"p": b})
    assert (p.differ, p.largest, p.codes) == (1, 1.5, 3.0)


def test_a_zero_and_its_negative_differ_in_their_bytes() -> None:
    a, b = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    found = compare(program(INTEGER), {"f": a, "s": a}, {"f": b, "s": a})
    assert (found[0].differ, found[0].largest, found[0].codes) == (1, 0.0, None)


def test_infinite_differences_are_json() -> None:
    a, b = np.array([np.inf], np.float32), np.array([1.0], np.float32)
    found = compare(program(INTEGER), {"f": a, "s": a}, {"f": b, "s": a})[0]
    assert found.largest == math.inf
    assert found.to_json()["largest"] is None


@pytest.mark.parametrize(
    ("b", "message"),
    [
        ({"s": np.zeros(2, np.uint8)}, "other outputs"),
        ({"f": np.zeros(3, np.float32), "s": np.zeros(2, np.uint8)}, r"output f: .*\[2\].*\[3\]"),
        ({"f": np.zeros(2), "s": np.zeros(2, np.uint8)}, "float32 .* float64"),
    ],
)
def test_results_of_other_forms_cannot_be_compared(b: Results, message: str) -> None:
    a: Results = {"f": np.zeros(2, np.float32), "s": np.zeros(2, np.uint8)}
    with pytest.raises(DataError, match=message):
        compare(program(INTEGER), a, b)


def test_ranges_are_those_of_the_data() -> None:
    seed = 3
    data = np.random.default_rng(seed).normal(1, 2, (5, 7, 3)).astype(np.float32)
    data[0, :2] = 0
    made = Statistics("model")
    for i, part in enumerate(data):
        with made.batch("data", i) as batch:
            batch.update("b", part)
            batch.update("b", part, 1)
            batch.update("a", np.array([np.inf, 2.0], np.float32))
    a, b = ranges(made)
    assert (a.tensor, a.count, a.low, a.high, a.infinite, a.channels) == ("a", 10, 2.0, 2.0, 5, 0)
    assert (b.tensor, b.count, b.channels, b.zeros) == ("b", data.size, 3, 6), f"seed {seed}"
    assert (b.low, b.high) == (data.min(), data.max()), f"seed {seed}"
    assert b.mean == pytest.approx(data.astype(float).mean(), rel=1e-6), f"seed {seed}"
    assert b.deviation == pytest.approx(data.astype(float).std(), rel=1e-6), f"seed {seed}"


def test_timings_take_turns_and_keep_their_order() -> None:
    calls: list[str] = []

    def slow() -> None:
        calls.append("slow")
        time.sleep(0.002)

    told: list[tuple[int, int]] = []
    fast, second = time_interleaved(
        {"fast": lambda: calls.append("fast"), "slow": slow},
        5,
        warm=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert calls == ["fast", "slow"] * 7
    assert told == [(i, 7) for i in range(1, 8)]
    assert (fast.name, len(fast.seconds), fast.ratio) == ("fast", 5, 1.0)
    assert second.least >= 0.002
    quotients = [s / f for s, f in zip(second.seconds, fast.seconds, strict=True)]
    assert second.ratio == statistics.median(quotients)
    assert second.median == statistics.median(second.seconds)
    assert set(second.to_json()) == {"name", "runs", "median", "least", "spread", "ratio"}


def test_turns_of_several_threads_begin_when_those_of_others_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, spins_until, begun = 0.0, 0.0, []

    class Clock:
        """Moves by sleeping alone; a thread computes until `spins_until`."""

        @staticmethod
        def perf_counter() -> float:
            return now

        @staticmethod
        def process_time() -> float:
            return min(now, spins_until)

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

    def leaves_a_thread() -> None:
        nonlocal now, spins_until
        begun.append(("spins", now >= spins_until))
        now += 0.001
        spins_until = now + 0.05

    def sleeps() -> None:
        nonlocal now
        begun.append(("sleeps", now >= spins_until))
        now += 0.001

    monkeypatch.setattr(timing, "time", Clock)
    time_interleaved({"spins": leaves_a_thread, "sleeps": sleeps}, 2, warm=0, threads=2)
    turn = [("spins", True), ("spins", False), ("sleeps", True), ("sleeps", True)]
    assert begun == turn * 2  # the second call of each is measured, its own threads awake
    now, spins_until = 0.0, 99.0
    timing.settle(0.5)
    assert now == pytest.approx(0.5, abs=0.01), "it waits for nobody who never sleeps"


def test_the_environment_knows_what_is_installed() -> None:
    found = environment("1.2.3")
    assert found.qir == "1.2.3"
    assert found.frameworks["onnx"] is not None
    assert found.frameworks["mxnet"] is None or isinstance(found.frameworks["mxnet"], str)
    plugins = {(p.kind, p.name): p for p in found.plugins}
    assert plugins["targets", "cpu"].fault == ""
    assert found.threads >= 1
    assert found.isa[-1] == "scalar"
    told = found.to_json()
    assert told["kernels"] == f"best first: {', '.join(found.isa)}"
    assert "scalar" not in found.features or not Path("/proc/cpuinfo").exists()
    assert ("avx2" in found.features) >= ("avx2" in found.isa)
