"""The inputs by which TensorFlow Lite is recorded are rich: ties, both ends, odd zero points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.numerics.accumulate import conv2d
from tests.differential.tflite.test_tflite_vectors import VECTORS, recorded
from tests.oracles.tflite_cases import SUITES, OpCase
from tests.oracles.tflite_dynamic import DYNAMIC

Reals = NDArray[np.float64]


def exact_steps(case: OpCase) -> Reals:
    """The exact results of a case in steps of the result, without its zero point."""
    at = {slot: of.data.astype(np.int64) - of.zero for slot, of in case.operands.items()}
    steps = {slot: np.asarray(of.scale, np.float64) for slot, of in case.operands.items()}
    return np.asarray(_EXACT[case.op](case, at, steps) / case.out.step)


def _conv(case: OpCase, at: dict[str, NDArray[np.int64]], steps: dict[str, Reals]) -> Reals:
    named = ("stride", "pad", "dilation", "groups", "layout")
    kept = {name: case.attrs[name] for name in named}
    acc = conv2d(at["x"], at["w"], **kept)  # type: ignore[arg-type]
    return np.asarray((acc + at["bias"]) * (steps["x"] * steps["w"]))


def _spread(case: OpCase, at: dict[str, NDArray[np.int64]], steps: dict[str, Reals]) -> Reals:
    """A transposed convolution: of one tap alone, or nothing."""
    if at["w"].shape[2:] != (1, 1) or case.attrs["stride"] != (1, 1):
        return np.zeros(0)
    acc = np.einsum("nihw,io->nohw", at["x"], at["w"][:, :, 0, 0])
    scale = (steps["x"] * steps["w"]).reshape(-1, 1, 1)
    return np.asarray((acc + at["bias"].reshape(-1, 1, 1)) * scale)


def _linear(case: OpCase, at: dict[str, NDArray[np.int64]], steps: dict[str, Reals]) -> Reals:
    return np.asarray((at["x"] @ at["w"].T + at["bias"]) * (steps["x"] * steps["w"]))


def _total(case: OpCase, at: dict[str, NDArray[np.int64]], steps: dict[str, Reals]) -> Reals:
    axes = case.attrs["axes"]
    assert isinstance(axes, tuple)
    count = math.prod(at["x"].shape[a] for a in axes) if case.op == "reduce_mean" else 1
    return np.asarray(at["x"].sum(axes) * steps["x"] / count)


def _slope(case: OpCase, at: dict[str, NDArray[np.int64]], steps: dict[str, Reals]) -> Reals:
    x = at["x"] * steps["x"]
    below = at["slope"] * steps["slope"] if case.op == "prelu" else case.attrs["alpha"]
    return np.where(x < 0, x * below, x)


_EXACT: dict[str, Callable[[OpCase, dict[str, NDArray[np.int64]], dict[str, Reals]], Reals]] = {
    "conv2d": _conv,
    "conv_transpose2d": _spread,
    "linear": _linear,
    "matmul": lambda case, at, s: (at["a"] @ at["b"]) * (s["a"] * s["b"]),
    "mul": lambda case, at, s: at["a"] * at["b"] * (s["a"] * s["b"]),
    "add": lambda case, at, s: at["a"] * s["a"] + at["b"] * s["b"],
    "sub": lambda case, at, s: at["a"] * s["a"] - at["b"] * s["b"],
    "squared_difference": lambda case, at, s: (at["a"] * s["a"] - at["b"] * s["b"]) ** 2,
    "requantize": lambda case, at, s: at["x"] * s["x"],
    "relu": lambda case, at, s: at["x"] * s["x"],
    "clip": lambda case, at, s: at["x"] * s["x"],
    "abs": lambda case, at, s: np.abs(at["x"]) * s["x"],
    "leaky_relu": _slope,
    "prelu": _slope,
    "reduce_sum": _total,
    "reduce_mean": _total,
    "quantize": lambda case, at, s: case.operands["x"].data.astype(np.float64),
}


def population(names: tuple[str, ...], activation: str | None = None) -> tuple[int, int, int, int]:
    """How many results lie on ties, below the integers and above them, and how many there are; of
    those that end in an activation, before it cuts."""
    ties = low = high = total = 0
    for case in cases(names):
        if activation not in (None, case.activation):
            continue
        exact = exact_steps(case)
        ties += int(np.count_nonzero(np.abs(exact - np.floor(exact) - 0.5) < 1e-5))
        whole = np.rint(exact) + case.out.zero
        ends = np.iinfo(case.out.data.dtype.str)
        low += int(np.count_nonzero(whole < ends.min))
        high += int(np.count_nonzero(whole > ends.max))
        total += exact.size
    return ties, low, high, total


def cases(names: tuple[str, ...]) -> Iterator[OpCase]:
    """All cases of some suites."""
    return (case for name in names for case in SUITES[name]())


RICH = [
    ("conv", "conv_ties"),
    ("conv16", "conv16_ties"),
    ("conv_u8", "conv_u8_ties"),
    ("linear", "linear_ties"),
    ("linear16", "linear16_ties"),
    ("linear_u8", "linear_u8_ties"),
    ("linear_i4", "linear_i4_ties"),
    ("transposed", "transposed_ties"),
    ("transposed16", "transposed16_ties"),
    ("transposed_u8", "transposed_u8_ties"),
    ("matmul", "matmul_ties"),
    ("matmul16", "matmul16_ties"),
    *((name,) for name in "add sub mul add16 sub16 add_u8 sub_u8 mul_u8 mean sum sum16".split()),
    *((name,) for name in "quantize quantize16 quantize_u8 requantize requantize_u8".split()),
    *((name,) for name in "relu relu6 relu1 relu01 relu_u8 relu6_u8 relu1_u8 relu01_u8".split()),
    *((name,) for name in "prelu leaky_relu leaky_relu_u8 requantize16 relu16 relu616".split()),
    *((name,) for name in "conv depthwise depthwise_u8 conv_u8 conv_i4 linear linear_i4".split()),
    *((name,) for name in "unread_same unread_same_u8 unread_valid unread_valid_u8".split()),
    *((name,) for name in "add16_close sub_close mean_tied sum_tied_u8 sum_u8".split()),
    ("mean_u8", "mean_tied_u8"),
    ("recode_u8_i8", "tails_u8_i8"),
    ("recode_i8_u8", "tails_i8_u8"),
    ("linear_i4_even", "linear_i4_even_ties"),
]
"""Suites of one kernel: of all results a twentieth lies on ties, and as many beyond each end."""
FAIR = "mul16 mean16 prelu_u8"
"""Suites of which that many do not: a fiftieth each. `conv_groups` and `depthwise16` do the
arithmetic of `conv` and `conv16`, whose ties speak for them; of `abs` and `squared_difference`
nothing lies below the integers."""


@pytest.mark.parametrize("names", RICH, ids="-".join)
def test_the_recorded_cases_are_rich(names: tuple[str, ...]) -> None:
    ties, low, high, total = population(names)
    said = f"{ties} ties, {low} low and {high} high of {total}"
    assert min(ties, low, high) >= 0.05 * total, said


@pytest.mark.parametrize("activation", ["", "relu", "relu6"])
@pytest.mark.parametrize("name", "add sub mul conv depthwise linear".split())
def test_what_ends_in_an_activation_is_as_rich(name: str, activation: str) -> None:
    ties, low, high, total = population((name, f"{name}_u8"), activation)
    said = f"{ties} ties, {low} low and {high} high of {total}"
    assert min(ties, low, high) >= 0.05 * total, said


@pytest.mark.parametrize("name", FAIR.split())
def test_the_other_cases_have_ties_and_both_ends_too(name: str) -> None:
    ties, low, high, total = population((name,))
    assert min(ties, low, high) >= 0.02 * total, f"{ties}, {low} and {high} of {total}"


@pytest.mark.parametrize("name", ["abs", "squared_difference"])
def test_what_gives_nothing_below_zero_has_ties_and_one_end(name: str) -> None:
    ties, low, high, total = population((name,))
    assert min(ties, high) >= 0.05 * total, f"{ties} ties and {high} high of {total}"
    assert not low


@pytest.mark.parametrize("name", DYNAMIC)
def test_data_that_become_codes_lie_on_ties_too(name: str) -> None:
    ties = total = 0
    for case in SUITES[name]():
        data = next(iter(case.operands.values())).data
        size = data[0].size if case.op == "conv2d" else data.shape[-1]
        for row in data.reshape(-1, size):
            least, most = min(row.min(), 0), max(row.max(), 0)
            steps = row.astype(np.float64) * (255 / ((most - least) or 1))
            if name.startswith("reach"):
                steps = row.astype(np.float64) * (127 / (max(-least, most) or 1))
            ties += int(np.count_nonzero(np.abs(steps - np.floor(steps) - 0.5) < 1e-5))
            total += row.size
    assert ties >= 0.05 * total, f"{ties} of {total}"


_ENDS = {"": (), "relu1": (-1, 1), "relu6": (0, 6)}


@pytest.mark.parametrize("name", [name for name in SUITES if name.startswith("ends")])
def test_ends_of_activations_lie_on_ties_and_cut_results_on_both_sides(name: str) -> None:
    """A half of the cases have one on a tie, of which XNNPACK and others make two integers in
    half."""
    ties = apart = low = high = total = count = 0
    for case, results in recorded(VECTORS / "tflite", name, "xnnpack"):
        steps = np.array(_ENDS[case.activation], np.float32) / np.float32(case.out.step)
        on = np.abs(steps - np.floor(steps) - 0.5) == 0
        whole = np.copysign(np.floor(np.abs(steps) + 0.5), steps) + case.out.zero
        ties, count = ties + bool(on.any()), count + 1
        apart += bool(np.any(whole != np.rint(steps + case.out.zero)))
        low += int(np.count_nonzero(results == results.min()))
        high += int(np.count_nonzero(results == results.max()))
        total += results.size
    assert ties >= 0.5 * count, f"{ties} of {count}"
    assert apart >= 0.25 * count, f"{apart} of {count}"
    assert min(low, high) >= 0.05 * total, f"{low} low and {high} high of {total}"


@pytest.mark.parametrize("name", SUITES)
def test_zero_points_are_odd_but_where_a_kernel_sets_them(name: str) -> None:
    for case in SUITES[name]():
        sets = case.op in _SETS or case.out.data.dtype.itemsize != 1 or case.out.scale is None
        assert sets or case.out.zero % 2, case.op


_SETS = frozenset("sigmoid tanh softmax log_softmax lp_normalize".split())


@pytest.mark.parametrize("name", ["wide_add", "wide_add_u8", "tiny_requantize"])
def test_what_xnnpack_leaves_to_vectors_shows(name: str) -> None:
    """A tenth of the results are others than the reference's."""
    pairs = zip(
        *(recorded(VECTORS / "tflite", name, who) for who in ("ref", "xnnpack")), strict=True
    )
    apart = np.concatenate([(one != other).ravel() for (_, one), (_, other) in pairs])
    assert apart.mean() >= 0.1


