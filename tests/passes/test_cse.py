"""What is computed alike is computed once."""

from __future__ import annotations

import time

import numpy as np
import pytest

from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.origin import Origin
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.cleanup.cse import Cse
from qir.rewrite import run_passes
from qir.testing import random_graph
from tests.passes.keeping import keep, keeps


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in ("input", "output")]


def doubled(seed: int) -> Graph:
    """A graph in which every third op stands twice."""
    graph = random_graph(seed, "float")
    for i, node in enumerate(list(graph)):
        if i % 3 or node.op in ("input", "output"):
            continue
        types = [v.type for v in node.results]
        twin = graph.add(node.op, node.operands, node.attrs, types=types)
        for j, new in enumerate(twin.results):
            graph.set_operand(graph.output, f"twin{i}.{j}", new)
    return graph


def test_generated_graphs_keep_every_bit() -> None:
    keeps(Cse())


def test_what_was_doubled_is_one_again() -> None:
    assert sum(keep(Cse(), doubled(seed), seed) > 0 for seed in range(12)) > 8


def test_attributes_that_only_look_alike_are_told_apart() -> None:
    graph = parse("""graph main {
      %x = input() : 2xf32
      %a = clip(%x) {min = 0.0, max = 1.0} : 2xf32
      %b = clip(%x) {min = -0.0, max = 1.0} : 2xf32
      %c = clip(%x) {min = 0.0, max = 1.0} : 2xf32
      %n = constant([nan, 1.0]) : 2xf32
      %m = constant([nan, 1.0]) : 2xf32
      %s = add(%c, %n) : 2xf32
      %t = add(%a, %m) : 2xf32
      output(a=%a, b=%b, s=%s, t=%t)
    }""")
    after = run_passes(graph, [Cse()], Ledger())
    assert ops(after) == ["clip", "clip", "constant", "add"]
    assert after.outputs["s"] is after.outputs["t"]


def test_what_is_planned_trained_or_of_another_profile_stays() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
    made = [graph.add("relu", {"x": x}).result for _ in range(3)]
    graph.set_scheme(made[1].node, "result", Scheme(U8))
    graph.set_profile(made[2].node, "torch-x86")
    weights = [
        graph.add("constant", {}, {"data": Array.of(np.ones(2, np.float32)), "trainable": True})
        for _ in range(2)
    ]
    sums = [graph.add("add", {"a": x, "b": node.result}).result for node in weights]
    graph.add("output", {f"y{i}": v for i, v in enumerate([*made, *sums])})
    assert Cse().run(graph, Ledger()) == 0


def test_the_one_that_is_left_knows_where_both_came_from() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
    made = [
        graph.add("relu", {"x": x}, name=f"r{i}", origins=[Origin("onnx", "Relu", f"r{i}")])
        for i in range(2)
    ]
    graph.add("output", {"y": made[0].result, "z": made[1].result})
    ledger = Ledger()
    assert Cse().run(graph, ledger) == 1
    assert [o.name for o in graph["r0"].node.origins] == ["r0", "r1"]
    assert [(e.subject, e.reason) for e in ledger] == [("r1", "computed as r0 already")]


@pytest.mark.slow
def test_ten_times_the_nodes_take_about_ten_times_as_long() -> None:
    def seconds(count: int) -> float:
        graph = Graph()
        x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
        one, other = x, x
        for _ in range(count // 2):
            one = graph.add("relu", {"x": one}).result
            other = graph.add("relu", {"x": other}).result
        graph.add("output", {"y": one, "z": other})
        start = time.process_time()
        assert Cse().run(graph, Ledger()) == count // 2
        return time.process_time() - start

    small = min(seconds(2_000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(2)) < 20 * small
