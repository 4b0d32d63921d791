"""Plans: many steps in one call."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir._kernels._cpu import EXTERNAL, Plan
from qir._kernels._environment import usable_cores

from . import formulas
from .one import ISAS, random_integers

F32 = np.float32


def network(isa: str | None = None) -> tuple[Plan, NDArray[np.float32], NDArray[np.float32]]:
    """Integers, convolution, sum, average, product; with an input and its result by formulas."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (2, 3, 12, 10)).astype(F32)
    first = rng.integers(-127, 128, (20, 3, 3, 3)).astype(np.int8)
    last = rng.integers(-127, 128, (7, 20)).astype(np.int8)
    one, gain = np.ones(1, F32), F32(0.004)
    plan = Plan(
        8192, [(EXTERNAL, x.nbytes), (0, 768), (768, 4800), (5632, 40), (EXTERNAL, 56)], isa=isa
    )
    plan.quantize("codes", 0, 1, shape=x.shape, scale=0.02, zero=120, nhwc=True)
    plan.conv2d(
        "conv",
        1,
        2,
        first,
        None,
        one * gain,
        shape=(2, 12, 10, 3),
        pad=(1, 1, 1, 1),
        x_zero=120,
        y_zero=9,
    )
    plan.add("sum", 2, 2, 2, shape=(1, 1, 4800), a_gain=0.5, b_gain=0.25, offset=2.0)
    plan.global_avg_pool(
        "mean", 2, 3, shape=(2, 12, 10, 20), x_scale=1, x_zero=9, y_scale=0.5, y_zero=3
    )
    plan.linear("scores", 3, 4, last, None, one * gain, rows=2, x_zero=3, y_type="f32")
    q = formulas.rounded(x / F32(0.02), 120, 0, 255).transpose(0, 2, 3, 1)
    acc = formulas.accumulate(q, first, pad=(1, 1, 1, 1), x_zero=120)
    q = formulas.rounded(acc.astype(F32) * gain, 9, 0, 255)
    q = formulas.rounded(formulas.fma(q, 0.5, formulas.fma(q, 0.25, 2.0)), 0, 0, 255)
    total = (q - 9).sum(axis=(1, 2)).astype(F32)
    q = formulas.rounded(total * (F32(1) / (F32(0.5) * F32(120))), 3, 0, 255)
    return plan, x, (((q - 3) @ last.T.astype(np.int64)).astype(F32) * gain)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_network_runs_in_one_call(isa: str, threads: int) -> None:
    plan, x, expected = network(isa)
    for _ in range(3):
        y = np.zeros((2, 7), F32)
        plan.run([x, y], threads=threads)
        assert np.array_equal(y, expected)


def test_steps_are_listed_and_timed() -> None:
    plan, x, _ = network()
    kinds = ["quantize", "conv2d", "add", "global_avg_pool", "linear"]
    names = ["codes", "conv", "sum", "mean", "scores"]
    assert plan.steps == list(zip(names, kinds, strict=True))
    plan.run([x, np.zeros((2, 7), F32)])
    assert all(seconds == 0 for _, _, seconds, _ in plan.profile())
    plan.run([x, np.zeros((2, 7), F32)], profile=True)
    assert [row[:2] for row in plan.profile()] == plan.steps
    assert all(0 < seconds < 10 and traffic > 0 for _, _, seconds, traffic in plan.profile())


