"""The pre-filter leaves out only nodes at which nothing fits, and its cost follows the matches."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from qir.errors import UsageError
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.rewrite.patterns.matching import match_at
from qir.rewrite.patterns.pattern import Ops, Pattern, Var, near, optional, pattern, repeated
from qir.rewrite.patterns.prefilter import candidates
from qir.rewrite.patterns.rewriting import Rewrite, rewrite
from qir.testing import random_graph
from tests.rewrite.test_rewriting import network

op = Ops()
x, w, r = Var("x"), Var("w"), Var("r")
PATTERNS = (
    pattern(lambda op, x: op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, near(1.4142))), 1.0))),
    pattern(lambda op, x: op.mul(x, 1.0)),
    pattern(lambda op, x: op.relu(op.relu(x))),
    pattern(lambda op, x, r: op.add(optional(op.relu(x)), r)),
    pattern(lambda op, x: repeated(lambda h: op.relu(h), op.tanh(x), least=0)),
    pattern(lambda op, x, r: (op.relu(a := op.add(x, r)), op.tanh(a))),
    pattern(lambda op, x, w: op.relu(op.any_of("conv2d", "linear")(x, w, ...))),
    pattern(lambda op, x: op.dequantize(op.quantize(x))),
    pattern(lambda op, x, w: op.quantize(op.conv2d(op.dequantize(x), w, ...)), codes=True),
)


@pytest.mark.parametrize("seed", range(60))
def test_no_match_is_left_out(seed: int) -> None:
    work = network(seed, 25) if seed % 3 == 0 else random_graph(seed, ("float", "qdq")[seed % 2])
    for wanted in PATTERNS:
        everywhere = [node for node in work if match_at(wanted, node)]
        kept = candidates(work, [wanted])
        assert [node for node in kept if match_at(wanted, node)] == everywhere, (seed, str(wanted))
    union = candidates(work, PATTERNS)
    assert union == [n for n in work if any(n in candidates(work, [p]) for p in PATTERNS)]


def test_what_lies_below_is_looked_at_and_how_often_it_is_used() -> None:
    work = Graph()
    value = work.add("input", types=[TensorType((2,), F32)], name="x").result
    fits = work.add("relu", {"x": work.add("tanh", {"x": value}).result})
    lonely = work.add("relu", {"x": value})
    crowded = work.add("tanh", {"x": value}).result
    many = [work.add("relu", {"x": crowded}) for _ in range(9)]
    outs = [fits, lonely, *many]
    work.add("output", {f"y{i}": node.result for i, node in enumerate(outs)})
    assert candidates(work, [pattern(lambda op, x: op.relu(op.tanh(x)))]) == [fits]
    assert candidates(work, [pattern(lambda op, x: op.relu(x))]) == outs


def test_more_ops_than_there_are_bits() -> None:
    term = op.tanh(x)
    for _ in range(150):
        term = op.relu(term)
    large = Pattern("large", (term,))
    work = Graph()
    value = work.add("input", types=[TensorType((2,), F32)], name="x").result
    value = work.add("tanh", {"x": value}).result
    for _ in range(150):
        value = work.add("relu", {"x": value}).result
    work.add("output", {"y": value})
    assert value.node in candidates(work, [*PATTERNS * 9, large])
    assert match_at(large, value.node) is not None


def test_a_pattern_that_may_be_anything_is_refused() -> None:
    with pytest.raises(UsageError, match="its first result may be anything"):
        candidates(Graph(), [pattern(lambda op, x: optional(op.relu(x)), name="any")])
    with pytest.raises(UsageError, match="its first result may be anything"):
        candidates(Graph(), [pattern(lambda op, x: repeated(lambda h: op.relu(h), x, least=0))])


def large(nodes: int, matching: int) -> Graph:
    """A graph of so many nodes, of which so many end a match, evenly among the others."""
    work = Graph()
    kind = TensorType((2, 3), F32)
    value = work.add("input", types=[kind], name="x").result
    weight = work.constant(Array.of(np.ones((2, 3), np.float32)))
    every = nodes // matching if matching else 0
    while len(work) < nodes:
        value = work.add("add", {"a": value, "b": weight}).result
        hit = matching and len(work) // every > (len(work) - 4) // every
        inner = "relu" if hit else "tanh"
        value = work.add(inner, {"x": value}).result
        value = work.add("relu", {"x": value}).result
        value = work.add("mul", {"a": value, "b": weight}).result
    work.add("output", {"y": value})
    return work


def seconds(work: Graph, count: int) -> float:
    """How long rewriting takes, of processor time."""
    twice = pattern(lambda op, x: op.relu(op.relu(x)), name="twice")
    made = Rewrite(twice, lambda graph, m: graph.add("relu", {"x": m["x"]}).result)
    gc.collect()
    gc.disable()
    start = time.process_time()
    done = rewrite(work, [made], Ledger(), "test")
    taken = time.process_time() - start
    gc.enable()
    assert abs(done - count) <= count // 50, done
    return taken


@pytest.mark.long
def test_matches_cost_in_a_large_graph_at_most_three_times_what_they_cost_in_a_small_one() -> None:
    ratios = []
    for _ in range(4):
        small = seconds(large(10_000, 2_500), 2_500) - seconds(large(10_000, 0), 0)
        vast = seconds(large(100_000, 2_500), 2_500) - seconds(large(100_000, 0), 0)
        ratios.append(vast / small)
        if ratios[-1] <= 3:
            break
    assert min(ratios) <= 3, ratios
