"""Programmers' mistakes: each is refused with one exception, or does what was meant."""

import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels import _codes, _cpu, _environment
from qir._kernels._cpu import EXTERNAL, Plan
from qir._kernels._statistics import Tally
from tests import fuzz

from .test_plan import network

F32 = np.float32
ROOT = Path(__file__).parents[2]


def ended(code: str, seconds: int = 60) -> None:
    """Runs code in a process of its own, which may neither crash nor stand still."""
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_random_mistakes_are_refused_or_understood(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(random.SystemRandom().randrange(2**32))
    found = fuzz.main(["--count", "2000", "--seed", seed, "--kind", "kernels"])
    assert found == 0, capsys.readouterr().out


def lookup(size: object) -> Plan:
    plan = Plan(0, [(EXTERNAL, 12), (EXTERNAL, 12)])
    plan.lookup("l", 0, 1, size=size, table=np.arange(256).astype(np.uint8))  # type: ignore[arg-type]
    return plan


def dequantized(shape: object) -> Plan:
    plan = Plan(0, [(EXTERNAL, 300), (EXTERNAL, 1200)])
    plan.dequantize("d", 0, 1, shape=shape, scale=1, zero=0)  # type: ignore[arg-type]
    return plan


@pytest.mark.parametrize(
    "shape",
    [np.array([20, 15], np.uint8), iter([20, 15]), np.array([20, 15], np.int32), [np.int8(100), 3]],
)
def test_a_shape_may_be_an_array_or_an_iterator(shape: object) -> None:
    x, y = np.arange(300).astype(np.uint8), np.zeros(300, F32)
    dequantized(shape).run([x, y])
    assert np.array_equal(y, x.astype(F32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dequantized(np.array([20, 16], np.uint8)), "x is buffer 0 of 300 bytes, 320 are"),
        (lambda: dequantized(iter([20, 16])), "x is buffer 0 of 300 bytes, 320 are needed"),
        (lambda: dequantized(np.array([2**16, 2**16], np.int32)), "4294967296 are needed"),
        (lambda: dequantized((2**62, 4)), "4611686018427387904, 4.*; 281474976710656 is the most"),
        (lambda: dequantized((2.5, 2)), "shape is .2.5, 2., not a list of integers"),
        (lambda: dequantized(None), "shape is None, not a list of integers"),
        (lambda: dequantized(iter(int, 1)), "shape has more than 64 numbers"),
        (lambda: lookup(np.int32(2**31 - 1)), "x is buffer 0 of 12 bytes, 2147483647 are needed"),
        (lambda: lookup(10**30), "size is 10{30}; 281474976710656 is the most possible"),
        (lambda: lookup("12"), "size is '12', not an integer"),
        (lambda: Plan(-64, []), "arena is -64; 0 is the least possible"),
        (lambda: Plan(64, [(0, -1)]), "buffer 0 of -1 bytes at 0 does not lie in the arena"),
        (lambda: Plan(64, [(0,)]), "a buffer has 1 numbers, 2 are needed"),  # type: ignore[list-item]
        (lambda: lookup(12).run([np.zeros(12, np.uint8), None]), "array 1 is None, not an array"),  # type: ignore[list-item]
        (
            lambda: Plan(0, [(EXTERNAL, 8)]).run([np.zeros(1, object)]),
            "array 0 is object, whose elements are no plain bytes",
        ),
        (
            lambda: Plan(0, []).call("c", print, [(0, np.dtype(object), (1,))], []),
            "operand 0 is object, whose elements are no plain bytes",
        ),
    ],
)
def test_sizes_and_arrays_that_cannot_be_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Larger(np.ndarray[Any, Any]):
    """Reports more bytes than it has."""

    nbytes = 12


def test_the_size_of_a_subclass_is_that_of_its_memory() -> None:
    with pytest.raises(ValueError, match="array 1 has 2 bytes"):
        lookup(12).run([np.zeros(12, np.uint8), np.zeros(2, np.uint8).view(Larger)])
    y = np.zeros(12, np.uint8).view(Larger)
    lookup(12).run([np.arange(12).astype(np.uint8), y])
    assert y.tolist() == list(range(12))


def test_a_refused_step_leaves_nothing() -> None:
    """As a buffer marked as written: read-only arrays would be refused."""
    plan = Plan(0, [(EXTERNAL, 4)])
    with pytest.raises(ValueError, match="value is 256; 255 is the most possible"):
        plan.fill("f", 0, size=4, value=256)
    with pytest.raises(ValueError, match="no storage type 'u9'"):
        plan.quantize("q", 0, 0, shape=(1,), scale=1, zero=0, y_type="u9")  # type: ignore[arg-type]
    still = np.zeros(4, np.uint8)
    still.flags.writeable = False
    plan.run([still])
    assert plan.steps == []


def test_a_plan_is_made_once() -> None:
    plan, x, expected = network()
    plan.__init__(0, [])  # type: ignore[misc]
    y = np.zeros((2, 7), F32)
    plan.run([x, y])
    assert np.array_equal(y, expected)
    with pytest.raises(TypeError):
        Plan.__new__(Plan)


