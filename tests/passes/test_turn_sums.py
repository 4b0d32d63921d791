"""A sum's repeated operand comes to stand second, and nothing else moves."""

import numpy as np
import pytest

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.forms.turn_sums import TurnSums
from qir.reference.interpreter import run

IMAGE = (2, 3, 4, 5)


def summed(op: str, *shapes: tuple[int, ...]) -> Graph:
    graph = Graph()
    rng = np.random.default_rng(0)
    values = []
    for i, shape in enumerate(shapes):
        if shape == IMAGE:
            made = graph.add("input", types=[TensorType(shape, F32)], name=f"x{i}").result
        else:
            data = rng.standard_normal(shape).astype(np.float32)
            made = graph.constant(Array.of(data, f"k{i}"), name=f"k{i}")
        values.append(made)
    a, b = values
    graph.add("output", {"y": graph.add(op, {"a": a, "b": b}, name="sum").result})
    return graph


def order(graph: Graph) -> tuple[str, str]:
    node = graph["sum"].node
    return node.operands["a"].name, node.operands["b"].name


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 3, 1, 1), (3, 1, 1), (1, 1, 4, 5)])
def test_a_repeated_first_operand_comes_second(shape: tuple[int, ...]) -> None:
    graph = summed("add", shape, IMAGE)
    x = {"x1": np.random.default_rng(1).standard_normal(IMAGE).astype(np.float32)}
    before = run(graph, x)["y"]
    assert TurnSums().run(graph, Ledger()) == 1
    assert order(graph) == ("x1", "k0")
    assert np.array_equal(run(graph, x)["y"], before)
    assert TurnSums().run(graph, Ledger()) == 0


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("add", (IMAGE, (1, 3, 1, 1))),
        ("add", (IMAGE, IMAGE)),
        ("add", ((1, 3, 1, 1), (2, 1, 4, 5))),
        ("mul", ((1, 3, 1, 1), IMAGE)),
        ("sub", ((1, 3, 1, 1), IMAGE)),
    ],
)
def test_other_operands_stay_where_they_are(op: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    graph = summed(op, *shapes)
    text = str(graph)
    assert TurnSums().run(graph, Ledger()) == 0
    assert str(graph) == text
