"""Every field of a scale rule against its formula in fractions and plain floats."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import ProfileError
from qir.ir.dtype import I8, U8, dtype
from qir.numerics import choose
from qir.numerics.fields import Choose

F = np.float32
SEED = 9
Tensor = NDArray[Any]
LEVELS = (("*", 127.0),)


def ranges(count: int = 400) -> tuple[Tensor, Tensor]:
    """Ranges about zero, above it and below it."""
    rng = np.random.default_rng(SEED)
    ends = np.sort(rng.normal(size=(2, count)) * 2.0 ** rng.integers(-10, 10, count), axis=0)
    return ends[0].astype(F), ends[1].astype(F)


def wide() -> tuple[Tensor, Tensor]:
    low, high = ranges()
    return np.minimum(low, 0), np.maximum(high, 0)


def test_a_symmetric_range_reaches_as_far_as_is_said() -> None:
    low, high = wide()
    forms = {
        "absmax": np.maximum(-low, high) / F(127),
        "span": (high - low) / F(127),
        "sides": np.maximum(-low / F(128), high / F(127)),
    }
    for reach, wanted in forms.items():
        rule = Choose(reach=reach, levels=LEVELS)  # type: ignore[arg-type]
        scale, _ = choose(low, high, I8, rule, symmetric=True)
        assert np.array_equal(scale, wanted), reach
    above, most = high > 0, Choose(reach="max", levels=LEVELS)
    scale, _ = choose(low[above], high[above], U8, most, symmetric=True)
    assert np.array_equal(scale, high[above] / F(127))
    with pytest.raises(ProfileError, match="counts from zero up"):
        choose(low[above], high[above], I8, most, symmetric=True)
    with pytest.raises(ProfileError, match="nothing above zero"):
        choose(low, high, U8, most, symmetric=True)
    scale, _ = choose(low, high, I8, Choose(reach="span"), symmetric=True)
    assert np.array_equal(scale, (high - low) / F(255))


def test_a_range_that_is_not_widened_keeps_its_ends() -> None:
    low, high = ranges()
    scale, _ = choose(low, high, U8, Choose(range="as_is"))
    assert np.array_equal(scale, (high - low) / F(255))


@pytest.mark.parametrize("compute", ["f32", "f64"])
def test_gains_are_kept_and_scales_are_one_over_them(compute: str) -> None:
    low, high = wide()
    kind: Any = F if compute == "f32" else np.float64
    rule = Choose(keep="gain", levels=LEVELS, compute=compute)  # type: ignore[arg-type]
    scale, _ = choose(low, high, I8, rule, symmetric=True)
    reach = np.maximum(-low, high).astype(kind)
    gain = (kind(1) / (reach / kind(127))).astype(F).astype(kind)
    assert np.array_equal(scale, (kind(1) / gain).astype(F))


def nearest_power(value: float) -> float:
    return 2.0 ** round(math.log2(value))


@pytest.mark.parametrize("store", ["f16", "bf16", "f64", "e8m0_floor", "e8m0_up", "pow2"])
def test_scales_are_stored_in_each_type(store: str) -> None:
    low, high = wide()
    rule = Choose(store=store, compute="f64", levels=LEVELS)  # type: ignore[arg-type]
    found, _ = choose(low, high, I8, rule, symmetric=True)
    exact = np.maximum(-low, high).astype(np.float64) / 127
    forms: dict[str, Any] = {
        "f64": lambda v: v,
        "f16": lambda v: float(np.float16(v)),
        "bf16": lambda v: float(ml_dtypes.bfloat16(v)),
        "e8m0_floor": lambda v: 2.0 ** math.floor(math.log2(v)),
        "e8m0_up": lambda v: 2.0 ** math.ceil(math.log2(v)),
        "pow2": nearest_power,
    }
    assert found.astype(np.float64).tolist() == [forms[store](v) for v in exact.tolist()]
    assert found.dtype == {"f16": np.float16, "f64": np.float64}.get(store, F)


def test_powers_of_two_stay_and_exponents_have_eight_bits() -> None:
    ends = np.array([1.0, 0.5, 2.0**-140, 0.0, 2.0**100], F)
    for store in ("e8m0_floor", "e8m0_up", "pow2"):
        rule = Choose(store=store, levels=(("*", 1.0),))
        scale, _ = choose(-ends, ends, I8, rule, symmetric=True)
        small = 2.0**-140 if store == "pow2" else 2.0**-127
        none = 0.0 if store == "pow2" else 2.0**-127
        assert scale.astype(float).tolist() == [1.0, 0.5, small, none, 2.0**100]


def exact_whole(value: Fraction, how: str) -> int:
    down, rest = math.floor(value), value - math.floor(value)
    if rest == Fraction(1, 2):
        return down + (down % 2 if how == "even" else value > 0)
    return down + (rest > Fraction(1, 2))


@pytest.mark.parametrize("how", ["even", "away"])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("zero", ["best_end", "qmin-round(min/s)", "round(qmin-min/s)"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_zero_points_are_rounded_from_the_end_that_is_said(
    kind: str, zero: str, clamp: bool, how: str
) -> None:
    """On scales that are powers of two, and ends that lie on halves: every quotient is exact."""
    rng = np.random.default_rng(SEED)
    steps = rng.integers(-300, 300, 500) / 2
    low, high = (steps / 8).astype(F), ((steps + 255) / 8).astype(F)
    rule = Choose("as_is", zero=zero, zero_round=how, zero_clamp=clamp)  # type: ignore[arg-type]
    scale, found = choose(low, high, dtype(kind), rule)
    assert (scale == 0.125).all()
    least, most = dtype(kind).bounds
    wanted = []
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        below, above = Fraction(a) * 8, Fraction(b) * 8
        if zero == "best_end":
            near = abs(least) + abs(below) < abs(most) + abs(above)
            value = exact_whole(least - below if near else most - above, how)
        elif zero == "qmin-round(min/s)":
            value = least - exact_whole(below, how)
        else:
            value = exact_whole(least - below, how)
        wanted.append(max(least, min(most, value)) if clamp else value)
    assert found.tolist() == wanted


def test_a_zero_point_may_be_real_or_none() -> None:
    low, high = ranges()
    scale, zero = choose(low, high, U8, Choose(zero="real"))
    assert zero.dtype == F
    assert np.array_equal(zero, np.clip(-np.minimum(low, 0) / scale, 0, 255))
    for symmetric in (True, False):
        _, zero = choose(low, high, U8, Choose(zero="none"), symmetric=symmetric)
        assert not zero.any()
    for word in ("real", "best_end"):  # a symmetric scheme has its middle code
        _, zero = choose(low, high, U8, Choose(zero=word), symmetric=True)
        assert (zero == 128).all()


def test_narrow_ranges_are_widened_and_small_scales_raised() -> None:
    low, high = wide()
    low, high = np.append(low, F(0)), np.append(high, F(0))
    size = np.maximum(np.maximum(-low, high), F(1))
    forms = {
        "widen_abs:0.25": (np.maximum(high, low + F(0.25)) - low) / F(255),
        "widen_rel:0.01": (np.maximum(high, low + F(0.01) * size) - low) / F(255),
        "floor:0.125": np.maximum((high - low) / F(255), F(0.125)),
        "min_of_max:0.25": np.maximum(
            (high - low) / F(255), F(0.25) * ((high - low) / F(255)).max()
        ),
        "replace_below:0.01:7": np.where((high - low) / F(255) < 0.01, F(7), (high - low) / F(255)),
    }
    for small, wanted in forms.items():
        scale, _ = choose(low, high, U8, Choose(small=small))
        assert np.array_equal(scale, wanted.astype(F)), small


def test_a_narrow_range_is_opened_at_both_ends() -> None:
    rule = Choose(small="open_below:0.5:0.25", compute="f64", zero="round(qmin-min/s)")
    low, high = np.array([-0.1, 0, -0.4, -2], F), np.array([0.2, 0, 0.4, 1], F)
    more = np.array([0.25, 0.25, 0, 0])
    least, most = low.astype(np.float64) - more, high.astype(np.float64) + more
    scale, zero = choose(low, high, U8, rule)
    assert np.array_equal(scale, ((most - least) / 255).astype(F))
    assert np.array_equal(zero, np.rint(-least / ((most - least) / 255)))
    scale, zero = choose(low, high, U8, rule, symmetric=True)  # about zero: as wide as said
    assert np.array_equal(scale, (np.array([0.25, 0.25, F(0.4), 2]) / 127.5).astype(F))


def test_a_range_whose_scale_is_too_small_is_amplified() -> None:
    rule = Choose(small="amplify_below:0.5:7", compute="f64")
    low = np.array([-2, 0, -2, -100, 0, 0], F)
    high = np.array([1, 1, 0, 100, 0, 1e-40], F)
    scale, zero = choose(low, high, U8, rule)
    assert scale.tolist() == [0.5, 0.5, 0.5, F(200 / 255), 7, 7]
    factor = F(0.5) / F(3 / 255)
    assert zero.tolist() == [np.rint(float(F(2) * factor) / 0.5), 0, 255, 128, 0, 0]


def test_a_scale_in_float32_may_have_a_zero_point_in_float64() -> None:
    rng = np.random.default_rng(5)
    low, high = (rng.uniform(*ends, 1_000_000).astype(F) for ends in ((-300, 0), (0, 300)))
    rules = [Choose(compute="f32"), Choose(compute="f32_f64")]
    (one, zero), (two, other) = (choose(low, high, U8, rule) for rule in rules)
    assert np.array_equal(one, two)
    assert np.array_equal(zero, other)  # a quotient is rounded once, whether by way of float64
    least = low.astype(np.float64) / one.astype(np.float64)
    rules = [replace(rule, zero="round(qmin-min/s)", zero_round="away") for rule in rules]
    (_, zero), (_, other) = (choose(low, high, I8, rule) for rule in rules)
    exact = (-128 - least).astype(F).astype(np.float64)
    wanted = np.copysign(np.floor(np.abs(exact) + 0.5), exact)
    assert np.array_equal(other, wanted.clip(-128, 127))
    assert np.any(zero != other)


def test_the_ends_of_a_range_may_be_subtracted_in_float32() -> None:
    rng = np.random.default_rng(6)
    low, high = (rng.uniform(*ends, 100_000).astype(F) for ends in ((-3, 0), (0, 300)))
    rule = Choose(compute="f64", store="f64", zero="round(qmin-min/s)")
    scale, zero = choose(low, high, U8, replace(rule, width="f32"))
    width = (high - low).astype(np.float64)
    assert np.array_equal(scale, width / 255)
    assert np.array_equal(zero, np.rint(-low.astype(np.float64) / (width / 255)))
    assert np.any(scale != choose(low, high, U8, rule)[0])


def test_a_range_is_moved_until_zero_is_on_its_grid() -> None:
    """One end stays, the other moves out: every zero point is then exact."""
    low, high = wide()
    crossing = (low < 0) & (high > 0)
    low, high = low[crossing].astype(np.float64), high[crossing].astype(np.float64)
    rule = Choose(nudge="range_to_grid", compute="f64", store="f64")
    scale, zero = choose(low, high, U8, rule)
    least, most = (0 - zero) * scale, (255 - zero) * scale
    kept = np.isclose(least, low, rtol=1e-12) | np.isclose(most, high, rtol=1e-12)
    inside = (zero > 0) & (zero < 255)
    assert kept.all()
    assert inside.mean() > 0.5
    plain = (high - low) / 255
    assert (scale[inside] >= plain[inside] * (1 - 1e-12)).all()
    assert (np.abs(scale - plain) <= plain * 0.5 / np.minimum(zero, 255 - zero).clip(1) * 1.01)[
        inside
    ].all()


def test_seven_bits_are_for_activations_or_for_weights() -> None:
    low, high = np.array([-1.5], F), np.array([4.0], F)
    cases = [
        ("activations7", False, U8, 5.5 / 127, 4.0 / 63.5, 64),
        ("activations7", False, I8, 5.5 / 127, 4.0 / 63.5, 0),
        ("weights7", True, I8, 5.5 / 128, 4.0 / 64, 0),
        ("weights7", True, U8, 5.5 / 127, 4.0 / 63.5, 64),
        ("activations7", True, I8, 5.5 / 255, 4.0 / 127, 0),
        ("weights7", False, U8, 5.5 / 255, 4.0 / 127, 128),
    ]
    for reduce, weight, storage, affine, symmetric, middle in cases:
        rule = Choose(reduce=reduce, levels=LEVELS, compute="f64")  # type: ignore[arg-type]
        scale, zero = choose(low, high, storage, rule, weight=weight)
        assert scale[0] == F(affine), (reduce, weight)
        assert storage.bounds[0] <= zero[0] <= storage.bounds[1]
        scale, zero = choose(low, high, storage, rule, symmetric=True, weight=weight)
        assert (scale[0], zero[0]) == (F(symmetric), middle), (reduce, weight)


@pytest.mark.parametrize("digits", [0, 3, 6])
def test_ranges_are_written_with_few_digits(digits: int) -> None:
    low, high = wide()
    scale, _ = choose(low, high, U8, Choose(decimals=str(digits), compute="f64"))
    ends = [[float(f"{float(v):.{digits}f}") for v in end] for end in (low, high)]
    wanted = [(b - a) / 255 for a, b in zip(*ends, strict=True)]
    assert scale.tolist() == np.array(wanted).astype(F).tolist()
