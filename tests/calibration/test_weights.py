"""Weights that are no numbers, which no calibration can make up for."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.errors import DataError
from qir.ir.text import parse

TEXT = (
    "graph main {\n  %x = input() : 2x3xf32\n  %w = constant(@w) : 2x3xf32\n"
    "  %b = constant(@b) : 2xf32\n  %y = linear(%x, %w, bias=%b) : 2x2xf32\n  output(y=%y)\n}\n"
)


def calibrate(weight: float, bias: float) -> None:
    w, b = np.ones((2, 3), np.float32), np.ones(2, np.float32)
    w[1, 2], b[1] = weight, bias
    qir.calibrate(parse(TEXT, {"w": w, "b": b}), np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("weight", "bias", "place"),
    [
        (np.nan, 1, r"'w', w, is NaN or infinite at \[1, 2\]"),
        (-np.inf, 1, r"'w', w, is NaN or infinite at \[1, 2\]"),
        (1, np.nan, r"'bias', b, is NaN or infinite at \[1\]"),
    ],
)
def test_the_layer_and_the_place_are_named(weight: float, bias: float, place: str) -> None:
    with pytest.raises(DataError, match=place):
        calibrate(weight, bias)


def test_numbers_pass() -> None:
    calibrate(1, 1)
