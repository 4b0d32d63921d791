"""Sums of integers in a body: how far they go depends on what the graph around it gives."""

from __future__ import annotations

import numpy as np
import pytest

from qir.analysis.int32_overflow import overflow_text, profile_name_of
from qir.ir.graph import Graph
from qir.ir.text import parse

TERMS = 70_000
"""Of 255 * 127 each, whose sum 32 bits do not hold."""
TEXT = """graph g as native {
  %n = constant(2) : i64
  %x = input() : TERMSxu8
  %w = constant(@w) : TERMSx1xi8
  %y = loop(count=%n, xs.0=%x, xs.1=%w) : ?x1xi32 with body {
    %i = input() : i64
    %a = input() : TERMSxu8
    %v = input() : TERMSx1xi8
    %p = matmul_integer(%a, %v) : 1xi32
    output(ys.0=%p)
  }
  output(y=%y)
}""".replace("TERMS", str(TERMS))


def looped(least: int) -> Graph:
    return parse(TEXT, {"w": np.full((TERMS, 1), least, np.int8)})


@pytest.mark.parametrize(("weight", "wraps"), [(127, True), (1, False)])
def test_a_body_knows_the_constants_that_its_holder_gives(weight: int, wraps: bool) -> None:
    graph = looped(weight)
    body = graph.body(graph["y"].node)
    said = f"sums come to 0..{TERMS * 255 * 127}, which wrap in 32 bits" if wraps else ""
    assert overflow_text(body, body["p"].node) == said
    assert profile_name_of(body, body["p"].node) == "native"
    holder = body.holder
    assert holder is not None
    assert (holder[0] is graph, holder[1].name) == (True, "y")
    alone = body.copy()
    assert alone.holder is None
    ends = f"{-TERMS * 255 * 128}..{TERMS * 255 * 127}"
    assert overflow_text(alone, alone["p"].node) == f"sums come to {ends}, which wrap in 32 bits"