def test_steps_of_nothing_end() -> None:
    ended("""
        import numpy as np
        from qir._kernels._cpu import Plan
        plan, most = Plan(64, [(0, 64), (0, 64)]), 2**48
        plan.copy("a", 0, 1, rows=most, width=0, x_stride=0, y_stride=0)
        plan.add("b", 0, 0, 1, shape=(most, most, 0), a_gain=1, b_gain=1, offset=0, broadcast="a")
        plan.softmax("c", 0, 1, rows=most, width=0, x_scale=1, y_scale=1, y_zero=0)
        plan.quantize("d", 0, 1, shape=(most, 0, 2, 2), scale=1, zero=0, nhwc=True)
        plan.max_pool2d("e", 0, 1, shape=(most, 1, 1, 0), kernel=(1, 1))
        scales = {"x_scale": 1, "x_zero": 0, "y_scale": 1, "y_zero": 0}
        plan.global_avg_pool("f", 0, 1, shape=(most, 1, 1, 0), **scales)
        plan.transpose("g", 0, 1, shape=(most, 0, most), perm=(2, 1, 0))
        weight, one = np.ones((8, 1, 3, 3), np.int8), np.ones(1, np.float32)
        plan.conv2d("h", 0, 1, weight, None, one, shape=(0, 2**40, 2**40, 8), groups=8)
        plan.conv2d("i", 0, 1, weight, None, one, shape=(1, 3, 0, 8), pad=(0, 1, 0, 2), groups=8)
        plan.run([], threads=2)
    """)


# -- plans that run, and threads ------------------------------------------------------------------


def nested(use: Callable[[Plan], object]) -> list[str]:
    """What a step is told that uses its own plan."""
    told: list[str] = []
    plan = Plan(16, [(0, 16)])

    def step(x: NDArray[np.uint8]) -> None:
        with pytest.raises(ValueError, match="a step of a plan may not use that plan") as error:
            use(plan)
        told.append(str(error.value))

    plan.call("step", step, [(0, np.dtype(np.uint8), (16,))], [])
    plan.run([])
    plan.fill("more", 0, size=16, value=1)  # the plan lives on
    plan.run([])
    assert len(plan.steps) == 2
    return told


@pytest.mark.parametrize(
    "use",
    [
        lambda plan: plan.run([]),
        lambda plan: plan.fill("f", 0, size=16, value=0),
        lambda plan: plan.profile(),
    ],
)
def test_a_step_may_not_use_its_own_plan(use: Callable[[Plan], object]) -> None:
    assert len(nested(use)) == 2


def test_a_step_may_run_another_plan() -> None:
    inner, x, expected = network()
    y = np.zeros((2, 7), F32)
    plan = Plan(0, [])
    plan.call("inner", lambda: inner.run([x, y], threads=2), [], [])
    plan.run([], threads=2)
    assert np.array_equal(y, expected)


def test_steps_that_another_thread_adds_wait_for_the_run() -> None:
    plan, inside, added = Plan(16, [(0, 16)]), threading.Event(), threading.Event()
    seen = []

    def step(x: NDArray[np.uint8]) -> None:
        inside.set()
        seen.append(added.wait(0.2))

    plan.call("step", step, [(0, np.dtype(np.uint8), (16,))], [])
    runner = threading.Thread(target=plan.run, args=([],))
    runner.start()
    assert inside.wait(60)
    for i in range(64):
        plan.fill(f"fill {i}", 0, size=16, value=i)
    added.set()
    runner.join()
    assert seen == [False]
    assert len(plan.steps) == 65


def test_a_child_forked_while_another_thread_runs_the_plan_runs_it() -> None:
    ended("""
        import os, threading
        import numpy as np
        from qir._kernels._cpu import Plan
        plan = Plan(16, [(0, 16)])
        inside, leave = threading.Event(), threading.Event()
        parent = os.getpid()
        def step(x):
            if os.getpid() == parent:
                inside.set()
                leave.wait(60)
        plan.call("step", step, [(0, np.dtype(np.uint8), (16,))], [])
        runner = threading.Thread(target=plan.run, args=([],))
        runner.start()
        inside.wait(60)
        child = os.fork()
        if child == 0:
            others = [threading.Thread(target=plan.run, args=([],)) for _ in range(3)]
            for other in others: other.start()
            for other in others: other.join()
            plan.fill("fill", 0, size=16, value=0)
            plan.run([], threads=2)
            os._exit(len(plan.steps))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        leave.set()
        runner.join()
        assert status == 2, status
        assert len(plan.steps) == 1
    """)


def test_a_child_that_a_step_forks_ends_its_run() -> None:
    ended("""
        import os
        from qir._kernels._cpu import Plan
        plan, seen = Plan(16, [(0, 16)]), []
        plan.call("fork", lambda: seen.append(os.fork()), [], [])
        plan.fill("fill", 0, size=16, value=0)
        plan.run([], threads=2)
        plan.profile()
        if seen == [0]:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(seen[0], 0)[1]) == 7
    """)


