"""Every way to bring sums to integers, against fractions and plain float arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from qir.errors import ProfileError
from qir.numerics import affine, multiplier, requantize
from qir.numerics.fields import Requant, Rule

from .profiles import F, computed, linear, operands, sums

SEED = 20261121


def whole(value: Fraction, how: str) -> int:
    """The nearest whole number of a fraction."""
    down, rest = math.floor(value), value - math.floor(value)
    if rest != Fraction(1, 2):
        return down + (rest > Fraction(1, 2))
    return {"even": down + down % 2, "away": down + (value > 0), "half_up": down + 1}[how]


def tflite_multiplier(m: float) -> tuple[int, int]:
    """TFLite's QuantizeMultiplier."""
    fraction, exponent = math.frexp(m)
    q = math.floor(fraction * 2**31 + 0.5)
    return (q // 2, exponent + 1) if q == 1 << 31 else (q, exponent)


def code(total: int, zero: int, kind: str = "u8") -> int:
    low, high = (0, 255) if kind == "u8" else (-32768, 32767)
    return max(low, min(high, total + zero))


SCALES = [(0.5, 0.25, 2.0), (0.3, 0.011, 0.7), (0.5, 0.375, 8.0), (0.02, 0.9999, 0.25)]


@pytest.mark.parametrize("how", ["even", "away", "half_up"])
@pytest.mark.parametrize("place", ["after", "before", "none"])
@pytest.mark.parametrize("form", ["exact", "q31", "q15"])
def test_whole_multipliers_round_the_exact_product_once(form: str, place: str, how: str) -> None:
    rng = np.random.default_rng(SEED)
    acc = np.concatenate([np.arange(-3000, 3000), rng.integers(-(2**31), 2**31, 2000)])
    for sx, sw, sy in SCALES:
        x, w, y = affine("u8", sx), affine("i8", sw), affine("u8", sy, 77)
        r = Requant(multiplier=form, zero=place, round=how, compute="f64")  # type: ignore[arg-type]
        rule = Rule("p", requant=r)
        found = requantize(acc.astype(np.int32), multiplier(x, w, y, rule), y, rule, axis=0)
        exact = Fraction(float(F(sx))) * Fraction(float(F(sw))) / Fraction(float(F(sy)))
        if form != "exact":
            q, shift = tflite_multiplier(float(F(sx)) * float(F(sw)) / float(F(sy)))
            bits = 31
            if form == "q15":
                q, bits = ((q + (1 << 15)) >> 16 if q < 0x7FFF0000 else 0x7FFF), 15
            exact = Fraction(q) * Fraction(2) ** (shift - bits)
        inside, after = (77, 0) if place == "before" else (0, 77 * (place == "after"))
        wanted = [code(whole(int(a) * exact + inside, how), after) for a in acc]
        assert found.tolist() == wanted, f"seed {SEED}"


def test_sums_of_64_bits_are_multiplied_by_15_bits_as_tflite_does() -> None:
    rng = np.random.default_rng(SEED)
    acc = rng.integers(-(2**46), 2**46, 4000) >> rng.integers(0, 40, 4000)
    x, w, y = affine("i16", 0.001), affine("i8", 0.01), affine("i16", 0.37)
    rule = Rule("p", requant=Requant(multiplier="q15", round="half_up", compute="f64"))
    found = requantize(acc, multiplier(x, w, y, rule), y, rule, axis=0)
    q, shift = tflite_multiplier(float(F(0.001)) * float(F(0.01)) / float(F(0.37)))
    reduced, right = (q + (1 << 15)) >> 16, 15 - shift
    wanted = [code((int(a) * reduced + (1 << (right - 1))) >> right, 0, "i16") for a in acc]
    assert found.tolist() == wanted


@pytest.mark.parametrize("order", ["(x*w)/y", "(x*w)*(1/y)", "x*(w/y)", "gy/gx/gw"])
def test_one_float_is_made_in_the_order_that_is_said(order: str) -> None:
    rng = np.random.default_rng(SEED)
    differ = set()
    for _ in range(200):
        sx, sw, sy = (F(v) for v in rng.uniform(0.001, 1, 3))
        maps = affine("u8", float(sx)), affine("i8", float(sw)), affine("u8", float(sy))
        one = F(1)
        forms = {
            "(x*w)/y": (sx * sw) / sy,
            "(x*w)*(1/y)": (sx * sw) * (one / sy),
            "x*(w/y)": sx * (sw / sy),
            "gy/gx/gw": (one / sy) / (one / sx) / (one / sw),
        }
        rule = Rule("p", requant=Requant(order=order))  # type: ignore[arg-type]
        found = multiplier(*maps, rule)
        assert found == forms[order]
        differ |= {name for name, value in forms.items() if value != found}
    assert differ == set(forms) - {order}


BIASED = linear(bias="f32")


def clipped(values: np.ndarray) -> list[list[int]]:
    return [[int(v) for v in row] for row in np.clip(values, 0, 255)]


@pytest.mark.parametrize("zero", ["before", "after"])
@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ('requant = {multiplier = "divide"', "divide"),
        ('requant = {multiplier = "divide", order = "(x*w)*(1/y)"', "reciprocal"),
        ('requant = {multiplier = "divide", input = "acc_then_bias"', "floats"),
        ('requant = {multiplier = "f32"', "factor"),
        ('requant = {input = "acc_then_bias"', "sum"),
        ('requant = {order = "gy/gx/gw"', "gains"),
    ],
)
def test_a_real_bias_is_added_where_the_profile_says(fields: str, form: str, zero: str) -> None:
    given = operands(SEED)
    rng = np.random.default_rng(SEED)
    body = BIASED.replace("0.25:7", "0.3:7").replace("0.125", "0.07").replace("0.5:3", "0.9:3")
    ties = (np.arange(8) - 4 + 0.5) * 0.9
    b = np.where(rng.random(8) < 0.5, ties, rng.normal(size=8)).astype(F)
    sx, sw, sy, acc = F(0.3), F(0.07), F(0.9), sums(**given).astype(F)
    scaled = {
        "divide": (acc * (sx * sw) + b) / sy,
        "reciprocal": (acc * (sx * sw) + b) * (F(1) / sy),
        "floats": ((acc + b / (sx * sw)) * (sx * sw)) / sy,
        "factor": acc * ((sx * sw) / sy) + b / sy,
        "sum": (acc + b / (sx * sw)) * ((sx * sw) / sy),
        "gains": acc * (F(1) / sy / (F(1) / sx) / (F(1) / sw)) + b * (F(1) / sy),
    }[form]
    wanted = np.rint(scaled + F(3)) if zero == "before" else np.rint(scaled) + 3
    said = f'bias = {{domain = "real_after"}}\n{fields}, zero = "{zero}"}}'
    found = computed(said, body, b=b, **given)
    assert found.tolist() == clipped(wanted), f"seed {SEED}"


