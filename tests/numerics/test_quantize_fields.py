"""Floats to integers by gains, spans and pairs, and back: against the formulas of the
frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import ProfileError
from qir.ir.dtype import F32, dtype
from qir.ir.types import DeclaredBounds, Granularity, QuantType
from qir.numerics import Rule, affine, dequantize, map_of, quantize
from qir.numerics.affine import affine_of
from qir.numerics.fields import Choose, Dequantize, Params, Quantize

from .profiles import computed

F = np.float32
SEED = 4
Tensor = NDArray[Any]
MX = Choose(levels=(("i8", 127.5), ("u8", 255.5)))


def ranged(
    storage: str, low: float, high: float, scale: float, zero: int = 0, level: float | None = None
) -> QuantType:
    declared = DeclaredBounds((low,), (high,), level)
    return QuantType(dtype(storage), F32, (scale,), (zero,), declared=declared)


def away(x: Any) -> Tensor:
    whole = np.trunc(x.astype(np.float64))
    rest = x.astype(np.float64) - whole
    return np.asarray(whole + (rest >= 0.5) - (rest <= -0.5))


def random_floats(low: float, high: float, gain: float) -> Tensor:
    """Floats in and around a range, a third of them on ties of a gain."""
    rng = np.random.default_rng(SEED)
    ties = (rng.integers(-200, 300, 2000) + 0.5) / gain
    x = np.concatenate([rng.uniform(1.5 * low - 1, 1.5 * high + 1, 4000), ties, [0, low, high]])
    return x.astype(F)


PLAIN = Choose()


def rule(choose: Choose = PLAIN, **fields: Any) -> Rule:
    return Rule("p", choose=choose, quantize=Quantize(**fields))


@pytest.mark.parametrize(("low", "high"), [(-1.3, 2.0), (-2.5, 0.7), (-4.0, 4.0), (0.0, 1e-3)])
def test_a_gain_is_a_level_over_the_declared_range(low: float, high: float) -> None:
    """TensorFlow's SCALED with oneDNN and MXNet's quantize_v2."""
    reach = F(max(abs(F(low)), abs(F(high))))
    for storage, level, least, most in (("i8", 127.5, -128, 127), ("u8", 255.0, 0, 255)):
        kind = ranged(storage, low, high, float(reach / F(127)))
        by = rule(by="gain", levels=((storage, level),), zero="none")
        gain = F(level) / reach
        x = random_floats(low, high, float(gain))
        wanted = np.clip(np.rint(x * gain), least, most)
        for of in (map_of(kind), affine_of(kind)):
            assert np.array_equal(quantize(x, of, by), wanted), f"seed {SEED}"
        narrow = (level / float(reach / F(127))) / 127
        plain = replace(kind, declared=None)
        found = quantize(x, map_of(plain), replace(by, choose=Choose(levels=((storage, 127.0),))))
        gain = F(level) / (F(kind.scales()) * F(127)) if level != 127 else F(1) / F(kind.scales())
        assert narrow > 0
        assert np.array_equal(found, np.clip(np.rint(x * gain), least, most))


def test_the_level_of_readers_is_that_of_the_type_or_of_the_profile() -> None:
    x = random_floats(-1.0, 1.7, 75.0)
    by = rule(MX, by="gain")
    for level, wanted in ((None, F(127.5) / F(1.7)), (127.0, F(127) / F(1.7))):
        of = map_of(ranged("i8", -1.0, 1.7, 0.0133, level=level))
        assert np.array_equal(quantize(x, of, by), np.clip(np.rint(x * wanted), -128, 127))
        quantized = np.arange(-128, 128).astype(np.int8)
        back = Rule("p", choose=MX, dequantize=Dequantize(by="q/gain"))
        assert np.array_equal(dequantize(quantized, of, back), quantized.astype(F) / wanted)
    plain = map_of(QuantType(dtype("i8"), F32, (0.0133,)))
    assert np.array_equal(
        quantize(x, plain, by), np.clip(np.rint(x * (F(1) / F(0.0133))), -128, 127)
    )


@pytest.mark.parametrize(("low", "high"), [(-1.3, 2.0), (-2.5, 0.7), (-2.0, 2.0), (-3.0, 0.0)])
def test_the_wider_side_decides_a_gain_and_reals_are_cut_at_the_range(
    low: float, high: float
) -> None:
    """TensorFlow's core SCALED: min(qmin / min, qmax / max), cut, halves away."""
    gain = min(F(-128) / F(low) if low < 0 else np.inf, F(127) / F(high) if high > 0 else F(np.inf))
    x = random_floats(low, high, float(gain))
    cut = np.minimum(np.maximum(x, F(-128) / gain), F(127) / gain)
    wanted = np.clip(away(cut * gain), -128, 127)
    fields = {"by": "gain", "zero": "none", "round": "away", "clip": "range_first"}
    of = map_of(ranged("i8", low, high, 0.01))
    assert np.array_equal(quantize(x, of, rule(Choose(reach="sides"), **fields)), wanted)


