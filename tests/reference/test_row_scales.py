"""A product whose result has a scale a row, while its operands have one a channel, or one."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.ir.text import parse


@pytest.mark.parametrize("profile", ["native", "ort-1.31", "torch-2.13.fbgemm"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_a_result_with_a_scale_a_row_is_the_sum_rounded_once(
    profile: str, bias: bool, channels: bool
) -> None:
    rng = np.random.default_rng(5)
    w = rng.integers(-20, 20, (4, 6)).astype(np.int8)
    each = (rng.integers(1, 9, 4) / 64).astype(np.float32) if channels else np.full(4, 0.125)
    b = np.arange(4, dtype=np.float32)
    x = rng.integers(0, 255, (2, 6)).astype(np.uint8)
    kind = "i8:f32:0, @ws" if channels else "i8:f32, 0.125"
    text = (
        ("array @ws : 4xf32\n" if channels else "")
        + f"graph main as {profile} {{\n  %x = input() : 2x6x!quant.uniform<u8:f32, 0.5:3>\n"
        + f"  %w = constant(@w) : 4x6x!quant.uniform<{kind}>\n"
        + ("  %b = constant(@b) : 4xf32\n" if bias else "")
        + f"  %y = linear(%x, %w{', bias=%b' if bias else ''})"
        + " : 2x4x!quant.uniform<u8:f32:0, {1.0, 2.0}>\n  output(y=%y)\n}\n"
    )
    made = qir.run(parse(text, {"w": w, "ws": each, "b": b}), {"x": x})["y"]
    floats = (x.astype(float) - 3) / 2 @ (w * each.astype(float)[:, None]).T + b * bias
    assert np.array_equal(made, np.clip(np.rint(floats / [[1.0], [2.0]]), 0, 255))
