"""TensorFlow's QuantizedMatMul and QuantizedConv2D: sums of unsigned integers as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.types import QuantType
from qir.numerics.rounding import ROUNDINGS
from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F, Held, predicted, ranged
from tests.differential.tensorflow.kernels import (
    SETTINGS,
    Asked,
    Kind,
    TensorFlow,
    random_integers,
)

Ends = tuple[float, float]


def of(low: float, high: float) -> QuantType:
    """A type with the code for zero that the kernels find in a range."""
    gain = 256 / (float(F(high) - F(low)) * (256 / 255.0))
    zero = -int(ROUNDINGS["away"](np.asarray(float(F(low)) * gain)))
    return ranged("u8", (F(high) - F(low)) / F(255), low, high, 255.0, zero=zero)


def held(runtime: TensorFlow, asked: Any, node: str, a: QuantType, b: QuantType) -> Array:
    """The sums, whose range must be that of the product of both scales."""
    sums, low, high = runtime.run(asked, *(f"{node}:{i}" for i in range(3)))
    step = a.scale[0] * b.scale[0]  # type: ignore[index]
    assert (float(low), float(high)) == (
        float(F(step) * F(-(2.0**31))),
        float(F(step) * F(2.0**31)),
    )
    return sums


def to_sums(a: QuantType, b: QuantType) -> QuantType:
    step = float(F(a.scale[0]) * F(b.scale[0]))  # type: ignore[index]
    return ranged("i32", step, -step * 2.0**31, step * 2.0**31, 2.0**31)


def some(rng: np.random.Generator, seed: int) -> tuple[Ends, Ends]:
    """Ranges of which some begin at zero."""
    low, high = (float(F(v)) for v in (-rng.uniform(0, 3), rng.uniform(0.5, 4)))
    first = (0.0 if seed % 5 == 0 else low, high)
    return first, (float(F(-rng.uniform(0, 3))), float(F(rng.uniform(0.5, 9))))


def multiplied(runtime: TensorFlow, name: str, trials: range) -> Count:
    count = Count()
    for seed in trials:
        rng = np.random.default_rng(seed)
        rows, deep, columns = (int(v) for v in rng.integers(1, 71, 3))
        deep = 1500 if seed % 11 == 3 else deep  # sums that no float32 holds
        turns = {"transpose_a": bool(seed & 1), "transpose_b": bool(seed & 2)}
        a = random_integers(rng, "quint8", *((deep, rows) if seed & 1 else (rows, deep)))
        b = random_integers(rng, "quint8", *((columns, deep) if seed & 2 else (deep, columns)))
        a, b = (np.maximum(a, 200), np.maximum(b, 200)) if deep == 1500 else (a, b)
        first, second = some(rng, seed)
        first, second = ((0.0, e[1]) if deep == 1500 else e for e in (first, second))
        asked = Asked()
        given = [asked.fed(a, "quint8"), asked.fed(b, "quint8")]
        given += [asked.constant(F(v)) for v in (*first, *second)]
        kinds = {k: Kind("quint8") for k in ("T1", "T2", "Tactivation")}
        node = asked.node("QuantizedMatMul", given, Toutput=Kind("qint32"), **kinds, **turns)
        kind = of(*first), of(*second)
        wanted = held(runtime, asked, node, *kind)
        op = "gemm" if seed & 4 else "matmul"
        attrs: dict[str, Attr] = {"trans_a": bool(seed & 1), "trans_b": bool(seed & 2)}
        operands = {"a": Held(a, kind[0]), "b": Held(b, kind[1])}
        found = predicted(name, op, operands, to_sums(*kind), wanted.shape, attrs)
        count.add(found, wanted, seed)
    return count


def convolved(runtime: TensorFlow, name: str, trials: range) -> Count:
    count = Count()
    for seed in trials:
        rng = np.random.default_rng(seed)
        deep, many = int(rng.integers(1, 71 if seed % 3 == 0 else 9)), int(rng.integers(1, 20))
        height, width, stride = (int(v) for v in rng.integers(1, (4, 4, 3)))
        first, second = some(rng, seed)
        long = seed % 8 == 5  # sums that no float32 holds
        if long:
            deep, height, width, first, second = 70, 3, 3, (0.0, first[1]), (0.0, second[1])
        x = random_integers(rng, "quint8", 1, 7, 8, deep)
        w = random_integers(rng, "quint8", height, width, deep, many)
        x, w = (np.maximum(x, 200), np.maximum(w, 200)) if long else (x, w)
        asked = Asked()
        given = [asked.fed(x, "quint8"), asked.constant(w, "quint8")]
        given += [asked.constant(F(v)) for v in (*first, *second)]
        kinds = {k: Kind("quint8") for k in ("Tinput", "Tfilter")}
        node = asked.node(
            "QuantizedConv2D",
            given,
            out_type=Kind("qint32"),
            strides=(1, stride, stride, 1),
            dilations=(1, 1, 1, 1),
            padding="VALID" if seed & 1 else "SAME",
            **kinds,
        )
        kind = of(*first), of(*second)
        wanted = held(runtime, asked, node, *kind)
        sides = [0, 0, 0, 0]
        if not seed & 1:
            for i, (size, k) in enumerate(((7, height), (8, width))):
                room = max((-(-size // stride) - 1) * stride + k - size, 0)
                sides[i], sides[i + 2] = room // 2, room - room // 2
        attrs: dict[str, Attr] = {
            "layout": "NHWC",
            "stride": (stride, stride),
            "pad": tuple(sides),
        }
        weights = np.ascontiguousarray(w.transpose(3, 2, 0, 1))
        operands = {"x": Held(x, kind[0]), "w": Held(weights, kind[1])}
        found = predicted(name, "conv2d", operands, to_sums(*kind), wanted.shape, attrs)
        count.add(found, wanted, seed)
    return count


BYTES = {"a": "u8", "b": "u8", "result": "i32"}
WEIGHTS = {"x": "u8", "w": "u8", "result": "i32"}


@pytest.mark.parametrize("name", SETTINGS)
def test_matrix_products_of_unsigned_codes(runtimes: Mapping[str, TensorFlow], name: str) -> None:
    count = multiplied(runtimes[name], name, range(40))
    for op in ("matmul", "gemm"):
        count.holds(profile(name).resolve(Query(op, BYTES)).claim)


@pytest.mark.parametrize("name", SETTINGS)
def test_convolutions_of_unsigned_codes(runtimes: Mapping[str, TensorFlow], name: str) -> None:
    """Padding is the code for zero."""
    count = convolved(runtimes[name], name, range(24))
    count.holds(profile(name).resolve(Query("conv2d", WEIGHTS)).claim)