@pytest.mark.parametrize("storage", ["u8", "i8"])
@pytest.mark.parametrize(("low", "high"), [(-1.3, 2.0), (0.0, 5.0), (-0.4, 0.013)])
def test_spans_and_pairs_are_tensorflows_combined_and_first(
    storage: str, low: float, high: float
) -> None:
    least, most = dtype(storage).bounds
    of = map_of(ranged(storage, low, high, 0.01))
    gain = F(255) / (F(high) - F(low))
    x = random_floats(low, high, float(gain))
    cut = np.clip(x, F(low), F(high))
    forms = {
        ("span", "after", "away", "codes"): away((x - F(low)) * gain) + least,
        ("span", "before", "away", "codes"): away((x - F(low)) * gain + F(least)),
        ("span", "after", "even", "range_first"): np.rint((cut - F(low)) * gain) + least,
        ("span", "pair", "away", "codes"): away(x * gain) - away(F(low) * gain) + least,
        ("span", "pair", "away", "range_first"): away(cut * gain) - away(F(low) * gain) + least,
    }
    for (by, zero, how, clip), wanted in forms.items():
        found = quantize(x, of, rule(by=by, zero=zero, round=how, clip=clip))
        assert np.array_equal(found, np.clip(wanted, least, most)), (by, zero, how, clip)
    narrow = rule(by="span", levels=((storage, 254.0),))
    wanted = np.rint((x - F(low)) * (F(254) / (F(high) - F(low)))) + least
    assert np.array_equal(quantize(x, of, narrow), np.clip(wanted, least, most))


def test_a_range_that_nobody_declares_is_what_the_codes_mean() -> None:
    of = map_of(QuantType(dtype("u8"), F32, (0.5,), (3,)))
    x = random_floats(-1.5, 126.0, 2.0)
    low, high = (F(0) - F(3)) * F(0.5), (F(255) - F(3)) * F(0.5)
    wanted = np.clip(np.rint((x - low) * (F(255) / (high - low))), 0, 255)
    assert np.array_equal(quantize(x, of, rule(by="span")), wanted)
    for by, scaled in (("divide", x / F(0.5)), ("reciprocal", x * F(2))):
        found = quantize(x, of, rule(by=by, zero="pair"))
        assert np.array_equal(found, np.clip(np.rint(scaled) - np.rint(low * F(2)), 0, 255))
        found = quantize(x, of, rule(by=by, clip="range_first"))
        cut = np.clip(x, low, high)
        wanted = np.clip(np.rint(cut / F(0.5)) + 3, 0, 255)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("by", ["divide", "reciprocal", "gain", "span"])
@pytest.mark.parametrize("compute", ["f32", "f64", "f16", "f64_reciprocal"])
def test_each_type_to_compute_in_rounds_every_step(by: str, compute: str) -> None:
    if (by, compute) == ("divide", "f64_reciprocal"):
        return
    low, high, scale = F(-1.3), F(2.1), F(0.0137)
    of = map_of(ranged("u8", -1.3, 2.1, 0.0137, 95))
    x = random_floats(-1.3, 2.1, 1 / 0.0137)
    kind: Any = {"f64": np.float64, "f16": np.float16}.get(compute, F)
    wide: Any = np.float64 if compute == "f64_reciprocal" else kind
    given = x.astype(kind)
    factors: dict[str, Any] = {
        "reciprocal": wide(1) / wide(scale),
        "gain": wide(255) / wide(high),
        "span": wide(255) / (wide(high) - wide(low)),
    }
    if by == "divide":
        steps = np.rint(given / kind(scale)).astype(np.float64) + 95
    else:
        by_factor = kind(factors[by])
        moved = given - kind(low) if by == "span" else given
        steps = np.rint(moved * by_factor).astype(np.float64) + (0 if by == "span" else 95)
    levels = (("u8", 255.0),) if by == "gain" else ()
    found = quantize(x, of, rule(by=by, compute=compute, levels=levels))
    assert np.array_equal(found, np.clip(steps, 0, 255))


