"""TensorFlow's pools, concatenations, activations and requantizations of integers, to the byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.types import QuantType
from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F, Held, predicted, ranged
from tests.differential.tensorflow.kernels import (
    BOUNDS,
    KINDS,
    SETTINGS,
    Asked,
    Kind,
    TensorFlow,
    random_integers,
)

BYTES = ("qint8", "quint8")


def of(kind: str, low: float, high: float) -> QuantType:
    """A type by the range that a tensor declares."""
    begin, end = BOUNDS[kind]
    scale = max(F(high) / F(end), F(low) / F(begin) if begin else F(0))
    return ranged(KINDS[kind], scale, low, high, float(end))


# -- 32 bits to bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("name", SETTINGS)
def test_requantize(runtimes: Mapping[str, TensorFlow], name: str, kind: str) -> None:
    count, seen = Count(), Count()
    begin, end = BOUNDS[kind]
    for seed in range(24):
        rng = np.random.default_rng(seed)
        high = 2.0**14 if seed % 2 else float(F(rng.uniform(1000, 9000)))
        most = float(end) / 32 if seed % 2 else float(F(rng.uniform(0.3, 2)))
        least = -most if begin else 0.0
        step = 2 * most / 255 if begin else most / 255
        halves = rng.integers(2 * begin - 200, 2 * end + 200, 400) * 0.5
        unit = high / 2.0**31
        x = np.clip(np.rint(halves * step / unit), -(2.0**31), 2.0**31 - 1).astype(np.int32)
        if seed % 8 >= 6:  # all of the 32 bits
            x = random_integers(rng, "qint32", 400)
        operands = [(x, "qint32"), -high, high, least, most]
        kinds = {"Tinput": Kind("qint32"), "out_type": Kind(kind)}
        wanted = runtimes[name].op("Requantize", operands, **kinds)[0]
        given = {"x": Held(x, ranged("i32", F(high) / F(2.0**31), -high, high, 2.0**31))}
        to = of(kind, least, most)
        count.add(predicted(name, "requantize", given, to, x.shape), wanted, seed)
        seen.see(halves, begin, end)
    count.holds(profile(name).resolve(Query("requantize")).claim)
    seen.rich()


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("name", SETTINGS)
def test_requantize_beside_ties(runtimes: Mapping[str, TensorFlow], name: str, kind: str) -> None:
    """Ranges of any ends, and 32-bit integers on ties of theirs and up to three beside."""
    count, seen = Count(), Count()
    begin, end = BOUNDS[kind]
    for seed in range(60):
        rng = np.random.default_rng([seed, 3])
        high = float(F(10.0 ** rng.uniform(-1, 6)))
        low = -high if seed % 3 else -float(F(high * 10.0 ** rng.uniform(-2, 1)))
        most = float(F(10.0 ** rng.uniform(-3, 4)))
        least = -most if seed % 2 else -float(F(most * 10.0 ** rng.uniform(-2, 0)))
        least = least if begin else 0.0
        step, unit = (most - least) / 255, (high - low) / 2.0**32
        halves = rng.integers(2 * begin - 150, 2 * end + 150, 400) * 0.5
        x = np.rint(halves * step / unit) + rng.integers(-3, 4, 400)
        x = np.clip(x, -(2.0**31), 2.0**31 - 1).astype(np.int32)
        kinds = {"Tinput": Kind("qint32"), "out_type": Kind(kind)}
        wanted = runtimes[name].op("Requantize", [(x, "qint32"), low, high, least, most], **kinds)[
            0
        ]
        given = {"x": Held(x, ranged("i32", F(high) / F(2.0**31), low, high, 2.0**31))}
        to = of(kind, least, most)
        count.add(predicted(name, "requantize", given, to, x.shape), wanted, seed)
        seen.see(np.rint(2 * x * unit / step) / 2, begin, end)
    count.holds(profile(name).resolve(Query("requantize")).claim)
    seen.rich()


@pytest.mark.parametrize("kind", BYTES)
def test_requantize_by_channels(runtimes: Mapping[str, TensorFlow], kind: str) -> None:
    name, count = "tf-2.21.onednn", Count()
    begin, end = BOUNDS[kind]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        high = rng.uniform(1000, 9000, 8).astype(F)
        most = F(rng.uniform(0.5, 3))
        halves = rng.integers(2 * begin - 200, 2 * end + 200, (1, 5, 20, 8)) * 0.5
        x = np.rint(halves * float(most) / end / (high.astype(np.float64) / 2**31))
        x = np.clip(x, -(2.0**31), 2.0**31 - 1).astype(np.int32)
        least = -most if begin else F(0)
        operands = [(x, "qint32"), np.asarray(-high), np.asarray(high), least, most]
        kinds = {"T": Kind("qint32"), "out_type": Kind(kind)}
        wanted = runtimes[name].op("RequantizePerChannel", operands, **kinds)[0]
        kind_of = ranged("i32", high / F(2.0**31), -high, high, 2.0**31, axis=3)
        to = of(kind, float(least), float(most))
        given = {"x": Held(x, kind_of)}
        count.add(predicted(name, "requantize", given, to, x.shape), wanted, seed)
    count.holds("exact")


# -- products of two tensors ----------------------------------------------------------------------


@pytest.mark.parametrize("op", ["QuantizedMul", "QuantizedAdd"])
@pytest.mark.parametrize("name", SETTINGS)
def test_two_tensors(runtimes: Mapping[str, TensorFlow], name: str, op: str) -> None:
    """Results of 32 bits: of vectors, vectors beside rows, and single numbers on either side."""
    count, ours = Count(), "mul" if op == "QuantizedMul" else "add"
    for seed in range(72):
        rng = np.random.default_rng(seed)
        shapes = (((7, 9), (7, 9)), ((seed,), ()), ((6, seed + 1), (seed + 1,)), ((), ()))[seed % 4]
        a, b = (np.asarray(random_integers(rng, "quint8", *shape)) for shape in shapes)
        ends = [float(F(v)) for v in rng.uniform(0.1, 3, 4) * (-1, 1, -1, 1)]
        ends[0] = 0.0 if seed % 5 == 1 else ends[0]
        ends[2:] = (-4.0, -0.5) if seed % 7 == 1 and ours == "add" else ends[2:]
        pairs = [(a, ends[:2]), (b, ends[2:])][:: -1 if seed % 3 else 1]
        asked = Asked()
        inputs = [asked.fed(x, "quint8") for x, _ in pairs]
        inputs += [asked.constant(F(v)) for _, end in pairs for v in end]
        types = {"T1": Kind("quint8"), "T2": Kind("quint8"), "Toutput": Kind("qint32")}
        node = asked.node(op, inputs, **types)
        wanted, low, high = runtimes[name].run(asked, *(f"{node}:{i}" for i in range(3)))
        given = {
            slot: Held(x, ranged("u8", F(end[1]) / F(255), end[0], end[1], 255.0))
            for slot, (x, end) in zip("ab", pairs, strict=True)
        }
        to = ranged("i32", F(high) / F(2.0**31), float(low), float(high), 2.0**31)
        count.add(predicted(name, ours, given, to, wanted.shape), wanted, seed)
    asked_of = Query(ours, {"a": "u8", "b": "u8", "result": "i32"})
    count.holds(profile(name).resolve(asked_of).claim)


# -- concat ---------------------------------------------------------------------------------------


def joined(
    runtime: TensorFlow, op: str, kind: str, xs: Sequence[Array], ends: Sequence[tuple[float, ...]]
) -> list[Array]:
    asked = Asked()
    names = [asked.fed(x, kind) for x in xs]
    axis = asked.constant(np.int32(2))
    lows, highs = ([asked.constant(F(end[i])) for end in ends] for i in (0, 1))
    if op == "QuantizedConcat":
        node = asked.node(op, [axis, *names, *lows, *highs], N=len(xs), T=Kind(kind))
    else:
        inputs = [*names, axis, *lows, *highs]
        node = asked.node(op, inputs, N=len(xs), T=Kind(kind), Tidx=Kind("int32"))
    return runtime.run(asked, *(f"{node}:{i}" for i in range(3)))


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("tf-2.21.core", "QuantizedConcat", "quint8"),
        ("tf-2.21.onednn", "QuantizedConcat", "quint8"),
        ("tf-2.21.onednn", "QuantizedConcatV2", "quint8"),
        ("tf-2.21.onednn", "QuantizedConcatV2", "qint8"),
    ],
)
def test_concat(runtimes: Mapping[str, TensorFlow], name: str, op: str, kind: str) -> None:
    count = Count()
    for seed in range(18):
        rng = np.random.default_rng(seed)
        xs = [random_integers(rng, kind, 2, 7, int(rng.integers(1, 40))) for _ in range(3)]
        highs = rng.uniform(0.5, 6, 3).astype(F)
        if seed % 3 == 0:
            highs = (highs[0] * 2.0 ** rng.integers(-2, 1, 3)).astype(F)
        if seed % 3 == 1:
            highs[:] = highs[0]
        ends = [(-float(v) if kind == "qint8" else 0.0, float(v)) for v in highs]
        wanted, low, high = joined(runtimes[name], op, kind, xs, ends)
        given = {
            f"xs.{i}": Held(x, of(kind, *end))
            for i, (x, end) in enumerate(zip(xs, ends, strict=True))
        }
        to = of(kind, float(low), float(high))
        count.add(predicted(name, "concat", given, to, wanted.shape, {"axis": 2}), wanted, seed)
    count.holds(profile(name).resolve(Query("concat", forms=("held_ranges",))).claim)
    assert profile(name).resolve(Query("concat")).claim == "unknown"


# -- pools and activations ------------------------------------------------------------------------


WINDOWS = ((2, 7), (4, 7), (2, 13), (1, 12), (5, 6), (7, 7))
"""Windows of which a sum times what 1 divided by their size is may be no quotient."""


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("op", ["avg_pool2d", "max_pool2d"])
@pytest.mark.parametrize("name", SETTINGS)
def test_pools(runtimes: Mapping[str, TensorFlow], name: str, op: str, kind: str) -> None:
    count, ties, telling = Count(), 0, 0
    for seed in range(10 + len(WINDOWS)):
        rng = np.random.default_rng(seed)
        size, stride = (int(rng.integers(1, 5)),) * 2, int(rng.integers(1, 3))
        x = random_integers(rng, kind, 1, 12, 13, int(rng.integers(1, 71)))
        if seed >= 10:
            size, stride = WINDOWS[seed - 10], 1
        to = of(kind, -2.0 if kind == "qint8" else 0.0, 2.0)
        low, high = to.declared.low[0], to.declared.high[0]  # type: ignore[union-attr, index]
        theirs = "QuantizedAvgPool" if op == "avg_pool2d" else "QuantizedMaxPool"
        wanted = runtimes[name].op(
            theirs,
            [(x, kind), low, high],
            T=Kind(kind),
            ksize=(1, *size, 1),
            strides=(1, stride, stride, 1),
            padding="VALID",
        )[0]
        sums = np.lib.stride_tricks.sliding_window_view(x, size, (1, 2)).sum((-2, -1), np.int64)
        means = sums / math.prod(size)
        ties += int((means % 1 == 0.5)[:, ::stride, ::stride].sum())
        telling += int(
            (np.rint(sums.astype(F) * (F(1) / F(math.prod(size)))) != np.rint(means)).sum()
        )
        attrs: dict[str, Attr] = {
            "kernel": size,
            "stride": (stride, stride),
            "layout": "NHWC",
        }
        count.add(predicted(name, op, {"x": Held(x, to)}, to, wanted.shape, attrs), wanted, seed)
    count.holds(profile(name).resolve(Query(op)).claim)
    assert ties > 0.05 * count.total
    assert telling > 50


@pytest.mark.parametrize("kind", ["quint8", "qint32"])
@pytest.mark.parametrize("op", ["QuantizedRelu", "QuantizedRelu6"])
def test_activations(runtimes: Mapping[str, TensorFlow], op: str, kind: str) -> None:
    name, count = "tf-2.21.core", Count()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        high = float(F(rng.uniform(0.5, 12)))
        low = -high if kind == "qint32" else 0.0
        x, to = random_integers(rng, kind, 3, 70), of(kind, low, high)
        kinds = {"Tinput": Kind(kind), "out_type": Kind(kind)}
        wanted = runtimes[name].op(op, [(x, kind), low, high], **kinds)[0]
        attrs: dict[str, Attr] = {} if op == "QuantizedRelu" else {"min": 0.0, "max": 6.0}
        ours = "clip" if attrs else "relu"
        count.add(predicted(name, ours, {"x": Held(x, to)}, to, x.shape, attrs), wanted, seed)
    count.holds(profile(name).resolve(Query("clip")).claim)
