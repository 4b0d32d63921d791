"""Pixels between channels and space, and repeated: one copy, channels first or last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.backends.cpu import CpuTarget
from qir.ir.text import parse

Q = "!quant.uniform<u8:f32, 0.031:117>"
Image = NDArray[Any]


def spread(x: Image) -> Image:
    """Blocks of 2 x 2 pixels, the block before the channel."""
    n, c, h, w = x.shape
    out = np.zeros((n, c // 4, 2 * h, 2 * w), x.dtype)
    for i in range(2):
        for j in range(2):
            out[:, :, i::2, j::2] = x[:, (2 * i + j) * (c // 4) :][:, : c // 4]
    return out


def spread_behind(x: Image) -> Image:
    """Blocks of 2 x 2 pixels, the block behind the channel."""
    n, c, h, w = x.shape
    out = np.zeros((n, c // 4, 2 * h, 2 * w), x.dtype)
    for i in range(2):
        for j in range(2):
            out[:, :, i::2, j::2] = x[:, 2 * i + j :: 4]
    return out


def gathered(x: Image) -> Image:
    return np.concatenate([x[:, :, i::2, j::2] for i in range(2) for j in range(2)], axis=1)


def repeated(x: Image) -> Image:
    return x.repeat(2, axis=2).repeat(3, axis=3)


CASES = {
    "depth_to_space(%p) {block = 2}": ("2x3x8x12", spread),
    'depth_to_space(%p) {block = 2, mode = "CRD"}': ("2x3x8x12", spread_behind),
    "space_to_depth(%p) {block = 2}": ("2x48x2x3", gathered),
    "resize_nearest(%p) {axes = (2, 3), scales = (2.0, 3.0)}": ("2x12x8x18", repeated),
}


@pytest.mark.parametrize("element", [Q, "f32"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("op", CASES)
def test_pixels_are_moved_by_one_copy(op: str, last: bool, element: str) -> None:
    shape, formula = CASES[op]
    pool = "max_pool2d(%x) {kernel = (1, 1)}" if last else "identity(%x)"
    graph = parse(f"""
    graph main as ort-1.31 {{
      %x = input() : 2x12x4x6x{element}
      %p = {pool} : 2x12x4x6x{element}
      %y = {op} : {shape}x{element}
      output(y = %y)
    }}
    """)
    x = np.random.default_rng(81).integers(0, 256, (2, 12, 4, 6))
    x = x.astype(graph.inputs[0].type.dtype.carrier)
    compiled = CpuTarget().compile(graph)
    assert compiled.fallbacks == ()
    assert np.array_equal(np.asarray(compiled(x=x)["y"]), formula(x))


def test_pixels_that_are_not_all_repeated_as_often_are_left_to_the_reference() -> None:
    graph = parse("""
    graph main {
      %x = input() : 1x1x4x4xf32
      %y = resize_nearest(%x) {axes = (2, 3), scales = (1.5, 1.0)} : 1x1x6x4xf32
      output(y = %y)
    }
    """)
    (fallback,) = CpuTarget().compile(graph).fallbacks
    assert fallback.reason == "pixels are not all repeated as often"
