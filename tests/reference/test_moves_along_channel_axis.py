"""Integers of a map along an axis go with the axis, whatever order it comes to stand in."""

from __future__ import annotations

import numpy as np

from qir.ir.text import parse
from qir.reference.interpreter import run

CODES = np.arange(32, dtype=np.uint8).reshape(1, 2, 4, 4)


def test_a_transpose_moves_codes_with_the_axis_of_their_scales() -> None:
    graph = parse("""graph main as native {
      %x = input() : 1x2x4x4x!quant.uniform<u8:f32:1, {0.5, 2.0}>
      %t = transpose(%x) {perm = (0, 2, 3, 1)} : 1x4x4x2x!quant.uniform<u8:f32:3, {0.5, 2.0}>
      output(t=%t)
    }""")
    assert np.array_equal(run(graph, {"x": CODES})["t"], CODES.transpose(0, 2, 3, 1))


def test_a_transpose_to_a_map_along_another_axis_rounds_to_that_map() -> None:
    graph = parse("""graph main as native {
      %x = input() : 2x2x!quant.uniform<u8:f32:0, {1.0, 2.0}>
      %t = transpose(%x) {perm = (1, 0)} : 2x2x!quant.uniform<u8:f32:0, {1.0, 2.0}>
      output(t=%t)
    }""")
    x = np.array([[10, 20], [30, 40]], np.uint8)
    real = (x * np.array([[1.0], [2.0]])).T / np.array([[1.0], [2.0]])
    assert np.array_equal(run(graph, {"x": x})["t"], real.astype(np.uint8))
