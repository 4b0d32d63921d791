"""Results too large for 32 bits, which onnxruntime converts before it bounds them: the low code."""

from typing import Any

import numpy as np
import pytest

from .one import BOUNDS, CODES, ISAS, one
from .test_onnxruntime import WIDE, nchw, nhwc, operator, same

F32 = np.float32
RATIOS = [1.0, 2.0**22, 2.0**23, 1e6, 3e7, 1e10, 1e20, 1e30]
"""Of an operand's scale to the result's; from 2^23 on, some integers of a sum do not fit."""


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_sums_and_products_are_those_of_qlinear(kind: str, ratio: float) -> None:
    low, high = BOUNDS[kind]
    a, b = (v.ravel().astype(CODES[kind]) for v in np.mgrid[low : high + 1, low : high + 1])
    sa, sb, sy = F32(ratio), F32(ratio / 3), F32(1)
    za, zb, zy = (CODES[kind](z) for z in (low + 120, high - 31, low + 9))
    inner = np.longdouble(sa) * int(za) + F32(sb * F32(zb))
    types: dict[str, Any] = {"a_type": kind, "b_type": kind, "y_type": kind}
    total = operator("QLinearAdd", [a, sa, za, b, sb, zb, sy, zy])
    with np.errstate(over="ignore"):
        product = operator("QLinearMul", [a, sa, za, b, F32(1), zb, sy, zy])
    for isa in ISAS:
        options: dict[str, Any] = {"isa": isa, "shape": (1, 1, a.size)} | types
        got = one(
            "add",
            [a, b],
            a.shape,
            CODES[kind],
            a_gain=sa,
            b_gain=sb,
            offset=F32(F32(zy) - F32(inner)),
            **options,
        )
        same(got, total, (ratio, isa))
        zeros: dict[str, Any] = {"a_zero": int(za), "b_zero": int(zb), "y_zero": int(zy)}
        got = one("mul", [a, b], a.shape, CODES[kind], multiplier=sa, **zeros, **options)
        same(got, product, (ratio, isa))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_averages_are_those_of_qlinear(kind: str, ratio: float) -> None:
    low, high = BOUNDS[kind]
    x = np.random.default_rng(7).integers(low, high + 1, (2, 70, 5, 6)).astype(CODES[kind])
    x_zero, y_zero = CODES[kind](low + 100), CODES[kind](high - 20)
    expected = operator(
        "QLinearAveragePool",
        [x, F32(ratio), x_zero, F32(1), y_zero],
        kernel_shape=(2, 3),
        pads=(1, 0, 0, 1),
    )
    for isa in ISAS:
        got = one(
            "avg_pool2d",
            [nhwc(x)],
            nhwc(expected).shape,
            CODES[kind],
            isa=isa,
            shape=nhwc(x).shape,
            kernel=(2, 3),
            pad=(1, 0, 0, 1),
            x_scale=ratio,
            x_zero=int(x_zero),
            y_scale=1,
            y_zero=int(y_zero),
            x_type=kind,
            y_type=kind,
        )
        same(nchw(got), expected, (ratio, isa))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("y_scale", [1e-7, 4.6e-10, 3e-10, 1e-20, 1e-38])
def test_shares_are_those_of_qlinearsoftmax(kind: str, y_scale: float) -> None:
    low, high = BOUNDS[kind]
    for width in (1, 2, 5):
        x = np.random.default_rng(width).integers(low, high + 1, (9, width)).astype(CODES[kind])
        for zero in (low, low + 60, low + 200):
            expected = operator(
                "QLinearSoftmax",
                [x, F32(0.05), CODES[kind](0), F32(y_scale), CODES[kind](zero)],
                axis=-1,
                opset=13,
            )
            got = one(
                "softmax",
                [x],
                x.shape,
                CODES[kind],
                rows=9,
                width=width,
                x_scale=0.05,
                y_scale=y_scale,
                y_zero=zero,
                x_type=kind,
                y_type=kind,
                wide=WIDE,
            )
            same(got, expected, (width, zero))
