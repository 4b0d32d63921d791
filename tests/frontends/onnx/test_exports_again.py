"""What was kept is read again once passes have made its operands constants."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.reference.interpreter import run
from qir.rewrite import Pass

TEXT = """graph main as ort-1.31 {
  %x = input() : (N)x8xf32
  %s = shape(%x) {start = 1} : 1xi64
  %two = constant([2]) : 1xi64
  %half = floor_div(%s, %two) : 1xi64
  %axes = constant([1]) : 1xi64
  %y = MADE : ?x?xf32
  %z = relu(%y) : ?x?xf32
  output(z=%z)
}"""
KEPT = """foreign(xs.0=%x, xs.1=%half, xs.2=%s, xs.3=%axes) {framework = "onnx", op = "Slice",
  version = 17, slots = ((0, 1, 2, 3), (0,))}"""
COMPUTED = "slice_at(%x, %half, %s) {axes = (1,)}"


@pytest.mark.parametrize("made", [KEPT, COMPUTED])
@pytest.mark.parametrize("after", [(FoldShapes(),), (FoldShapes(), FoldConstants())])
def test_a_slice_whose_bounds_become_known_is_a_slice(made: str, after: tuple[Pass, ...]) -> None:
    graph, ledger = parse(TEXT.replace("MADE", made)), Ledger()
    for each in after:
        each.run(graph, ledger)
    assert [n.op for n in graph] == ["input", "slice", "relu", "output"]
    x = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
    (found,) = run(graph, {"x": x}).values()
    assert np.array_equal(found, np.maximum(x[:, 4:], 0))
    assert graph["y"].node.op == "slice"
