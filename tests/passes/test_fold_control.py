"""What a branch or loop is known to do stands in its place."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.errors import GraphError
from qir.ir.graph import Graph
from qir.ir.origin import Origin
from qir.ir.text import parse
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.fold.fold_control import FoldControl
from qir.rewrite import run_passes
from qir.testing import random_graph
from tests.passes.keeping import keep, keeps

CONTROL = {"if", "loop", "scan"}


def settle(graph: Graph, rng: random.Random) -> int:
    """Makes conditions and counts constants; says how many control ops there are."""
    count = 0
    for _, part in graph.walk():
        for node in list(part):
            if node.op not in ("if", "loop"):
                continue
            count += 1
            cond = part.constant(np.array(rng.random() < 0.5), before=node)
            if node.op == "if" or rng.random() < 0.3:
                part.set_operand(node, "cond", cond)
            elif rng.random() < 0.5:
                part.set_operand(node, "cond", None)
            if node.op == "loop":
                rounds = part.constant(np.int64(rng.choice([-1, 0, 1, 1, 1, 2])), before=node)
                part.set_operand(node, "count", rounds)
    return count


def test_generated_graphs_keep_every_bit() -> None:
    keeps(FoldControl())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_branches_and_loops_that_are_known_keep_every_bit(part: int) -> None:
    folded = 0
    for seed in range(part * 30, part * 30 + 30):
        graph = random_graph(seed, "whole")
        if settle(graph, random.Random(seed)) and not errors(graph):
            folded += keep(FoldControl(), graph, seed) > 0
    assert folded > 2


def scan(length: str, axis: int) -> Graph:
    shape = ["2x3", f"{length}x2x3", f"2x{length}x3"][axis + 1]
    shape = shape if axis >= 0 else f"2x3x{length}"
    return parse(f"""graph main {{
      %x = input() : {shape}xf32
      %h = input() : 2x3xf32
      %a, %s = scan(vs.0=%h, ss.0=%x) {{axes = ({axis},)}} : 2x3xf32, {length}x2x3xf32 with body {{
        %v = input() : 2x3xf32
        %e = input() : 2x3xf32
        %r = add(%v, %e) : 2x3xf32
        output(r=%r, e=%e)
      }}
      output(a=%a, s=%s)
    }}""")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("length", ["0", "1", "2", "(N)"])
def test_a_scan_of_no_entry_or_one_is_its_body(length: str, axis: int) -> None:
    graph = scan(length, axis)
    changed = keep(FoldControl(), graph, 7)
    assert (changed > 0) == (length in "01")
    after = run_passes(graph, [FoldControl()], Ledger())
    assert ("scan" in {n.op for n in after}) == (length not in "01")


def test_a_loop_whose_body_says_it_ends_has_one_round() -> None:
    graph = parse("""graph main {
      %x = input() : 2xf32
      %n = constant(9) : i64
      %a, %p = loop(count=%n, vs.0=%x) : 2xf32, ?x1xf32 with body {
        %i = input() : 1xi64
        %c = input() : 1xbool
        %h = input() : 2xf32
        %k = cast(%i) {to = f32} : 1xf32
        %r = add(%h, %k) : 2xf32
        %no = constant(false) : bool
        output(no=%no, r=%r, k=%k)
      }
      output(a=%a, p=%p)
    }""")
    assert keep(FoldControl(), graph, 1) > 0


def test_profiles_origins_and_names_come_along() -> None:
    graph = parse("""graph main as ort-1.31 {
      %x = input() : 2xf32
      %t = constant(true) : bool
      %y = if(%t, xs.0=%x) : 2xf32 with then {
        %a = input() : 2xf32
        %r = relu(%a) : 2xf32
        %z = neg(%r) : 2xf32
        output(z=%z)
      } with else {
        %a = input() : 2xf32
        output(a=%a)
      }
      output(y=%y)
    }""")
    node = graph["y"].node
    graph.set_origins(node, [Origin("onnx", "If", "branch")])
    graph.body(node, "then").profile = "native"
    FoldControl().run(graph, Ledger())
    made = graph["y"].node
    assert (made.op, made.profile) == ("neg", "native")
    assert [o.name for o in made.origins] == ["branch"]
    with pytest.raises(GraphError):
        graph["t"]