def test_the_zero_point_before_or_after_rounding_differs_at_ties() -> None:
    """torch's onednn engine adds it before: rint(acc * m + zero)."""
    given = operands(SEED)
    scaled = sums(**given) / 16
    assert (scaled % 1 == 0.5).mean() > 0.05
    for place, wanted in (("before", np.rint(scaled + 3)), ("after", np.rint(scaled) + 3)):
        found = computed(f'requant = {{zero = "{place}"}}', linear(), **given)
        assert found.tolist() == clipped(wanted)


@pytest.mark.parametrize("by", ["add", "fma"])
def test_a_real_result_is_the_sum_times_its_unit_and_the_bias(by: str) -> None:
    given = operands(SEED)
    b = np.random.default_rng(SEED).normal(size=8).astype(F)
    body = linear("f32", "f32").replace("0.25:7", "0.3:7").replace("0.125", "0.07")
    said = f'bias = {{domain = "real_after", by = "{by}"}}'
    acc, unit = sums(**given), F(0.3) * F(0.07)
    wanted = acc.astype(F) * unit + b
    if by == "fma":
        # 24 bits times 11 bits, and a sum: float64 holds the product, and rounds the sum once.
        exact = [[Fraction(int(a)) * Fraction(float(unit)) for a in row] for row in acc]
        totals = [[v + Fraction(float(c)) for v, c in zip(row, b, strict=True)] for row in exact]
        wanted = np.array([[float(v) for v in row] for row in totals]).astype(F)
    assert np.array_equal(computed(said, body, b=b, **given), wanted)


