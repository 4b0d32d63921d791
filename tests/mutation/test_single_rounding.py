"""TensorFlow Lite built to round once: no wheel is, so the formula of its source is held alone.

The inputs are those of the recorded cases, and those with scales of powers of two. Of these rules
nothing is claimed, but another way to round parts from the formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.numerics.accumulate import conv2d
from qir.profiles import profile
from tests.differential.one_op import computed
from tests.oracles.tflite_cases import SUITES, CaseOperand, OpCase
from tests.overriding import override_profile

NAME = "tflite-2.21.single"
SUITE = {"conv2d": "conv_ties", "mul": "mul"}
Whole = NDArray[np.int64]


def multiplied(acc: Whole, real: NDArray[np.float64]) -> Whole:
    """MultiplyByQuantizedMultiplier under TFLITE_SINGLE_ROUNDING, in whole numbers."""
    part, shift = np.frexp(real)
    mantissa = np.floor(part * 2.0**31 + 0.5).astype(np.int64)
    over = mantissa == 1 << 31
    mantissa, shift = np.where(over, mantissa // 2, mantissa), shift + over
    total = 31 - shift.astype(np.int64)
    return np.asarray((acc * mantissa + (np.int64(1) << (total - 1))) >> total)


def by_formula(case: OpCase) -> Whole:
    """The integers of a case without an activation."""
    at = {slot: of.data.astype(np.int64) - of.zero for slot, of in case.operands.items()}
    step = {slot: np.asarray(of.scale, np.float64) for slot, of in case.operands.items()}
    if case.op == "conv2d":
        named = ("stride", "pad", "dilation", "groups", "layout")
        kept = {name: case.attrs[name] for name in named}
        acc = conv2d(at["x"], at["w"], **kept) + at["bias"]  # type: ignore[arg-type]
        real = step["x"] * step["w"] / np.float64(np.float32(case.out.scale))
    else:
        acc = at["a"] * at["b"]
        one, two, out = (np.float32(s) for s in (step["a"], step["b"], case.out.scale))
        real = np.asarray(one * two / out, np.float64)
    quantized = multiplied(np.asarray(acc, np.int64), np.asarray(real)) + case.out.zero
    ends = np.iinfo(case.out.data.dtype.str)
    return np.clip(quantized, ends.min, ends.max)


def in_powers(of: CaseOperand) -> CaseOperand:
    """With the nearest powers of two for scales, so that sums lie on ties."""
    scale = np.exp2(np.rint(np.log2(np.asarray(of.scale, np.float64)))).astype(np.float32)
    return replace(of, scale=scale if scale.ndim else float(scale))


def cases(op: str) -> Iterator[OpCase]:
    """The recorded cases without an activation, and each again with scales of powers of two."""
    for case in SUITES[SUITE[op]]():
        if not case.activation:
            yield case
            held = case.operands.items()
            even = {s: of if of.scale is None else in_powers(of) for s, of in held}
            yield replace(case, operands=even, out=in_powers(case.out))


def differing(op: str) -> int:
    """How many elements are not what the formula says."""
    total = wrong = 0
    for case in cases(op):
        found, wanted = computed(case, NAME), by_formula(case)
        assert found.shape == wanted.shape
        total, wrong = total + found.size, wrong + int(np.count_nonzero(found != wanted))
    assert total
    return wrong


@pytest.mark.parametrize("op", SUITE)
def test_integers_are_rounded_once_as_the_formula_does(op: str) -> None:
    assert not differing(op)


@pytest.mark.parametrize(
    ("op", "how"),
    [("conv2d", "even"), ("conv2d", "away"), ("conv2d", "double"), ("mul", "double")],
)
def test_another_rounding_is_found(op: str, how: str) -> None:
    of = profile(NAME)
    rules = [replace(r, fields={**r.fields, ("requant", "round"): how}) for r in of.rules]
    with override_profile(replace(of, rules=tuple(rules))):
        assert differing(op)


def test_scales_far_apart_give_both_ends() -> None:
    """A multiplier has no exponent above 30."""
    x = CaseOperand(np.array([[-128, 2, 3, 4, 127]], np.int8), 2.0**20, 3)
    for power in (-10, -11, -12, -40):
        made = CaseOperand(np.zeros(0, np.int8), 2.0**power, 5)
        found = computed(OpCase("requantize", {"x": x}, made, (1, 5)), "tflite-2.21.single")
        assert found.tolist() == [[-128, -128, 5, 127, 127]]
