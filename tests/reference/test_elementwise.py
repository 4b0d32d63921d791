"""The element-by-element ops against exact rationals, torch and onnxruntime."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.reference.elementwise import add, clip, div, mul, relu, sigmoid, sub
from tests.reference.oracles import Array, assert_rounded_once, frozen, onnxruntime_runs

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": add,
    "Sub": sub,
    "Mul": mul,
    "Div": div,
}
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, 1e-38]


def _pair(seed: int, kind: type[np.generic]) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(0 if seed % 8 == 0 else 1, 6, rng.integers(0, 5))]
    other = [1 if rng.random() < 0.3 else n for n in shape][int(rng.integers(0, len(shape) + 1)) :]
    if seed % 2:
        shape, other = other, shape

    def draw(size: list[int]) -> Array:
        if issubclass(kind, np.integer):
            return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, size, kind, endpoint=True)
        values = rng.standard_normal(size) * 10.0 ** rng.integers(-20, 20, size)
        return np.asarray(values).astype(kind)

    return draw(shape), draw(other)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("seed", range(30))
def test_arithmetic_equals_onnxruntimes_bit_for_bit(op: str, seed: int) -> None:
    for kind in (np.float32, np.int32, np.int8 if op != "Div" else np.int64):
        a, b = _pair(seed, kind)
        if op == "Div" and kind is not np.float32:
            b = np.where(b == 0, kind(3), b)
            b = np.where(b == -1, kind(2), b)  # least / -1 stops onnxruntime's process
        got = BINARY[op](frozen(a), frozen(b))
        assert isinstance(got, np.ndarray)
        assert got.dtype == kind
        theirs = onnxruntime_runs(op, [a, b])
        assert np.array_equal(got, theirs), f"seed {seed}, {kind.__name__}"


@pytest.mark.parametrize("op", BINARY)
def test_arithmetic_on_special_values_equals_onnxruntimes(op: str) -> None:
    a = np.array(SPECIAL, np.float32)[:, None]
    b = np.array(SPECIAL, np.float32)[None, :]
    got, theirs = BINARY[op](a, b), onnxruntime_runs(op, [a, b])
    assert np.array_equal(got, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(theirs) & ~np.isnan(got))


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_arithmetic_rounds_the_exact_rational_once(kind: type[np.generic]) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(300).astype(kind) for _ in range(2))
    b = np.where(b == kind(0), kind(1), b)
    exact: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
        "Add": operator.add,
        "Sub": operator.sub,
        "Mul": operator.mul,
        "Div": operator.truediv,
    }
    for op, rational in exact.items():
        got = BINARY[op](a, b)
        assert got.dtype == kind
        for p, q, r in zip(a, b, got, strict=True):
            true = rational(Fraction(float(p)), Fraction(float(q)))
            here = abs(Fraction(float(r)) - true)
            for side in (-np.inf, np.inf):
                next_to = np.nextafter(r, kind(side))
                assert here <= abs(Fraction(float(next_to)) - true), f"seed 7: {p} {op} {q}"


@pytest.mark.parametrize("seed", range(10))
def test_integer_division_is_cut_toward_zero_and_wraps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64):
        limits = np.iinfo(kind)
        a = rng.integers(limits.min, limits.max, 200, kind, endpoint=True)
        b = rng.integers(max(limits.min, -9), 9, 200, kind)
        a[:3], b[b == 0] = limits.min, 1
        b[0] = limits.max if limits.min == 0 else -1
        expected = [
            (abs(int(p)) // abs(int(q))) * (-1 if (p < 0) != (q < 0) else 1)
            for p, q in zip(a, b, strict=True)
        ]
        wrapped = [(v - limits.min) % (1 << limits.bits) + limits.min for v in expected]
        assert div(a, b).tolist() == wrapped, f"seed {seed}, {kind.__name__}"


def test_relu_equals_onnxruntimes_down_to_the_sign_of_zero() -> None:
    for length in range(1, 70):
        x = np.resize(np.array(SPECIAL, np.float32), length)
        got, theirs = relu(frozen(x)), onnxruntime_runs("Relu", [x])
        assert np.array_equal(got, theirs, equal_nan=True)
        assert np.array_equal(np.signbit(got[got == 0]), np.signbit(theirs[theirs == 0]))
    for kind in (np.int8, np.int32):
        whole = np.arange(-5, 6).astype(kind)
        assert np.array_equal(relu(whole), onnxruntime_runs("Relu", [whole]))
        assert relu(whole).dtype == kind
    assert relu(np.array(-2, np.float32)).shape == ()


@pytest.mark.parametrize("seed", range(40))
def test_clip_equals_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in (np.float32, np.int8, np.uint8, np.int32):
        x = rng.integers(0, 100, rng.integers(0, 50)).astype(kind)
        if kind is np.float32:
            x = np.append(x + rng.standard_normal(x.shape).astype(kind), np.float32(np.nan))
        low, high = (float(v) for v in rng.integers(0, 100, 2))  # crossed half of the time
        if kind is np.float32:
            low = float(np.float32(low + 0.1))
        bounds = [None if rng.random() < 0.2 else v for v in (low, high)]
        operands = [None if v is None else np.array(v, kind) for v in bounds]
        got = clip(frozen(x), min=bounds[0], max=bounds[1])
        assert got.dtype == kind
        theirs = onnxruntime_runs("Clip", [x, *operands])
        assert np.array_equal(got, theirs, equal_nan=kind is np.float32), f"seed {seed} {bounds}"
        assert not np.shares_memory(got, x)


def test_clip_bounds_take_the_type_of_x() -> None:
    assert clip(np.array([-1, 1], np.float32), max=0.1)[1] == np.float32(0.1)
    assert clip(np.array([-1, 1], np.float16), max=0.1)[1] == np.float16(0.1)
    whole = np.array([-128, 5, 127], np.int8)
    assert clip(whole, min=-1000, max=1e9).tolist() == [-128, 5, 127]
    assert clip(whole, min=-math.inf, max=6.0).tolist() == [-128, 5, 6]
    assert clip(np.array([np.inf, -np.inf], np.float32)).tolist() == [np.inf, -np.inf]
    with pytest.raises(OpError, match="min is NaN"):
        clip(whole, min=math.nan)
    with pytest.raises(OpError, match=r"max is 2\.5, x is i8 and takes whole numbers"):
        clip(whole, max=2.5)


@pytest.mark.parametrize("seed", range(20))
def test_sigmoid_rounds_the_float64_value_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(500) * 30).astype(np.float32)
    got = sigmoid(frozen(x))
    exact = torch.sigmoid(torch.from_numpy(x.astype(np.float64))).numpy()
    assert_rounded_once(got, exact, exact, f"seed {seed}")
    theirs = onnxruntime_runs("Sigmoid", [x])
    assert np.abs(np.subtract(got, theirs)).max() < 5e-7, f"seed {seed}"


def test_sigmoid_is_exact_at_its_ends() -> None:
    x = np.array([0, np.inf, -np.inf, np.nan, 1e4, -1e4], np.float64)
    assert np.array_equal(sigmoid(x), [0.5, 1, 0, np.nan, 1, 0], equal_nan=True)
    for value in (-700.0, -740.0):  # 1 / (1 + exp(-x)) itself would be 0 at the second
        assert sigmoid(np.array([value]))[0] == pytest.approx(math.exp(value), rel=1e-12)


def test_bfloat16_and_float8_are_rounded_once_from_float64() -> None:
    rng = np.random.default_rng(2)
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        every = np.arange(1 << (8 * np.dtype(kind).itemsize)).astype(f"u{np.dtype(kind).itemsize}")
        with np.errstate(invalid="ignore"):  # among all integers are signalling NaNs
            values = np.sort(every.view(kind).astype(np.float64))
        values = values[np.isfinite(values)]
        x = rng.standard_normal(2000).astype(kind)
        exact = torch.sigmoid(torch.from_numpy(x.astype(np.float64))).numpy()
        at = np.searchsorted(values, exact)
        nearest = np.minimum(np.abs(values[at] - exact), np.abs(values[at - 1] - exact))
        error = np.abs(sigmoid(x).astype(np.float64) - exact)
        assert (error <= nearest).all(), f"seed 2, {kind.__name__}"


def test_elementwise_ops_say_what_does_not_fit() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    for op in (add, sub, mul, div):
        with pytest.raises(OpError, match=r"a \[2, 3\] and b \[4, 3\] do not broadcast"):
            op(a, b)
        with pytest.raises(OpError, match="a is f32, b is i8; cast one of them"):
            op(a, np.ones(3, np.int8))
    with pytest.raises(OpError, match=r"b is 0 at \[1, 0\], and i32 has no value"):
        div(np.ones((2, 1), np.int32), np.array([[1], [0]], np.int32))
    with pytest.raises(OpError, match="sigmoid: x is i8, it takes floats"):
        sigmoid(np.ones(3, np.int8))
    with pytest.raises(OpError, match="relu: x is bool"):
        relu(np.ones(3, np.bool_))
    with pytest.raises(OpError, match="relu: x is complex64"):
        relu(np.ones(3, np.complex64))
