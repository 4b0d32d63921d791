"""TensorFlow's uniform quantized ops, which take scales and zero points as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.types import QuantType, uniform
from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F, Held, predicted
from tests.differential.tensorflow.kernels import (
    BOUNDS,
    KINDS,
    SETTINGS,
    Asked,
    Kind,
    TensorFlow,
    random_integers,
)

NAME = "tf-2.21.uniform"


def ends(which: str, kind: str) -> dict[str, int]:
    """The bounds of integers as attributes, such as `lhs_quantization_min_val`."""
    low, high = BOUNDS[kind]
    name = f"{which}_" if which else ""
    return {f"{name}quantization_min_val": low, f"{name}quantization_max_val": high}


def numbers(asked: Any, kind: QuantType) -> list[str]:
    """Scales and zero points as operands."""
    scales, zeros = np.asarray(kind.scales()), np.asarray(kind.zeros())
    zeros = np.broadcast_to(zeros, scales.shape).astype(np.int32)
    return [asked.constant(np.asarray(scales, F)), asked.constant(zeros)]


def of(
    kind: str, scale: float | np.floating | Array, zero: int | Array = 0, axis: int | None = None
) -> QuantType:
    return uniform(dtype(KINDS[kind]), np.asarray(scale, F), zero, axis=axis)


def odd(rng: np.random.Generator, kind: str) -> int:
    low, high = BOUNDS[kind] if kind != "qint32" else (-1000, 1000)
    return int(rng.integers(low + 1, high - 1)) | 1


def beside(rng: np.random.Generator, base: np.float32, power: int, seed: int) -> np.float32:
    """A scale that is a power of two of another, or beside it."""
    return F(base * F(2.0**power) * (F(1) if seed % 3 else F(rng.uniform(0.7, 1.4))))


def some(rng: np.random.Generator, seed: int) -> np.float32:
    """A scale, of few bits where its product with another must not be rounded: sums lie on ties."""
    return F(int(rng.integers(10, 100)) * 2.0**-10 if seed % 2 else rng.uniform(0.01, 0.1))


def made_by(
    runtime: TensorFlow, asked: Any, op: str, operands: list[str], kinds: str, **attrs: Any
) -> Array:
    """What TensorFlow makes; `kinds`: the type of operands and that of the result."""
    tin, tout = map(Kind, kinds.split())
    node = asked.node(op, operands, Tin=tin, Tout=tout, **attrs)
    (found,) = runtime.run(asked, f"{node}:0")
    return found


def quantized(runtime: TensorFlow, kind: str, *, many: bool, trials: int = 20) -> Count:
    count = Count()
    low, high = BOUNDS[kind]
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        shape = (3, int(rng.integers(1, 71)))
        scale, zero = F(rng.uniform(0.01, 0.3)), odd(rng, kind)
        step: Array = np.asarray(scale)
        made = of(kind, scale, zero)
        if many:
            step = rng.uniform(0.01, 0.3, 3).astype(F)[:, None]
            made = of(kind, step[:, 0], np.array([odd(rng, kind) for _ in "123"]), 0)
            zero = 0
        halves = rng.integers(2 * (low - zero) - 150, 2 * (high - zero) + 150, shape)
        x = (halves.astype(F) * F(0.5) * step).astype(F)
        x = np.where(rng.random(shape) < 0.2, np.nextafter(x, F(9)), x).astype(F)
        x[:, :1] = np.nextafter(F(0.5), F(0)) * step  # a half is added, and that sum rounded
        count.see(x / step + zero, low, high)
        if seed % 4 == 3:  # what 32 bits do not hold, and what they hold without a zero point
            reach = rng.choice([2.0**30, 2.0**31 - 128, 2.0**31, 2.0**33, 3e38, np.inf], shape)
            there = (reach.astype(F) * rng.choice([-1, 1], shape).astype(F) * step).astype(F)
            x = np.where(rng.random(shape) < 0.2, there, x).astype(F)
            x = np.where(rng.random(shape) < 0.1, F(np.nan), x).astype(F)
        asked = Asked()
        operands = [asked.fed(x), *numbers(asked, made)]
        attrs = {"quantization_axis": 0 if many else -1, **ends("", kind)}
        wanted = made_by(runtime, asked, "UniformQuantize", operands, f"float {kind}", **attrs)
        found = predicted(NAME, "quantize", {"x": Held(x)}, made, shape)
        count.add(found, wanted, seed)
    return count


def whole_quantized(runtime: TensorFlow, trials: int = 40) -> Count:
    """Integers of 32 bits: steps of any size, and zero points with which they leave 32 bits."""
    count, leave = Count(), 0
    for seed in range(trials):
        rng = np.random.default_rng([seed, 7])
        zero = (0, odd(rng, "qint32"), int(rng.integers(-(2**31), 2**31)), -5)[seed % 4]
        made = of("qint32", F(rng.uniform(0.01, 0.3)), zero)
        halves = rng.integers(-(2**31), 2**31, 60) >> rng.integers(0, 30 if seed % 3 else 4, 60)
        x = halves.astype(F) * F(0.5 if seed % 3 else 4) * F(made.scales())
        x[:4] = F(np.nan)
        asked = Asked()
        operands = [asked.fed(x), *numbers(asked, made)]
        attrs = {"quantization_axis": -1, **ends("", "qint32")}
        wanted = made_by(runtime, asked, "UniformQuantize", operands, "float qint32", **attrs)
        steps = x.astype(np.float64) / float(made.scales()) + zero
        leave += int((np.abs(steps) >= 2.0**31).sum())
        count.add(predicted(NAME, "quantize", {"x": Held(x)}, made, x.shape), wanted, seed)
    assert leave >= 0.05 * count.total, f"{leave} of {count.total} leave 32 bits"
    return count


@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_quantize_to_32_bits(runtimes: Mapping[str, TensorFlow], name: str) -> None:
    count = whole_quantized(runtimes[name])
    count.holds(profile(NAME).resolve(Query("quantize", {"result": "i32"})).claim)


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "axis"])
@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_quantize(
    runtimes: Mapping[str, TensorFlow], name: str, kind: str, many: bool
) -> None:
    count = quantized(runtimes[name], kind, many=many)
    count.rich()
    count.holds(profile(NAME).resolve(Query("quantize")).claim)


def dequantized(runtime: TensorFlow, kind: str, trials: int = 12) -> Count:
    count = Count()
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        x = random_integers(rng, kind, int(rng.integers(1, 71)))
        held = of(kind, F(rng.uniform(0.01, 0.3)), odd(rng, kind))
        asked = Asked()
        operands, attrs = [asked.fed(x, kind), *numbers(asked, held)], ends("", kind)
        wanted = made_by(runtime, asked, "UniformDequantize", operands, f"{kind} float", **attrs)
        found = predicted(NAME, "dequantize", {"x": Held(x, held)}, None, x.shape)
        count.add(found, wanted, seed)
    return count


@pytest.mark.parametrize("kind", ["qint8", "quint8"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_dequantize(runtimes: Mapping[str, TensorFlow], name: str, kind: str) -> None:
    count = dequantized(runtimes[name], kind)
    count.holds(profile(NAME).resolve(Query("dequantize", {"x": KINDS[kind]})).claim)
    assert profile(NAME).resolve(Query("dequantize", {"x": "i32"})).claim == "unknown"


def requantized(runtime: TensorFlow, kind: str, trials: int = 30) -> Count:
    count = Count()
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        x = random_integers(rng, "qint8", int(rng.integers(1, 71))).astype(np.int32) * 3
        power = int(rng.integers(0, 3))
        if kind == "qint8":
            x, power = random_integers(rng, kind, x.size), int(rng.integers(-1, 2))
        base = F(rng.uniform(0.01, 0.3))
        held = of(kind, base, odd(rng, "qint8"))
        made = of("qint8", beside(rng, base, power, seed), odd(rng, "qint8"))
        asked = Asked()
        operands = [asked.fed(x, kind), *numbers(asked, held), *numbers(asked, made)]
        attrs = ends("input", kind) | ends("output", "qint8")
        wanted = made_by(runtime, asked, "UniformRequantize", operands, f"{kind} qint8", **attrs)
        steps = (x.astype(np.float64) - np.asarray(held.zeros())) * float(base)
        steps = steps / np.asarray(made.scales(), np.float64) + np.asarray(made.zeros())
        count.see(steps, -128, 127)
        found = predicted(NAME, "requantize", {"x": Held(x, held)}, made, x.shape)
        count.add(found, wanted, seed)
    return count


@pytest.mark.parametrize("kind", ["qint8", "qint32"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_requantize(runtimes: Mapping[str, TensorFlow], name: str, kind: str) -> None:
    count = requantized(runtimes[name], kind)
    count.rich()
    count.holds(profile(NAME).resolve(Query("requantize")).claim)


def far_requantized(runtime: TensorFlow, kind: str, trials: int = 48) -> Count:
    """Integers of any size, scales far apart, and zero points with which sums leave 32 bits."""
    count, leave = Count(), 0
    for seed in range(trials):
        rng = np.random.default_rng([seed, 5])
        x, zero = random_integers(rng, kind, 60), odd(rng, "qint8")
        if kind == "qint32" and seed % 2:
            x = (x >> rng.integers(0, 30, x.size)).astype(np.int32)
        if kind == "qint32" and seed % 4 == 3:
            any_of = int(rng.integers(-(2**31), 2**31))
            zero = (2**24, -(2**31), 2**31 - 1, any_of)[int(rng.integers(4))]
            near = zero + rng.integers(-300, 300, x.size)
            x = np.where(rng.random(x.size) < 0.5, near.clip(-(2**31), 2**31 - 1), x)
        if kind == "qint32" and seed % 8 == 0:
            x[:9] = 2**31 - np.array([1, 63, 64, 65, 66, 127, 128, 192, 193])
        x = x.astype(np.int8 if kind == "qint8" else np.int32)
        power = rng.uniform(*((-12, 3), (-34, -20), (10, 34))[seed // 4 % 3])
        if seed // 4 % 3 == 0 and seed % 4:  # half of them, or a quarter, lie on ties
            power = -float(rng.integers(1, 3))
        held = of(kind, F(rng.uniform(0.001, 0.3)), zero)
        made = of("qint8", F(float(held.scales()) * 2.0**-power), odd(rng, "qint8"))
        asked = Asked()
        operands = [asked.fed(x, kind), *numbers(asked, held), *numbers(asked, made)]
        attrs = ends("input", kind) | ends("output", "qint8")
        wanted = made_by(runtime, asked, "UniformRequantize", operands, f"{kind} qint8", **attrs)
        steps = (x.astype(np.float64) - zero) * 2.0**power
        leave += int((np.abs(steps) >= 2.0**31).sum())
        found = predicted(NAME, "requantize", {"x": Held(x, held)}, made, x.shape)
        count.add(found, wanted, seed)
    assert leave >= 0.05 * count.total, f"{leave} of {count.total} leave 32 bits"
    return count


@pytest.mark.parametrize("kind", ["qint8", "qint32"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_requantize_beyond_32_bits(
    runtimes: Mapping[str, TensorFlow], name: str, kind: str
) -> None:
    count = far_requantized(runtimes[name], kind)
    count.holds(profile(NAME).resolve(Query("requantize")).claim)


PRODUCT = ends("lhs", "qint8") | ends("rhs", "qint8") | ends("output", "qint32")
SUMS = {"a": "i8", "b": "i8", "result": "i32"}


def far_sums(rng: np.random.Generator, unit: np.floating | Array, seed: int) -> QuantType:
    """Integers of 32 bits so fine that sums leave these, or with zero points by which they do."""
    power = rng.uniform(*((8, 20), (20, 34), (-3, 8))[seed % 3])
    most = int(rng.integers(2**31 - 2**20, 2**31)) * int(rng.choice([-1, 1]))
    zero = (odd(rng, "qint32"), most, int(rng.integers(-(2**31), 2**31)))[int(rng.integers(3))]
    return of("qint32", F(float(unit) * 2.0**-power), zero)


def left_steps(steps: Array, kind: QuantType) -> int:
    """How many steps leave 32 bits, or do it with the zero point."""
    moved = steps + int(np.asarray(kind.zeros()).reshape(-1)[0])
    return int(((np.abs(steps) >= 2.0**31) | (np.abs(moved) >= 2.0**31)).sum())


def multiplied(runtime: TensorFlow, trials: int = 24, *, far: bool = False) -> Count:
    count, ties, leave = Count(), 0, 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        rows, deep, columns = (int(v) for v in rng.integers(1, (20, 71, 20)))
        a, b = (
            random_integers(rng, "qint8", rows, deep),
            random_integers(rng, "qint8", deep, columns),
        )
        left = of("qint8", some(rng, seed), odd(rng, "qint8"))
        right = of("qint8", some(rng, seed), odd(rng, "qint8") if seed % 3 else 0)
        unit = F(np.asarray(left.scales()) * np.asarray(right.scales()))
        made = of("qint32", beside(rng, unit, int(rng.integers(0, 8)), seed), odd(rng, "qint32"))
        if far:
            made = far_sums(rng, unit, seed)
        asked = Asked()
        operands = [asked.fed(a, "qint8"), asked.fed(b, "qint8")]
        operands += [n for kind in (left, right, made) for n in numbers(asked, kind)]
        wanted = made_by(runtime, asked, "UniformQuantizedDot", operands, "qint8 qint32", **PRODUCT)
        given = {"a": Held(a, left), "b": Held(b, right)}
        lefts, rights = (
            h.data.astype(np.float64) - np.asarray(h.kind.zeros())  # type: ignore[union-attr]
            for h in given.values()
        )
        steps = lefts @ rights * (float(unit) / np.asarray(made.scales(), np.float64))
        ties += int((steps - np.floor(steps) == 0.5).sum())
        leave += left_steps(steps, made)
        count.add(predicted(NAME, "matmul", given, made, wanted.shape), wanted, seed)
    assert far or ties > 0.05 * count.total, f"{ties} of {count.total} on ties"
    assert not far or leave > 0.05 * count.total, f"{leave} of {count.total} leave 32 bits"
    return count


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_products(runtimes: Mapping[str, TensorFlow], name: str, far: bool) -> None:
    count = multiplied(runtimes[name], far=far)
    count.holds(profile(NAME).resolve(Query("matmul", SUMS)).claim)


def convolved(runtime: TensorFlow, trials: int = 16, *, far: bool = False) -> Count:
    count = Count()
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        groups, into, outof = (int(v) for v in rng.integers(1, (3, 9, 5)))
        kernel, stride = (int(v) for v in rng.integers(1, 4, 2))
        x = random_integers(rng, "qint8", 2, groups * into, 7, 6)
        w = random_integers(rng, "qint8", groups * outof, into, kernel, kernel)
        data = of("qint8", some(rng, seed // 2), odd(rng, "qint8"))
        scale = some(rng, seed // 2)
        weights = of("qint8", scale)
        if seed % 2:
            scales = rng.uniform(0.01, 0.1, groups * outof).astype(F)
            weights = of("qint8", scales, np.zeros(len(scales), np.int64), 0)
        unit = F(np.asarray(data.scales()) * scale)
        made = of("qint32", beside(rng, unit, int(rng.integers(0, 8)), seed // 2), 7)
        if far:
            made = far_sums(rng, unit, seed)
        asked = Asked()
        operands = [asked.fed(x, "qint8"), asked.fed(w, "qint8")]
        operands += [n for kind in (data, weights, made) for n in numbers(asked, kind)]
        wanted = made_by(
            runtime,
            asked,
            "UniformQuantizedConvolution",
            operands,
            "qint8 qint32",
            padding="VALID",
            window_strides=(stride, stride),
            feature_group_count=groups,
            rhs_quantization_axis=0 if seed % 2 else -1,
            **PRODUCT,
        )
        attrs: dict[str, Attr] = {"stride": (stride, stride), "groups": groups}
        given = {"x": Held(x, data), "w": Held(w, weights)}
        count.add(predicted(NAME, "conv2d", given, made, wanted.shape, attrs), wanted, seed)
    return count


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("name", SETTINGS)
def test_uniform_convolutions(runtimes: Mapping[str, TensorFlow], name: str, far: bool) -> None:
    count = convolved(runtimes[name], far=far)
    claim = profile(NAME).resolve(Query("conv2d", {"x": "i8", "w": "i8", "result": "i32"})).claim
    count.holds(claim)
