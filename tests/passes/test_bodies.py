"""Passes run on bodies too, each body by itself."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ledger import Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes

TEXT = """graph main as ort-1.31 {
  %x = input() : 2x4xf32
  %c = input() : bool
  %y = if(%c, xs.0=%x) : 2x4xf32 with then {
    %a = input() : 2x4xf32
    %q = quantize(%a) : 2x4x!quant.uniform<u8:f32, 0.5:128>
    %d = dequantize(%q) : 2x4xf32
    %r = relu(%d) : 2x4xf32
    %p = quantize(%r) : 2x4x!quant.uniform<u8:f32, 0.5:128>
    %e = dequantize(%p) : 2x4xf32
    output(e=%e)
  } with else {
    %a = input() : 2x4xf32
    %k = constant(2.0) : f32
    %t = add(%k, %k) : f32
    %unused = neg(%a) : 2x4xf32
    %m = mul(%a, %t) : 2x4xf32
    output(m=%m)
  }
  output(y=%y)
}
"""


def _body(graph: Graph, name: str) -> list[str]:
    return [node.op for node in graph.body(graph["y"].node, name)]


def test_what_is_dead_or_constant_in_a_body_goes() -> None:
    graph = parse(TEXT)
    after = run_passes(graph, [Prune(), FoldConstants()], Ledger())
    assert print_graph(graph) == TEXT
    assert _body(after, "else") == ["input", "constant", "mul", "output"]


def test_integers_in_a_body_are_fused() -> None:
    after = run_passes(parse(TEXT), [FuseQdq()], Ledger())
    assert _body(after, "then") == ["input", "quantize", "relu", "dequantize", "output"]
    back = run_passes(after, [ExpandQdq()], Ledger())
    assert _body(back, "then") == _body(parse(TEXT), "then")


@pytest.mark.parametrize("one", [Prune(), FoldConstants(), FuseQdq()], ids=lambda p: p.name)
def test_a_second_run_finds_nothing_and_results_stay(one: Pass) -> None:
    once = run_passes(parse(TEXT), [one], Ledger())
    assert print_graph(run_passes(once, [one], Ledger())) == print_graph(once)
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(2, 4)) * 40).astype(np.float32)
    for c in (True, False):
        inputs = {"x": x, "c": np.array(c)}
        assert np.array_equal(run(once, inputs)["y"], run(parse(TEXT), inputs)["y"])
