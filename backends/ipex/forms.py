"""Forms of layers that decide how Intel's extension for PyTorch computes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.profiles.kernel_forms import CONVOLUTIONS, TRANSPOSED, Form, KernelLayer

_MOST_TERMS = 384
_MIDDLE = 128


def _in_turn(of: KernelLayer) -> bool:
    rows, terms = of.sizes[1:]
    turned = of.attrs.get("trans_a") or of.attrs.get("trans_b")
    return not turned and rows not in (0, 1, None) and terms is not None and terms <= _MOST_TERMS


def _padded_high(of: KernelLayer) -> bool:
    if of.data is None or of.data.zero is None or of.data.dynamic:
        return False
    return any(map(any, of.pads)) and bool(np.any(np.asarray(of.data.zeros()) > _MIDDLE))


FORMS: Mapping[str, Form] = {
    "three_axes": Form(
        "matmul of two operands of three axes each: Intel's extension for PyTorch computes "
        "these in float",
        lambda of: True,
        ("matmul",),
    ),
    "in_turn": Form(
        "matmul of three axes of 2 rows and more and of 384 terms at most, neither operand "
        "transposed: Intel's MKL adds these in order",
        _in_turn,
        ("matmul",),
    ),
    "padded_high": Form(
        "padding, and a zero point of the data above 128, so that two products of extreme weights"
        " overflow 16 bits",
        _padded_high,
        (*CONVOLUTIONS, *TRANSPOSED),
    ),
}
"""The forms that profiles of IPEX name."""
