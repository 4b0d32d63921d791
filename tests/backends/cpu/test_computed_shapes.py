"""Shapes that a model computes from its inputs' sizes are plain numbers when it is compiled."""

from __future__ import annotations

import numpy as np

from qir.backends.cpu import CpuTarget
from qir.ir.text import parse
from qir.reference.interpreter import run

TEXT = """
graph main {
  %x = input() : (N)x3x4x4x!quant.uniform<u8:f32, 0.5:7>
  %s = shape(%x) : 4xi64
  %i = constant(0) : i64
  %n = gather(%s, %i) : i64
  %axes = constant([0]) : 1xi64
  %n1 = unsqueeze(%n) {axes = (0,)} : 1xi64
  %rest = constant([-1]) : 1xi64
  %to = concat(xs.0=%n1, xs.1=%rest) {axis = 0} : 2xi64
  %y = reshape(%x, %to) : ?x?x!quant.uniform<u8:f32, 0.5:7>
  output(y=%y)
}
"""


def test_a_view_by_the_batch_size_is_a_plain_reshape() -> None:
    graph = parse(TEXT.replace("  %axes = constant([0]) : 1xi64\n", ""))
    compiled = CpuTarget().compile(graph)
    for batch in (1, 3):
        x = np.random.default_rng(batch).integers(0, 256, (batch, 3, 4, 4)).astype(np.uint8)
        found = np.asarray(compiled(x=x)["y"])
        assert compiled.fallbacks == ()
        assert np.array_equal(found, x.reshape(batch, -1))
        assert np.array_equal(found, run(graph, {"x": x})["y"])
