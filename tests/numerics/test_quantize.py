"""Quantize, dequantize and requantize in each way that a rule may ask for."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qir.errors import OpError, ProfileError
from qir.ir.dtype import dtype
from qir.ir.types import uniform
from qir.numerics import (
    affine,
    affine_of,
    dequantize,
    multiplier,
    quantize,
    quantize_bias,
    requantize,
)
from qir.numerics.fields import Bias, Dequantize, Quantize, Requant, Rule
from qir.profiles import Query, dequantize_by_profile, profile, quantize_by_profile

from .test_rounding import EXACT

F = np.float32
PLAIN = Rule("plain")


def quantizing(**fields: str) -> Rule:
    return Rule("plain", quantize=replace(Quantize(), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("zero", ["after", "before", "none"])
def test_each_rounding_and_place_of_the_zero_point_is_the_exact_formula(
    name: str, zero: str
) -> None:
    to = affine("i8", 0.25, 11)
    x = np.arange(-300, 301).astype(F) / F(16)
    found = quantize(x, to, quantizing(round=name, zero=zero))
    exact: Callable[[Fraction], int] = EXACT[name]
    for value, code in zip(x, found, strict=True):
        steps = Fraction(float(value)) * 4
        whole = exact(steps + 11) if zero == "before" else exact(steps)
        wanted = whole + 11 * (zero == "after")
        assert code == max(-128, min(127, wanted)), value


def test_division_and_reciprocal_differ_where_a_tie_is_near() -> None:
    """x / s = 127.499992, x * (1 / s) = 127.5: torch and onnxruntime differ here."""
    x, to = np.array([0.273939937], F), affine("u8", 0.00214854861)
    assert quantize(x, to, quantizing(by="divide")).tolist() == [127]
    assert quantize(x, to, quantizing(by="reciprocal")).tolist() == [128]


def test_clipping_reals_first_or_codes_last_gives_the_same_codes() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(size=3000) * 100, [1e30, -1e30, np.inf, -np.inf]]).astype(F)
    for storage, zero in (("u8", 0), ("u8", 201), ("i8", -127), ("i4", 3)):
        to = affine(storage, 0.37, zero)
        first, last = (quantize(x, to, quantizing(clip=c)) for c in ("reals_first", "codes"))
        assert np.array_equal(first, last)
        assert first.min() == to.low
        assert first.max() == to.high


def test_bounds_of_the_type_or_of_the_storage_hold() -> None:
    to = affine("i8", 1.0, bounds=(-127, 127))
    x = np.array([-1000, 1000], F)
    assert quantize(x, to, quantizing()).tolist() == [-127, 127]
    assert quantize(x, to, quantizing(bounds="storage")).tolist() == [-128, 127]


def test_a_nan_becomes_what_the_profile_says_or_is_refused() -> None:
    x, to = np.array([np.nan, 1], F), affine("u8", 1.0, 7)
    assert quantize(x, to, quantizing(nan="low")).tolist() == [0, 8]
    assert quantize(x, to, quantizing(nan="zero")).tolist() == [7, 8]
    with pytest.raises(OpError, match="NaN has no quantized value in profile plain"):
        quantize(x, to, quantizing())


@given(
    st.integers(-128, 127),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.lists(st.integers(-128, 127), min_size=1, max_size=20),
)
def test_codes_survive_dequantize_and_quantize(
    zero: int, scale: float, quantized: list[int]
) -> None:
    of = affine("i8", scale, zero)
    array = np.array(quantized, np.int8)
    floats = dequantize(array, of, PLAIN)
    assert floats.dtype == F
    assert np.array_equal(quantize(floats, of, PLAIN), array)


def test_dequantize_in_two_products_differs_in_the_last_bit() -> None:
    of, quantized = affine("u8", 0.1, 77), np.arange(256).astype(np.uint8)
    two = Rule(dequantize=Dequantize(by="q*s-z*s"))
    s = F(0.1)
    assert np.array_equal(dequantize(quantized, of, two), quantized.astype(F) * s - F(77) * s)
    assert not np.array_equal(dequantize(quantized, of, two), dequantize(quantized, of, PLAIN))


def test_scales_along_an_axis_go_with_their_slices() -> None:
    scales, zeros = np.array([0.5, 0.25, 2], F), np.array([1, 2, 3])
    x = np.random.default_rng(3).normal(size=(4, 3, 5)).astype(F) * 20
    many = quantize(x, affine("u8", scales, zeros, axis=1), PLAIN)
    for i in range(3):
        alone = affine("u8", scales[i], int(zeros[i]))
        assert np.array_equal(many[:, i], quantize(x[:, i], alone, PLAIN))


def test_types_of_the_language_give_their_maps() -> None:
    kind = uniform(dtype("u8"), np.array(0.5, F), 3)
    x = np.array([-5, 0, 0.25, 0.75, 300], F)
    quantized = quantize_by_profile(profile("native"), x, kind)
    assert quantized.tolist() == [0, 3, 3, 5, 255]
    assert dequantize_by_profile(profile("native"), quantized, kind).tolist() == [
        -1.5,
        0,
        0,
        1,
        126,
    ]
    assert affine_of(kind).same_map(affine("u8", 0.5, 3))


# -- sums -----------------------------------------------------------------------------------------


def requantizing(**fields: str) -> Rule:
    return Rule("plain", requant=replace(Requant(), **fields))  # type: ignore[arg-type]


def test_requantize_in_float64_is_the_exact_formula() -> None:
    x, w, y = affine("u8", 0.5, 3), affine("i8", 0.25), affine("u8", 4.0, 121)
    acc = np.arange(-5000, 5000, dtype=np.int32)
    for rounding in ("even", "away", "half_up"):
        for zero in ("after", "before", "none"):
            rule = requantizing(multiplier="f64", compute="f64", round=rounding, zero=zero)
            found = requantize(acc, multiplier(x, w, y, rule), y, rule, axis=0)
            for a, code in zip(acc.tolist(), found.tolist(), strict=True):
                steps = Fraction(a, 32)
                inside = (
                    EXACT[rounding](steps + 121) if zero == "before" else EXACT[rounding](steps)
                )
                wanted = inside + 121 * (zero == "after")
                assert code == max(0, min(255, wanted)), (a, rounding, zero)


def test_the_place_of_the_zero_point_shows_at_ties_only() -> None:
    x, w, y = affine("u8", 0.5), affine("i8", 0.25), affine("u8", 4.0, 121)
    acc = np.arange(-3000, 3000, dtype=np.int32)
    after, before = (
        requantize(acc, multiplier(x, w, y, rule), y, rule, axis=0)
        for rule in (requantizing(), requantizing(zero="before"))
    )
    ties = acc % 32 == 16
    assert np.array_equal(after[~ties], before[~ties])
    assert (after != before)[ties].any()


def gemmlowp(acc: int, real: float, how: str) -> int:
    """MultiplyByQuantizedMultiplier of TFLite's reference, in Python's whole numbers."""
    fraction, exponent = math.frexp(real)
    q = math.floor(fraction * 2**31 + 0.5)
    if q == 2**31:
        q, exponent = q // 2, exponent + 1
    if how == "half_up":
        shift = 31 - exponent
        return (acc * q + (1 << (shift - 1))) >> shift
    left, right = max(exponent, 0), max(-exponent, 0)
    product = (acc << left) * q
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    high = int(Fraction(product + nudge, 1 << 31).__trunc__())
    if how == "double_up":  # of whole numbers: floor(high / 2^right + 1/2)
        return math.floor(Fraction(high, 1 << right) + Fraction(1, 2))
    rest, half = high & ((1 << right) - 1), ((1 << right) - 1) >> 1
    return (high >> right) + (rest > half + (high < 0))


@pytest.mark.parametrize("rounding", ["double", "double_up", "half_up"])
def test_fixed_point_requantize_is_that_of_tflites_reference(rounding: str) -> None:
    rng = np.random.default_rng(4)
    rule = requantizing(multiplier="q31", compute="f64", round=rounding)
    y = affine("i8", 1.0, -5)
    acc = rng.integers(-60000, 60000, 800).astype(np.int32)
    for real in (0.5, 0.001, 0.0123456, 0.999999999, 2.0**-7, 1.7):
        found = requantize(acc, np.asarray(real), y, rule, axis=0)
        exact = [gemmlowp(a, real, rounding) - 5 for a in acc.tolist()]
        assert found.tolist() == [max(-128, min(127, v)) for v in exact], real


def test_a_number_that_the_field_beside_it_makes_meaningless_is_refused() -> None:
    x = affine("u8", 1.0)
    with pytest.raises(ProfileError, match=r"f64_reciprocal' with quantize\.by = 'divide': a d"):
        quantize(np.zeros(3, F), x, quantizing(compute="f64_reciprocal"))


def test_sums_that_no_code_can_hold_saturate_whatever_the_multiplier() -> None:
    y, rule = affine("u8", 1.0, 3), profile("native").resolve(Query("conv2d"))
    acc = np.array([-(2**31), -1, 0, 1, 2**31 - 1], np.int32)
    for factor in (1e30, 3e38, np.inf):
        found = requantize(acc, np.asarray(factor, F), y, rule, axis=0)
        middle = 0 if np.isinf(factor) else 3  # 0 * inf is NaN, which becomes the least code
        assert found.tolist() == [0, 0, middle, 255, 255], factor


def test_a_bias_that_does_not_fit_is_cut_or_wrapped_or_refused() -> None:
    x, w = affine("u8", 2.0**-20), affine("i8", 2.0**-15)
    clip = profile("native").resolve(Query("conv2d"))
    assert quantize_bias(np.array([1.0, -1.0], F), x, w, clip).tolist() == [2**31 - 1, -(2**31)]
    wholes = [2**31 - 128, 2**31, -(2**31), -(2**31) - 256, 3 * 2**32 + 1024, -(2**40) - 2**20, 0]
    found = quantize_bias(np.array(wholes, np.float64) * 2.0**-35, x, w, PLAIN)
    assert found.tolist() == [(v + 2**31) % 2**32 - 2**31 for v in wholes]
    wide = Rule("p", bias=Bias(overflow="clip:40"))
    with pytest.raises(OpError, match="does not fit 32 bits"):
        quantize_bias(np.array([1.0], F), x, w, wide)
    for bad in (np.nan, np.inf):
        with pytest.raises(OpError, match="no number in units of the accumulator"):
            quantize_bias(np.array([bad], F), x, w, PLAIN)


def test_maps_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(OpError, match="zero point 300"):
        affine("u8", 1.0, 300)
    with pytest.raises(OpError, match="3 scales without an axis"):
        affine("u8", np.ones(3, F))
    with pytest.raises(OpError, match="2 scales but 3 zero points"):
        affine("u8", np.ones(2, F), np.zeros(3, np.int64), axis=0)
    with pytest.raises(OpError, match="axis 0 has 5 indices, but 2 scales"):
        quantize(np.zeros(5, F), affine("u8", np.ones(2, F), axis=0), PLAIN)