@pytest.mark.parametrize("zero", [0, 11])
def test_codes_mean_reals_in_each_way(zero: int) -> None:
    quantized = np.arange(256).astype(np.uint8)
    of = map_of(QuantType(dtype("u8"), F32, (0.0137,), (zero,), plus=(-2.7,)))
    q, s, z, p = quantized.astype(F), F(0.0137), F(zero), F(-2.7)
    forms = {
        "(q-z)*s": (q - z) * s + p,
        "q*s-z*s": (q * s - z * s) + p,
        "q*s+plus": q * s + (p - z * s if zero else p),
        "q/gain": (q - z) / (F(1) / s) + p,
    }
    for by, wanted in forms.items():
        back = Rule("p", dequantize=Dequantize(by=by))  # type: ignore[arg-type]
        assert np.array_equal(dequantize(quantized, of, back), wanted), by
    half = Rule("p", dequantize=Dequantize(by="q*s+plus"), params=Params(round="f16"))
    hs = s.astype(np.float16).astype(F)
    offset = F(p - z * hs if zero else p).astype(np.float16).astype(F)
    assert np.array_equal(dequantize(quantized, of, half), q * hs + offset)


@pytest.mark.parametrize("many", [7, 5000])
def test_zero_points_meet_codes_of_32_bits_as_whole_numbers_or_as_reals(many: int) -> None:
    of, zero = affine("i32", 0.5, 77), 77
    rng = np.random.default_rng(SEED)
    steps = rng.integers(-(2**31) + 2**8, 2**31 - 2**8, many).astype(F)
    whole = steps.astype(np.int64) + zero
    found = quantize(steps * F(0.5), of, rule(by="reciprocal", zero="after"))
    assert np.array_equal(found, whole)
    found = quantize(steps * F(0.5), of, rule(by="reciprocal", zero="after", sum="real"))
    assert np.array_equal(found, (steps + F(zero)).astype(np.float64))
    assert not np.array_equal(found, whole)
    quantized = whole.astype(np.int32)
    for how, wanted in (
        ("whole", quantized.astype(np.int64) - zero),
        ("real", quantized.astype(F) - F(77)),
    ):
        back = Rule("p", dequantize=Dequantize(codes=how))  # type: ignore[arg-type]
        assert np.array_equal(dequantize(quantized, of, back), wanted.astype(F) * F(0.5)), how


def test_reals_that_processors_cannot_convert_are_the_lowest_codes() -> None:
    x = np.array([2.0**30, 2.0**31, 2.0**62, 2.0**63, np.inf, -(2.0**63), -np.inf], F)
    forms = {
        "end": [127, 127, 127, 127, 127, -128, -128],
        "low_32": [127, -128, -128, -128, -128, -128, -128],
        "low_64": [127, 127, 127, -128, -128, -128, -128],
    }
    for far, wanted in forms.items():
        for length in (7, 7000):
            found = quantize(np.resize(x, length), affine("i8", 1.0, 5), rule(far=far))
            assert np.array_equal(found, np.resize(wanted, length)), far


def test_a_zero_point_is_added_to_the_lowest_of_32_bits_and_wraps() -> None:
    x = np.array([2.0**31, -(2.0**31), -(2.0**32), 2.0**31 - 128, 2.0**30, np.inf, -np.inf], F)
    for zero, wanted in (
        (100, [-128, -128, -128, 127, 127, -128, -128]),
        (127, [-128, -128, -128, 127, 127, -128, -128]),
        (-1, [127, 127, 127, 127, 127, 127, 127]),
        (0, [-128, -128, -128, 127, 127, -128, -128]),
    ):
        found = quantize(x, affine("i8", 1.0, zero), rule(far="wrap_32"))
        assert np.array_equal(found, wanted), zero
    found = quantize(x[3:4], affine("u8", 1.0, 128), rule(far="wrap_32"))
    assert found.tolist() == [0], "the sum wraps"
    for clash in (rule(far="wrap_32", sum="real"), rule(far="wrap_32", zero="before")):
        with pytest.raises(ProfileError, match="whole numbers"):
            quantize(x, affine("i8", 1.0, 5), clash)


