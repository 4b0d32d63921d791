"""Forms of layers that decide how Intel's extension for PyTorch computes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.profiles.kernel_forms import CONVOLUTIONS, TRANSPOSED, Form, KernelLayer

_MAX_ORDERED_TERMS = 384
_MIDDLE = 128


def _is_summed_in_order(of: KernelLayer) -> bool:
    rows, terms = of.sizes[1:]
    is_transposed = of.attrs.get("trans_a") or of.attrs.get("trans_b")
    return (
        not is_transposed
        and rows not in (0, 1, None)
        and terms is not None
        and terms <= _MAX_ORDERED_TERMS
    )


def _has_high_padding(of: KernelLayer) -> bool:
    # Padding has the zero point; two products of it above 128 and weights of -128 exceed 16 bits.
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
        _is_summed_in_order,
        ("matmul",),
    ),
    "padded_high": Form(
        "padding, and a zero point of the data above 128, so that two products of extreme weights"
        " overflow 16 bits",
        _has_high_padding,
        (*CONVOLUTIONS, *TRANSPOSED),
    ),
}
"""The forms that profiles of IPEX name."""
