"""The rules of TensorFlow's profiles that make and move integers, against its own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.scheme import Scheme
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType
from qir.numerics.rounding import ROUNDINGS
from qir.profiles import Query, parameters_for_range, profile
from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.predictions import Array, Count, F, Held, Number, predicted, ranged
from tests.differential.tensorflow.kernels import (
    BOUNDS,
    KINDS,
    SETTINGS,
    Kind,
    TensorFlow,
)


def widened(low: Number, high: Number) -> tuple[np.float32, np.float32]:
    """A range as kernels use it: with zero in it, and not too narrow."""
    least = min(F(0), F(low))
    room = F(max(F(1), abs(F(low)), abs(F(high))) * F(0.01))
    return least, max(F(0), F(high), F(least + room))


def ranges(seed: int) -> tuple[float, float]:
    """Any range, ones whose steps are powers of two among them."""
    rng = np.random.default_rng(seed)
    if seed % 4 == 0:
        return -127.5 * 2.0 ** -(seed % 5), 127.5 * 2.0 ** -(seed % 5)
    if seed % 4 == 1:
        return -128.0 / 2 ** (seed % 3), 127.0 / 2 ** (seed % 3)
    low = -rng.uniform(0, 8) if seed % 8 != 2 else rng.uniform(0, 0.5)
    return float(F(low)), float(F(max(low, 0) + rng.uniform(0.3, 9)))


def random_floats(seed: int, step: float, low: int, high: int) -> Array:
    """Half steps and their neighbours, beyond the integers too; a count up to 70, or many."""
    rng = np.random.default_rng(seed)
    length = 1500 if seed % 3 else int(rng.integers(1, 71))
    span = high - low
    halves = rng.integers(2 * low - span // 2, 2 * high + span // 2, length)
    x = (halves * 0.5 * step).astype(F)
    return np.where(rng.random(length) < 0.3, np.nextafter(x, rng.choice([-9, 9])), x).astype(F)


def below_half(step: np.float32) -> Array:
    """Half a step and what lies just below it, where adding a half may carry."""
    found = [F(0.5) * step]
    for _ in range(8):
        found.append(np.nextafter(found[-1], F(0)))
    return np.asarray(found, F)


# -- QuantizeV2 -----------------------------------------------------------------------------------

ROUNDS = {"HALF_AWAY_FROM_ZERO": "away", "HALF_TO_EVEN": "even"}
DEFAULT = {"tf-2.21.onednn": "HALF_TO_EVEN", "tf-2.21.core": "HALF_AWAY_FROM_ZERO"}
"""How a profile rounds where the node does not say it."""


def scaled(kind: str, low: float, high: float, *, narrow: bool) -> QuantType:
    """The type of mode SCALED for a range that is asked for."""
    least, most = widened(low, high)
    begin, end = BOUNDS[kind]
    bounds = (begin + 1, end) if narrow else None
    scale = max(most / F(end), abs(least) / F(max(-begin, 1))) if begin else most / F(end)
    return ranged(KINDS[kind], scale, least, most, float(end), bounds=bounds)


def quantized(
    name: str, runtime: TensorFlow, kind: str, how: str, *, narrow: bool, trials: range
) -> tuple[Count, Count]:
    """What differs, and how rich the inputs were."""
    count, seen = Count(), Count()
    begin, end = BOUNDS[kind]
    for seed in trials:
        low, high = ranges(seed)
        to = scaled(kind, low, high, narrow=narrow)
        reach = float(max(abs(F(low)), abs(F(high))))
        step = reach / (255 if kind == "quint8" else 127.5 if seed % 2 else 127)
        x = random_floats(seed, step, begin, end)
        wanted = runtime.op(
            "QuantizeV2",
            [x, low, high],
            T=Kind(kind),
            mode="SCALED",
            round_mode=how,
            narrow_range=narrow,
        )[0]
        attrs: dict[str, Attr] = {"round": ROUNDS[how]}
        if how == DEFAULT[name] and seed % 2:
            attrs = {}
        found = predicted(name, "quantize", {"x": Held(x)}, to, x.shape, attrs)
        count.add(found, wanted, (seed, low, high))
        seen.see(x.astype(np.float64) / step, begin, end)
    return count, seen


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("how", ROUNDS)
@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_quantize_v2_scaled(
    runtimes: Mapping[str, TensorFlow], name: str, kind: str, how: str, narrow: bool
) -> None:
    count, seen = quantized(name, runtimes[name], kind, how, narrow=narrow, trials=range(24))
    count.holds(profile(name).resolve(Query("quantize")).claim)
    seen.rich()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("how", ROUNDS)
@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_quantize_v2_along_an_axis(
    runtimes: Mapping[str, TensorFlow], name: str, kind: str, how: str, narrow: bool
) -> None:
    """Each index of the axis as a tensor of its own would be, by its own range."""
    count = Count()
    begin, end = BOUNDS[kind]
    for seed in range(8):
        pairs = [ranges(8 * seed + i) for i in range(8)]
        kinds = [scaled(kind, *pair, narrow=narrow) for pair in pairs]
        reach = [max(abs(F(low)), abs(F(high))) for low, high in pairs]
        steps = np.asarray(reach, F) / F(255 if kind == "quint8" else 127.5 if seed % 2 else 127)
        x = np.stack(
            [random_floats(seed, float(s), begin, end).reshape(-1)[:400] for s in steps], 1
        )
        lows, highs = (np.asarray(ends, F) for ends in zip(*pairs, strict=True))
        wanted = runtimes[name].op(
            "QuantizeV2",
            [x, lows, highs],
            T=Kind(kind),
            mode="SCALED",
            round_mode=how,
            narrow_range=narrow,
            axis=1,
        )[0]
        declared = [k.declared for k in kinds]
        least, most = (
            np.asarray([d.low[0] if i == 0 else d.high[0] for d in declared], F)  # type: ignore[union-attr, index]
            for i in (0, 1)
        )
        scales = np.asarray([k.scale[0] for k in kinds], F)  # type: ignore[index]
        bounds = (begin + 1, end) if narrow and begin else kinds[0].bounds
        to = ranged(KINDS[kind], scales, least, most, float(end), axis=1, bounds=bounds)
        attrs: dict[str, Attr] = {"round": ROUNDS[how]}
        count.add(predicted(name, "quantize", {"x": Held(x)}, to, x.shape, attrs), wanted, seed)
    rule = profile(name).resolve(Query("quantize", {"result": KINDS[kind]}, "channel"))
    count.holds(rule.claim)


def offset(kind: str, low: Number, high: Number, *, first: bool) -> QuantType:
    """The type of modes MIN_FIRST and MIN_COMBINED: steps from an end, no code for zero."""
    least, most = widened(low, high)
    begin = BOUNDS[kind][0]
    step = (most - least) / F(255)
    if not first:
        return ranged(KINDS[kind], step, least, most, 255.0, plus=least, zero=begin)
    plus = F(ROUNDINGS["away"](np.asarray(least / step, F))) * step
    return ranged(KINDS[kind], step, least, most, 255.0, plus=plus - F(begin) * step)


MODES = {
    ("tf-2.21.onednn", "MIN_FIRST"): "tf-2.21.onednn.min_first",
    ("tf-2.21.core", "MIN_FIRST"): "tf-2.21.min_first",
    ("tf-2.21.onednn", "MIN_COMBINED"): "tf-2.21.min_combined",
    ("tf-2.21.core", "MIN_COMBINED"): "tf-2.21.min_combined",
}


@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_quantize_v2_from_the_low_end(
    runtimes: Mapping[str, TensorFlow], name: str, mode: str, kind: str
) -> None:
    count, seen = Count(), Count()
    for seed in range(24):
        low, high = ranges(seed)
        least, most = widened(low, high)
        to = offset(kind, low, high, first=mode == "MIN_FIRST")
        x = random_floats(seed, float(most - least) / 255, 0, 255)
        x = x if mode == "MIN_FIRST" and seed % 2 else np.add(x, least, dtype=F)
        wanted = runtimes[name].op("QuantizeV2", [x, low, high], T=Kind(kind), mode=mode)[0]
        found = predicted(MODES[name, mode], "quantize", {"x": Held(x)}, to, x.shape)
        count.add(found, wanted, (seed, low, high))
        seen.see((x.astype(np.float64) - float(least)) * 255 / float(most - least), 0, 255)
    rule = profile(MODES[name, mode]).resolve(Query("quantize", {"result": KINDS[kind]}))
    count.holds(rule.claim)
    seen.rich()


def along(kind: str, pairs: Sequence[tuple[float, float]]) -> QuantType:
    """The type of mode MIN_COMBINED with a range for each index of axis 1."""
    kinds = [offset(kind, *pair, first=False) for pair in pairs]
    low, high = (np.asarray(end, F) for end in zip(*(widened(*p) for p in pairs), strict=True))
    scales = np.asarray([k.scale[0] for k in kinds], F)  # type: ignore[index]
    made = ranged(KINDS[kind], scales, low, high, 255.0, axis=1, zero=BOUNDS[kind][0])
    return replace(made, plus=tuple(k.plus[0] for k in kinds))  # type: ignore[index]


@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_quantize_v2_from_the_low_end_along_an_axis(
    runtimes: Mapping[str, TensorFlow], name: str, kind: str
) -> None:
    """Mode MIN_COMBINED alone has such a kernel."""
    count, mode = Count(), "tf-2.21.min_combined"
    for seed in range(12):
        pairs = [ranges(8 * seed + i) for i in range(8)]
        ends = [widened(*pair) for pair in pairs]
        many = enumerate(ends)
        x = [
            random_floats(24 * seed + 3 * i + 1, float(b - a) / 255, 0, 255)[:400]
            for i, (a, b) in many
        ]
        x = [np.add(v, a, dtype=F) if seed % 2 else v for v, (a, _) in zip(x, ends, strict=True)]
        data = np.stack(x, 1)
        for i, (low, high) in enumerate(ends):
            data[:9, i] = low + below_half((high - low) / F(255))
        lows, highs = (np.asarray(end, F) for end in zip(*pairs, strict=True))
        wanted = runtimes[name].op(
            "QuantizeV2", [data, lows, highs], T=Kind(kind), mode="MIN_COMBINED", axis=1
        )[0]
        found = predicted(mode, "quantize", {"x": Held(data)}, along(kind, pairs), data.shape)
        count.add(found, wanted, seed)
    rule = profile(mode).resolve(Query("quantize", {"result": KINDS[kind]}, "channel"))
    count.holds(rule.claim)


# -- Dequantize -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["SCALED", "MIN_FIRST", "MIN_COMBINED"])
@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_dequantize(runtimes: Mapping[str, TensorFlow], name: str, kind: str, mode: str) -> None:
    begin, end = BOUNDS[kind]
    x = np.arange(begin, end + 1).astype(np.int8 if begin else np.uint8)
    for seed in range(12):
        low, high = widened(*ranges(seed))
        if mode == "SCALED":
            scale = max(high / F(end), low / F(begin)) if begin else high / F(end)
            of = ranged(KINDS[kind], scale, low, high)
        else:
            of = offset(kind, low, high, first=mode == "MIN_FIRST")
        wanted = runtimes[name].op("Dequantize", [(x, kind), low, high], T=Kind(kind), mode=mode)[0]
        found = predicted(name, "dequantize", {"x": Held(x, of)}, None, x.shape)
        note(found, wanted)
        assert np.array_equal(found, wanted), (seed, low, high)


# -- ranges and fake quantization -----------------------------------------------------------------


def chosen(name: str) -> None:
    """Scales of ranges, ones that are widened among them, by the formula of the kernels."""
    rng = np.random.default_rng(5)
    low = np.asarray(-rng.uniform(0, 8, 400) * rng.choice([0, 0.001, 1], 400), F)
    high = np.asarray(low + rng.uniform(0.0001, 9, 400) * rng.choice([0.001, 1], 400), F)
    ends = [widened(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    for kind in ("qint8", "quint8"):
        begin, end = BOUNDS[kind]
        scheme = Scheme(dtype(KINDS[kind]), symmetric=True)
        if not begin and name == "tf-2.21.core":  # which refuses ranges with nothing above zero
            above = high > 0
            _, zero = parameters_for_range(profile(name), low[above], high[above], scheme)
            assert not zero.any()
            continue
        scale, zero = parameters_for_range(profile(name), low, high, scheme)
        if name == "tf-2.21.core":
            wanted = [max(b / F(end), a / F(min(begin, -1)) if begin else F(0)) for a, b in ends]
        else:
            wanted = [max(abs(a), abs(b)) / F(end) for a, b in ends]
        assert np.array_equal(scale, np.array(wanted, F)), kind
        assert not zero.any()


@pytest.mark.parametrize("name", SETTINGS)
def test_scales_of_ranges(name: str) -> None:
    chosen(name)


def faked(runtime: TensorFlow, name: str) -> Count:
    """What differs, in steps."""
    count = Count()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        low, high = F(-rng.uniform(0.1, 8)), F(rng.uniform(0.1, 9))
        low = F(0) if seed % 4 == 0 else low
        step = (high - low) / F(255)
        zero = int(np.clip(ROUNDINGS["away"](np.asarray(-low / step, F)), 0, 255))
        x = random_floats(seed, float(step), -zero, 255 - zero)
        x[:9] = x[:9] if low else below_half(step)[: len(x)]
        wanted = runtime.op("FakeQuantWithMinMaxVars", [x, low, high], num_bits=8)[0]
        kind = ranged("u8", step, low, high, zero=zero)
        graph = Graph("one", profile=name)
        value = graph.constant(Stored(x, TensorType(x.shape, dtype("f32"))))
        node = graph.add("fake_quantize", {"x": value}, inner={"code": kind})
        graph.add("output", {"y": node.result})
        found = run(graph, {})["y"]
        in_steps = [np.rint(v.astype(np.float64) / float(step)) for v in (found, wanted)]
        assert np.allclose(wanted, in_steps[1] * float(step), rtol=1e-6, atol=1e-7)
        count.add(in_steps[0], in_steps[1], seed)
    return count


def test_fake_quantization(runtimes: Mapping[str, TensorFlow]) -> None:
    name = "tf-2.21.core"
    rule = profile(name).resolve(Query("fake_quantize"))
    faked(runtimes[name], name).holds(rule.claim)
