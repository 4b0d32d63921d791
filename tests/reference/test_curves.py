"""What oneDNN's vectors make of activations is near what these are; recorded results of IPEX hold
it to the byte."""

from __future__ import annotations

import numpy as np

from qir.ir.ops import spec
from qir.reference.curves import STEPWISE_FUNCTIONS, exponential
from qir.reference.table import compute


def test_powers_are_near_and_come_to_nothing() -> None:
    x = np.linspace(-87, 88, 4001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exponential(x) / exact - 1) < 1e-6).all()
    assert exponential(np.array([-88, -1e9], np.float32)).tolist() == [0, 0]


def test_activations_in_steps_are_near_those_that_are_rounded_once() -> None:
    x = np.linspace(-30, 90, 4001, dtype=np.float32)
    for op, steps in STEPWISE_FUNCTIONS.items():
        attrs = spec(op).complete_attrs({})
        exact = compute(op, {"x": x}, attrs)
        assert np.allclose(steps(x, attrs), exact, rtol=2e-6, atol=2e-6), op
