"""Every op that computes floats: its float32 result is the float64 one, rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.ops import OPS
from tests.reference.cases import CASES, missing
from tests.reference.oracles import Array

HALF_ULP = 2.0**-24
LEAST = 2.0**-149


def test_every_op_has_a_case() -> None:
    assert not missing(OPS), "add a line to tests/reference/cases.py"
    assert not set(CASES) - set(OPS)
    assert missing([*OPS, "an_op_that_is_new"]) == ["an_op_that_is_new"]


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype == np.float32 else x


@pytest.mark.parametrize("op", [op for op in CASES if op in OPS])
@pytest.mark.parametrize("seed", [1, 2])
def test_float32_lies_within_its_bound_of_float64(op: str, seed: int) -> None:
    case = CASES[op]
    arrays = case.arrays(seed)
    made = case.compute(op, arrays)
    if case.k is None:
        plain = not case.text
        assert not (plain and any(m.dtype.kind == "f" for m in made)), f"{op}: k is to be stated"
        return
    assert any(m.dtype.kind == "f" for m in made), f"{op} gives no floats: k is None"
    exact = case.compute(op, {slot: _wide(data) for slot, data in arrays.items()})
    for got, wanted in zip(made, exact, strict=True):
        assert got.shape == wanted.shape, f"{op} seed {seed}"
        if got.dtype.kind != "f":
            assert np.array_equal(got, wanted), f"{op} seed {seed}"
            continue
        truth = wanted.astype(np.float64)
        assert np.isfinite(truth).all(), f"{op} seed {seed}: nothing is compared"
        bound = case.k * HALF_ULP * (1 + 2.0**-20) * np.abs(truth) + LEAST
        error = np.abs(got.astype(np.float64) - truth)
        worst = float(np.max(error / bound, initial=0.0))
        assert worst <= 1, f"{op} seed {seed}: {worst} times {case.k} x 2^-24"