@pytest.mark.parametrize("name", ["tiny_hard_swish", "tiny_hard_swish_u8"])
def test_shifts_beyond_16_bits_show(name: str) -> None:
    """Results are a step off zero where the quotient of the scales is below 1/512."""
    far = [
        (case, results)
        for case, results in recorded(VECTORS / "tflite", name, "ref")
        if case.operands["x"].step < case.out.step / 512
    ]
    assert len(far) >= 10
    for case, results in far:
        assert set(results.ravel().astype(int) - case.out.zero) <= {-1, 1}


def test_lengths_go_through_all_of_1_to_70() -> None:
    """Vector bodies and tails differ: of rows of elements, of sums, and of results."""
    every = set(range(1, 71))
    for name in ("lengths", "lengths16", "lengths_u8"):
        for op in ("add", "sub", "mul", "requantize", "leaky_relu"):
            assert {c.shape[-1] for c in SUITES[name]() if c.op == op} == every
    for name in ("tails_u8_i8", "tails_i8_u8"):
        assert {case.shape[-1] for case in SUITES[name]()} == every
    for name in ("linear", "linear_u8"):
        made = list(SUITES[name]())
        assert {case.operands["x"].data.shape[-1] for case in made} == every
        assert {case.shape[-1] for case in made} == every
    assert {case.operands["a"].data.shape[-1] for case in SUITES["matmul"]()} == every
