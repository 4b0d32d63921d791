"""Integers of up to 64 bits are exact, against Python's integers and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir.dtype import F32, F64, DType, dtype
from qir.ir.types import Array, Granularity, QuantType
from qir.numerics import affine, affine_of, dequantize, map_of, quantize
from qir.numerics.definition import requantize
from qir.numerics.fields import Dequantize, Quantize, Requant, Rule

Tensor = NDArray[Any]
SEED = 12
KINDS = ("i33", "u40", "i63", "u63", "i64", "u64")
DOUBLE = Rule("wide", quantize=Quantize(compute="f64"), dequantize=Dequantize(compute="f64"))


def zeros_of(kind: DType) -> list[int]:
    low, high = kind.bounds
    return [low, high, 3, (1 << 31) + 5, min(high, (1 << 53) + 1), high - 7]


def rounded(value: int, kind: DType) -> float:
    """The nearest number of a float type, ties to even."""
    bits = 53 if kind is F64 else 24
    shift = max(abs(value).bit_length() - bits, 0)
    return float(round(Fraction(value, 1 << shift)) << shift)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("clip", ["codes", "reals_first"])
def test_codes_of_reals_are_exact_and_saturate(name: str, clip: Any) -> None:
    kind, rng = dtype(name), np.random.default_rng(SEED)
    rule = Rule("wide", quantize=Quantize(compute="f64", clip=clip))
    floats = np.concatenate([rng.normal(0, 10.0**e, 200) for e in range(20)])
    floats[:5] = [1.0, np.inf, -np.inf, 2.0**70, -(2.0**63)]
    low, high = kind.bounds
    for zero in zeros_of(kind):
        to = QuantType(kind, F64, scale=(0.5,), zero=(zero,))
        got = quantize(floats, map_of(to), rule)
        assert got.dtype == kind.carrier
        whole = [r / 0.5 for r in floats]  # exact
        wanted = [
            (low if v < 0 else high)
            if np.isinf(v)
            else min(max(round(Fraction(v)) + zero, low), high)
            for v in whole
        ]
        assert got.tolist() == wanted
        assert quantize(floats, affine_of(to), rule).tolist() == wanted
        assert quantize(floats[:50], map_of(to), rule).tolist() == wanted[:50]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("express", [F32, F64])
def test_reals_of_codes_are_rounded_once(name: str, express: DType) -> None:
    kind, rng = dtype(name), np.random.default_rng(SEED)
    low, high = kind.bounds
    some = rng.integers(low, high, 3000, kind.carrier, endpoint=True)
    some[:4] = low, high, min(high, 2**53 + 3), 2**24 + 3
    some[4:1000] >>= kind.carrier.type(8)
    rule = DOUBLE if express is F64 else Rule("single")
    for zero in zeros_of(kind):
        of = QuantType(kind, express, zero=(zero,))
        wanted = [rounded(int(c) - zero, express) for c in some]
        for m in (map_of(of), affine_of(of)):
            assert dequantize(some, m, rule).tolist() == wanted
            assert dequantize(some[:60], m, rule).tolist() == wanted[:60]


def test_a_zero_of_64_bits_may_stand_in_an_array() -> None:
    data = Array.of(np.array([2**64 - 1, 1], np.uint64), "z")
    of = QuantType(dtype("u64"), F64, (1.0, 1.0), data, granularity=Granularity(((0, 1),)))
    quantized = np.array([2**64 - 4, 4], np.uint64)
    assert dequantize(quantized, map_of(of), DOUBLE).tolist() == [-3.0, 3.0]
    assert quantize(np.array([-3.0, 3.0]), map_of(of), DOUBLE).tolist() == quantized.tolist()


@pytest.mark.parametrize("clip", ["codes", "reals"])
def test_sums_become_codes_of_64_bits(clip: Any) -> None:
    sums = np.array([7, -(2**31), 2**31 - 1, 0], np.int32)
    y = affine("i64", 1.0, np.array(2**62 + 1))
    rule = Rule("r", requant=Requant(clip=clip))
    got = requantize(sums, np.asarray(np.float32(1)), y, rule)
    assert got.tolist() == [int(np.float32(s)) + 2**62 + 1 for s in sums]