def test_runs_of_one_plan_take_turns_and_give_the_same() -> None:
    plan, x, expected = network()
    wrong = []

    def work() -> None:
        for _ in range(50):
            y = np.zeros((2, 7), F32)
            plan.run([x, y], threads=2)
            if not np.array_equal(y, expected):
                wrong.append(y)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_plans_run_side_by_side() -> None:
    made = [network() for _ in range(4)]
    wrong = []

    def work(plan: Plan, x: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
        for _ in range(50):
            y = np.zeros((2, 7), F32)
            plan.run([x, y], threads=3)
            if not np.array_equal(y, expected):
                wrong.append(y)

    workers = [threading.Thread(target=work, args=one) for one in made]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_forked_child_runs_with_threads_of_its_own() -> None:
    plan, x, expected = network()
    y = np.zeros((2, 7), F32)
    plan.run([x, y], threads=3)
    child = os.fork()
    if child == 0:
        y[:] = 0
        plan.run([x, y], threads=3)
        os._exit(0 if np.array_equal(y, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_gets_views_of_its_buffers() -> None:
    seen = []

    def double(x: NDArray[np.int8], y: NDArray[np.int16]) -> None:
        seen.append((x.flags.writeable, y.flags.writeable, x.shape))
        y[...] = x.astype(np.int16) * 2

    x = random_integers(np.random.default_rng(1), "i8", (4, 5))
    table = np.arange(256).astype(np.uint8)
    y = np.zeros((4, 5), np.int16)
    plan = Plan(64, [(EXTERNAL, 20), (0, 20), (EXTERNAL, 40)])
    plan.lookup("same", 0, 1, size=20, table=table)
    plan.call("double", double, [(1, np.dtype(np.int8), (4, 5))], [(2, np.dtype(np.int16), (4, 5))])
    plan.run([x, y])
    assert np.array_equal(y, x.astype(np.int16) * 2)
    assert seen == [(False, True, (4, 5))]


def test_what_a_call_raises_run_raises_and_the_plan_lives_on() -> None:
    def refuse(x: NDArray[np.uint8]) -> None:
        if x[0]:
            raise RuntimeError("not this one")

    plan = Plan(0, [(EXTERNAL, 1)])
    plan.call("refuse", refuse, [(0, np.dtype(np.uint8), (1,))], [])
    with pytest.raises(RuntimeError, match="not this one"):
        plan.run([np.ones(1, np.uint8)])
    plan.run([np.zeros(1, np.uint8)])


def test_external_arrays_must_fit() -> None:
    plan, x, _ = network()
    y = np.zeros((2, 7), F32)
    with pytest.raises(ValueError, match="1 arrays for 2 external buffers"):
        plan.run([x])
    with pytest.raises(ValueError, match="array 1 has 24 bytes"):
        plan.run([x, np.zeros(6, F32)])
    with pytest.raises(ValueError, match="array 0 has 2880 bytes, not C-contiguous"):
        plan.run([x.transpose(3, 2, 1, 0), y])
    y.flags.writeable = False
    with pytest.raises(ValueError, match="array 1 is read-only, and steps write to it"):
        plan.run([x, y])
    with pytest.raises(ValueError, match="threads is 0"):
        plan.run([x, y], threads=0)
    x.flags.writeable = False
    plan.run([x, y.copy()])


def convolution(**changes: object) -> Callable[[Plan], None]:
    def add(plan: Plan) -> None:
        weight = changes.pop("weight", np.ones((4, 2, 3, 3), np.int8))
        bias, multiplier = changes.pop("bias", None), changes.pop("multiplier", np.ones(1, F32))
        options = {"shape": (1, 8, 8, 2)} | changes
        plan.conv2d("c", 0, 1, weight, bias, multiplier, **options)  # type: ignore[arg-type]

    return add


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (convolution(shape=(1, 9, 8, 2)), "c: x is buffer 0 of 128 bytes, 144 are needed"),
        (convolution(pad=(1, 1, 1, 1)), "c: y is buffer 1 of 144 bytes, 256 are needed"),
        (convolution(groups=2), "c: x has 2 channels, weight .* in 2 groups takes 4"),
        (convolution(stride=(0, 1)), r"c: stride is \(0, 1\); 1 is the least possible"),
        (convolution(dilation=(4, 4)), "c: a window of .* is larger than the input"),
        (convolution(x_zero=256), "c: x_zero is 256, u8 holds 0 to 255"),
        (convolution(x_type="i16"), "c: no storage type 'i16'; known are u8, i8"),
        (convolution(low=9, high=3), "c: low 9 and high 3 do not fit u8"),
        (convolution(bias=np.zeros(4, np.int64)), "c: bias is 4 int64, not 4 int32"),
        (convolution(bias=np.zeros(3, np.int32)), "c: bias is 3 int32, not 4 int32"),
        (convolution(multiplier=np.ones(3, F32)), "c: 3 multipliers for 4 output channels"),
        (convolution(weight=np.ones((4, 2, 3, 3), np.uint8)), "c: weight is uint8"),
        (
            lambda plan: plan.lookup("l", 0, 2, size=1, table=np.zeros(256, np.uint8)),
            "l: y is buffer 2 of 2",
        ),
        (
            lambda plan: plan.lookup("l", 0, 1, size=1, table=np.zeros(9, np.uint8)),
            "l: table has 9 uint8, 256 entries are needed",
        ),
        (
            lambda plan: plan.quantize("q", 0, 1, shape=(4,), scale=0, zero=0),
            "q: scale is 0, not a positive float32",
        ),
        (
            lambda plan: plan.quantize("q", 0, 1, shape=(4,), scale=float("nan"), zero=0),
            "q: scale is nan, not a positive float32",
        ),
        (
            lambda plan: plan.quantize("q", 0, 1, shape=(4, 4), scale=1, zero=0, nhwc=True),
            "q: shape .* has 2 axes, a change of layout needs 4",
        ),
        (
            lambda plan: plan.transpose("t", 0, 1, shape=(2, 3), perm=(0, 0)),
            "t: perm .* does not order 2 axes",
        ),
        (
            lambda plan: plan.copy("k", 0, 1, rows=4, width=8, y_stride=4),
            "k: rows of 8 bytes overlap at a stride of 4",
        ),
        (
            lambda plan: plan.fill("f", 1, size=145, value=0),
            "f: y is buffer 1 of 144 bytes, 145 are needed",
        ),
    ],
)
def test_steps_that_do_not_fit_are_refused_by_name(
    add: Callable[[Plan], None], message: str
) -> None:
    plan = Plan(512, [(0, 128), (128, 144)])
    with pytest.raises(ValueError, match=message):
        add(plan)
    assert plan.steps == []


def test_buffers_must_lie_in_the_arena() -> None:
    with pytest.raises(ValueError, match="buffer 1 of 33 bytes at 32 does not lie in the arena"):
        Plan(64, [(0, 64), (32, 33)])


def test_an_instruction_set_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match=r"isa is 'mmx'; known are avx512vbmi, .*, scalar"):
        Plan(0, [], isa="mmx")


