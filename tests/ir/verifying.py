"""Small programs for the tests of the verifier, and what it finds in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import verify

DATA: dict[str, NDArray[np.generic]] = {
    "s2": np.array([0.5, 0.25], np.float32),
    "s3": np.array([0.5, 0.25, 1.0], np.float32),
    "bad": np.array([0.5, 0.0, 1.0], np.float32),
    "grid": np.full((3, 2), 0.5, np.float32),
    "z3": np.array([1, 2, 3], np.int32),
    "g4": np.array([0, 1, 1, 0], np.int32),
    "g5": np.array([0, 1, 2, 0], np.int32),
    "w": np.array([-128, 0, 127], np.int8),
    "u4": np.array([0, 15, 16], np.uint8),
    "k": np.array([[[[3]]], [[[-2]]]], np.int8),
    "sq": np.array([[1, 2], [3, 4]], np.int8),
    "taps": np.array([[[1, -3, 5, 100]]], np.int8),
    "tall": np.ones((3, 2), np.int8),
    "far": np.full((1, 66312), 127, np.int8),
    "near": np.full((1, 66311), 127, np.int8),
}
for _array in DATA.values():
    _array.flags.writeable = False
ARRAYS = """\
array @s2 : 2xf32
array @s3 : 3xf32
array @bad : 3xf32
array @grid : 3x2xf32
array @z3 : 3xi32
array @g4 : 4xi32
array @g5 : 4xi32
"""
Q = "!quant.uniform<u8:f32, 0.5:3>"
OPEN = "!quant.uniform<u8:f32, ?:?>"
X = "%x = input() : 3x4xf32"
XQ = f"%x = input() : 3x4x{Q}"


def graph_of(body: str) -> Graph:
    """The graph of that text, with the arrays above."""
    text = f"{ARRAYS}graph main as native {{\n{body}\n}}"
    return parse(text, {k: a for k, a in DATA.items() if f"@{k}" in text})


def found(graph: Graph) -> list[tuple[str, str, str]]:
    """Rule, severity and node of every finding."""
    return [(f.rule, f.severity, f.node) for f in verify(graph)]