@pytest.mark.parametrize("length", [8, 3000])
def test_reals_that_end_at_32_bits_wrap_with_the_zero_point(length: int) -> None:
    """The integers of torch 2.15's quantize_per_tensor at these floats."""
    x = np.array([2.0**31, -(2.0**31), 2.0**31 - 256, 2.0**30, np.inf, -np.inf, np.nan, 7], F)
    x = np.resize(x, length)
    for kind, zero, wanted in (
        ("u8", 127, [255, 0, 255, 255, 255, 0, 255, 134]),
        ("u8", 128, [0, 0, 255, 255, 0, 0, 0, 135]),
        ("i8", -1, [127, 127, 127, 127, 127, 127, 127, 6]),
        ("i8", 127, [127, -128, 127, 127, 127, -128, 127, 127]),
    ):
        found = quantize(x, affine(kind, 1.0, zero), rule(far="clip_32", nan="far"))
        assert np.array_equal(found, np.resize(wanted, length)), (kind, zero)
    with pytest.raises(ProfileError, match="whole numbers"):
        quantize(x, affine("i8", 1.0, 5), rule(far="clip_32", zero="fused", by="reciprocal"))


@pytest.mark.parametrize("length", [3, 3000])
def test_a_nan_wraps_as_reals_do_that_32_bits_do_not_hold(length: int) -> None:
    x = np.resize(np.array([np.nan, 0, np.inf], F), length)
    for zero, code in ((5, -128), (-5, 127), (0, -128)):
        found = quantize(x, affine("i8", 1.0, zero), rule(far="wrap_32", nan="far"))
        assert np.array_equal(found, np.resize([code, zero, code], length)), zero
    with pytest.raises(ProfileError, match="a NaN wraps as they do"):
        quantize(x, affine("i8", 1.0, 5), rule(nan="far"))


@pytest.mark.parametrize("length", [3, 3000])
def test_a_nan_is_code_zero_wherever_the_zero_point_is(length: int) -> None:
    x = np.resize(np.array([np.nan, 0, 1], F), length)
    found = quantize(x, affine("i8", 1.0, 5), rule(nan="zero_code"))
    assert np.array_equal(found, np.resize([0, 5, 6], length))
    narrow = affine("u8", 1.0, 5, bounds=(1, 255))
    assert np.array_equal(quantize(x, narrow, rule(nan="zero_code")), np.resize([1, 5, 6], length))
    table = QuantType(dtype("u8"), F32, (1.0,), kind="lut", codes=(-3.0, -1.0, 0.5, 3.0))
    found = quantize(x, map_of(table), rule(nan="zero_code"))
    assert np.array_equal(found, np.resize([0, 2, 2], length))


def test_gains_along_an_axis_are_those_of_each_range() -> None:
    highs = (1.0, 2.0, 0.3)
    declared = DeclaredBounds(tuple(-h for h in highs), highs)
    scales = tuple(h / 127 for h in highs)
    kind = QuantType(
        dtype("i8"), F32, scales, granularity=Granularity(((1, 1),)), declared=declared
    )
    x = np.random.default_rng(SEED).normal(size=(500, 3)).astype(F)
    found = quantize(x, map_of(kind), rule(by="gain", levels=(("i8", 127.5),)))
    wanted = np.clip(np.rint(x * (F(127.5) / np.array(highs, F))), -128, 127)
    assert np.array_equal(found, wanted)
    assert np.array_equal(
        quantize(x, affine_of(kind), rule(by="gain", levels=(("i8/channel", 127.5),))), wanted
    )


def test_a_range_that_comes_while_running_is_taken_as_it_is() -> None:
    x = random_floats(-1.3, 2.1, 127.5 / 2.1)
    found = computed(
        'quantize = {by = "gain", zero = "none", clip = "codes", levels = {i8 = 127.5}}',
        f"%x = input() : {x.size}xf32\n%lo = input() : f32\n%hi = input() : f32\n"
        f"%y = quantize(%x, min=%lo, max=%hi) : {x.size}x!quant.uniform<i8:f32, ?>",
        x=x,
        lo=np.asarray(F(-1.3)),
        hi=np.asarray(F(2.1)),
    )
    assert np.array_equal(found, np.clip(np.rint(x * (F(127.5) / F(2.1))), -128, 127))