# -- integers and statistics
# -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "inner", "run", "count"),
    [
        ([0] * 4, 2**62, 2**62, 1),
        ([0], 2**63 - 1, 2, 1),
        ([0], 1, 1, 2**62),
        ([0], 2**63 - 1, 2**63 - 1, 2**63 - 1),
    ],
)
def test_rows_of_sizes_that_cannot_be_are_refused(
    first: list[int], inner: int, run: int, count: int
) -> None:
    with pytest.raises(ValueError, match=r"rows? .* parameter"):
        _codes.Rows(np.array(first, np.int64), inner, run, count)


def test_rows_keep_what_was_checked() -> None:
    first = np.zeros(2, np.int64)
    rows = _codes.Rows(first, 2, 2, 1)
    first[:] = 1 << 40
    quantized, y = np.arange(4, dtype=np.uint8), np.zeros(16, np.uint8)
    _codes.decode(
        quantized, y, rows, wide=False, carrier="u1", scale=np.ones(1, F32).view(np.uint8)
    )
    assert y.view(F32).tolist() == [0, 1, 2, 3]


def test_data_that_is_none_is_refused() -> None:
    tables = np.zeros(256, np.uint8)
    for call in (
        lambda: _codes.lookup(None, tables, tables, itemsize=1, entry=1),  # type: ignore[arg-type]
        lambda: _codes.pack(tables, None, 4, bits=4, itemsize=1, is_signed=False),  # type: ignore[arg-type]
        lambda: _codes.recode(tables, None, bits=8, itemsize=1, from_signed=False, to_signed=True),  # type: ignore[arg-type]
        lambda: _codes.Rows(None, 1, 1, 1),  # type: ignore[arg-type]
        lambda: Tally().add(None),  # type: ignore[arg-type]
        lambda: Tally.restore(None, None, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="None"):
            call()


def test_threads_may_share_a_tally() -> None:
    tally, other = Tally(), Tally()
    rng = np.random.default_rng(7)
    batches = [(rng.normal(size=40_000) * 4.0**i).astype(F32) for i in range(12)]

    def add(batch: NDArray[np.float32]) -> None:
        tally.add(batch)
        assert tally.bins().sum() >= batch.size
        other.merge(tally)
        tally.merge(Tally())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, batches))
    tally.merge(tally)
    assert tally.finite == 2 * sum(batch.size for batch in batches) == tally.bins().sum()
    assert other.finite == other.bins().sum()


# -- how many threads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu.max": "damaged"}, None),
    ],
)
def test_the_quota_of_a_container_is_read(
    files: dict[str, str], cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(_environment, "CGROUPS", tmp_path)
    _environment.quota.cache_clear()
    try:
        assert _environment.quota() == cores
        here = len(os.sched_getaffinity(0))
        assert _environment.usable_cores() == min(here, cores or here)
    finally:
        _environment.quota.cache_clear()


LARGE = 1 << 20
"""Bytes that are 32 tasks of a lookup."""


def turned(turns: int) -> tuple[Plan, NDArray[np.uint8]]:
    """A plan of so many steps of many tasks, and what it makes of zeros."""
    plan = Plan(LARGE, [(0, LARGE), (EXTERNAL, LARGE)])
    table = (np.arange(256) + 1).astype(np.uint8)
    plan.fill("zeros", 0, size=LARGE, value=0)
    for i in range(turns):
        plan.lookup(f"turn {i}", 0, 0, size=LARGE, table=table)
    plan.copy("out", 0, 1, rows=1024, width=LARGE // 1024)
    return plan, np.full(LARGE, turns, np.uint8)


@pytest.mark.slow
def test_no_more_threads_are_started_than_there_are_usable_cores() -> None:
    ended("""
        import os
        import numpy as np
        from qir._kernels import _cpu
        from tests.kernels.test_misuse import LARGE, turned
        plan, expected = turned(5)
        cores = list(os.sched_getaffinity(0))

        def started():
            before, y = len(os.listdir("/proc/self/task")), np.zeros(LARGE, np.uint8)
            plan.run([y], threads=64)
            assert np.array_equal(y, expected)
            return len(os.listdir("/proc/self/task")) - before

        os.sched_setaffinity(0, cores[:1])
        assert started() == 0
        os.sched_setaffinity(0, cores)
        assert started() < len(cores)
        _cpu.usable_cores = lambda: 64
        assert started() > 20
    """)


@pytest.mark.parametrize("threads", [2, 5, 17])
def test_plans_of_many_tasks_run_side_by_side(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cpu, "usable_cores", lambda: 64)  # more than there are: more turns
    made = [turned(turns) for turns in (3, 9, 20)]

    def work(plan: Plan, expected: NDArray[np.uint8]) -> None:
        for _ in range(5):
            y = np.zeros(LARGE, np.uint8)
            plan.run([y], threads=threads)
            assert np.array_equal(y, expected)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, *one) for one in made + made]:
            done.result()