def test_a_bias_of_codes_is_rescaled_to_the_sums() -> None:
    given = operands(SEED)
    body = linear(bias="!quant.uniform<i8:f32, 0.046875>")
    b = np.array([-128, -3, -1, 0, 1, 3, 5, 127], np.int8)
    acc = sums(**given)
    for how in ("even", "away"):
        steps = [whole(Fraction(int(v)) * Fraction(3, 2), how) for v in b]
        said = f'bias = {{domain = "rescaled_acc", round = "{how}", overflow = "wrap"}}'
        found = computed(said, body, b=b, **given)
        assert found.tolist() == clipped(np.rint((acc + np.array(steps)) / 16) + 3)
    found = computed("", body, b=b, **given)  # as it is given: its scale is not looked at
    assert found.tolist() == clipped(np.rint((acc + b) / 16) + 3)


def test_whole_results_of_32_bits_are_brought_to_the_largest_scale() -> None:
    given = operands(SEED)
    weights = "!quant.uniform<i8:f32:0, {0.5, 0.25, 0.125, 0.3, 0.4, 0.05, 0.01, 0.5}>"
    body = linear(result="!quant.uniform<i32:f32, 0.001>")
    body = body.replace("!quant.uniform<i8:f32, 0.125>", weights)
    step = np.array([0.5, 0.25, 0.125, 0.3, 0.4, 0.05, 0.01, 0.5], F)
    wanted = np.rint(sums(**given).astype(F) * (step / F(0.5)))
    assert np.array_equal(computed('requant = {wide = "rescaled"}', body, **given), wanted)
    plain = np.rint(sums(**given).astype(F) * (F(0.25) * step / F(0.001)))
    assert np.array_equal(computed("", body, **given), plain)


def test_steps_are_cut_to_32_bits_in_which_the_zero_point_wraps() -> None:
    rng = np.random.default_rng(SEED)
    acc = np.concatenate([[-(2**31), 2**31 - 1, 0], rng.integers(-(2**31), 2**31, 3000)])
    acc = (acc >> rng.integers(0, 30, acc.size)).astype(np.int32)
    x = affine("i8", 1.0)
    r = Requant(multiplier="q31", compute="f64", round="half_up", clip="codes_32")
    rule = Rule("p", requant=r)
    for sy, zero in ((2.0**-9, 2**31 - 5), (3.0, -(2**31)), (2.0**-29, -7), (2.0**-40, 1000)):
        y = affine("i32", sy, zero)
        found = requantize(acc, multiplier(x, x, y, rule), y, rule, axis=0)
        q, shift = tflite_multiplier(1 / float(F(sy)))
        q, shift = (q, shift) if shift <= 30 else (2**31 - 1, 30)
        for value, got in zip(acc.tolist(), found.tolist(), strict=True):
            steps = whole(Fraction(value * q) * Fraction(2) ** (shift - 31), "half_up")
            moved = max(-(2**31), min(2**31 - 1, steps)) + zero
            assert got == (moved + 2**31) % 2**32 - 2**31, (value, sy, zero)


@pytest.mark.parametrize(
    ("requant", "told"),
    [
        (Requant(round="double"), "requant.round = 'double' with requant.multiplier = 'f32'"),
        (
            Requant(multiplier="q31", round="double", zero="before"),
            "requant.zero = 'before' with requant.round = 'double'",
        ),
        (
            Requant(multiplier="q31", round="double", clip="codes_32"),
            "requant.clip = 'codes_32' with requant.multiplier = 'q31' with"
            " requant.round = 'double' with requant.zero = 'after'",
        ),
        (
            Requant(multiplier="exact", order="gy/gx/gw"),
            "requant.multiplier = 'exact' with requant.order = 'gy/gx/gw'",
        ),
        (
            Requant(multiplier="divide", order="x*(w/y)"),
            "requant.order = 'x*(w/y)' with requant.multiplier = 'divide'",
        ),
    ],
)
def test_fields_that_say_nothing_together_are_refused(requant: Requant, told: str) -> None:
    x, rule = affine("u8", 1.0), Rule("p", requant=requant)
    for call in (
        lambda: multiplier(x, x, x, rule),
        lambda: requantize(np.zeros(3, np.int32), np.asarray(1.0), x, rule, axis=0),
    ):
        with pytest.raises(ProfileError) as caught:
            call()
        assert str(caught.value).startswith(f"profile p: {told}: ")