def described(**environment: str) -> str:
    code = "from qir._kernels import _cpu; print(*_cpu.isa(), _cpu.default_threads())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() or run.stderr.strip().splitlines()[-1]


def test_the_environment_caps_instruction_sets_and_threads() -> None:
    assert described(QIR_ISA="scalar", QIR_NUM_THREADS="5") == "scalar 5"
    assert described(QIR_ISA="avx2").split()[:-1] == [
        name for name in _cpu.cpu_features() if name in ("avx2", "scalar")
    ]
    assert "QIR_ISA is 'fast'; known are" in described(QIR_ISA="fast")
    assert "QIR_NUM_THREADS is '0', not a number of threads" in described(QIR_NUM_THREADS="0")
    assert described(QIR_NUM_THREADS="").split()[-1] == str(usable_cores())


def test_what_is_used_is_what_there_is() -> None:
    assert _cpu.isa()[-1] == "scalar"
    assert set(_cpu.isa()) <= set(_cpu.cpu_features())


def test_a_plan_may_have_hundreds_of_external_buffers() -> None:
    count = 200
    plan = Plan(0, [(EXTERNAL, 16)] * count)
    for i in range(count - 1):
        plan.copy(f"copy {i}", i, i + 1, rows=1, width=16)
    arrays = [np.full(16, i, np.uint8) for i in range(count)]
    arrays[0][:] = range(16)
    plan.run(arrays)
    assert all((array == np.arange(16)).all() for array in arrays)
