"""onnxruntime's own QuantizeLinear and DequantizeLinear, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .contrib import F, equal, one

KINDS: dict[str, tuple[Any, int]] = {
    "u8": (np.uint8, TensorProto.UINT8),
    "i8": (np.int8, TensorProto.INT8),
    "u16": (np.uint16, TensorProto.UINT16),
    "i16": (np.int16, TensorProto.INT16),
}


def numbers(kind: str, count: int) -> list[Any]:
    """One scale and zero point, or several."""
    rng, carrier = np.random.default_rng(71), KINDS[kind][0]
    ends, shape = np.iinfo(carrier), (count,) if count > 1 else ()
    scale = np.asarray(rng.uniform(0.01, 0.2, shape), F)
    zero = rng.integers(ends.min // 2, ends.max // 2, shape).astype(carrier)
    return [("s", scale), ("z", np.asarray(zero))]


def along(count: int) -> dict[str, Any]:
    """An axis where it says something."""
    return {"axis": 1} if count > 1 else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7])
def test_codes_become_reals(kind: str, count: int) -> None:
    rng, carrier = np.random.default_rng(72), KINDS[kind][0]
    ends = np.iinfo(carrier)
    x = rng.integers(ends.min, ends.max, (5, 7, 3), endpoint=True).astype(carrier)
    operands = [("x", x), *numbers(kind, count)]
    equal(one("DequantizeLinear", operands, ["x"], {"y": TensorProto.FLOAT}, **along(count)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7])
def test_reals_become_codes_to_even_at_ties(kind: str, count: int) -> None:
    rng, number = np.random.default_rng(73), KINDS[kind][1]
    (_, scale), zero = numbers(kind, count)
    steps = rng.integers(-300, 300, (5, 7, 3)) / F(2)
    x = np.asarray(steps * scale.reshape(-1, 1), F)
    operands = [("x", x), ("s", scale), zero]
    equal(one("QuantizeLinear", operands, ["x"], {"y": number}, **along(count)))
