"""Nodes and values are changed by methods of their graph alone, and the driver sees what is not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from qir.errors import PassError
from qir.ir.dtype import F16, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Use, Value
from qir.ir.scheme import Scheme
from qir.ir.types import Array
from qir.ledger import Ledger
from qir.rewrite import run_passes
from qir.rewrite.runner.contract import Pass
from qir.testing import FORMS, random_graph
from tests.ir.test_graph import KIND, start


@pytest.mark.parametrize("name", ["op", "profile", "stages", "origins", "results", "name"])
def test_no_attribute_of_a_node_can_be_assigned(name: str) -> None:
    graph, (x,) = start()
    node = graph.add("relu", {"x": x})
    with pytest.raises(AttributeError):
        setattr(node, name, getattr(node, name))


@pytest.mark.parametrize("name", ["name", "type", "node", "index", "uses", "lineage"])
def test_no_attribute_of_a_value_can_be_assigned(name: str) -> None:
    _, (x,) = start()
    with pytest.raises(AttributeError):
        setattr(x, name, getattr(x, name))


@pytest.mark.parametrize("name", ["data", "type", "name", "held", "depth"])
def test_no_attribute_of_an_array_can_be_assigned(name: str) -> None:
    array = Array.of(np.zeros(3), "zeros")
    with pytest.raises(AttributeError):
        setattr(array, name, getattr(array, name))


def test_the_name_of_a_graph_is_an_edit() -> None:
    graph, _ = start()
    version = graph.version
    graph.name = "other"
    assert graph.version == version + 1


def pick(graph: Graph, rng: random.Random, where: Callable[[Node], object]) -> Node:
    return rng.choice([node for node in graph if where(node)])


def other_op(graph: Graph, rng: random.Random) -> None:
    node = pick(graph, rng, lambda n: n.op not in ("input", "output"))
    node._op = "neg" if node.op != "neg" else "abs"


def other_type(graph: Graph, rng: random.Random) -> None:
    value = pick(graph, rng, lambda n: n.results).results[0]
    value._type = value.type.with_element(F16)


def other_profile(graph: Graph, rng: random.Random) -> None:
    pick(graph, rng, lambda n: True)._profile = "elsewhere"


def other_stages(graph: Graph, rng: random.Random) -> None:
    pick(graph, rng, lambda n: True)._stages = (Stage("relu", {}, ("x",)),)


def other_attrs(graph: Graph, rng: random.Random) -> None:
    node = pick(graph, rng, lambda n: n.attrs)
    name = next(iter(node.attrs))
    node._attrs = {**node.attrs, name: "other"}


def other_operand(graph: Graph, rng: random.Random) -> None:
    node = pick(graph, rng, lambda n: n.operands)
    slot, value = next(iter(node.operands.items()))
    node._operands[slot] = twin = Value(value.node, 0, value.name, value.type)
    twin._uses[Use(node, slot)] = None


def other_scheme(graph: Graph, rng: random.Random) -> None:
    pick(graph, rng, lambda n: True)._schemes = {"x": Scheme(U8)}


def other_name(graph: Graph, rng: random.Random) -> None:
    pick(graph, rng, lambda n: n.results).results[0]._name = "elsewhere"


def other_results(graph: Graph, rng: random.Random) -> None:
    node = pick(graph, rng, lambda n: n.results)
    node._results = (*node.results, Value(node, 1, "more", KIND))


def other_graph_profile(graph: Graph, rng: random.Random) -> None:
    graph._profile = "elsewhere"


def other_order(graph: Graph, rng: random.Random) -> None:
    node = pick(graph, rng, lambda n: n.op != "output")
    graph._order.take_out(node)
    graph._order.insert(node, None)


HOW = (
    other_op,
    other_type,
    other_profile,
    other_stages,
    other_attrs,
    other_operand,
    other_scheme,
    other_name,
    other_results,
    other_graph_profile,
    other_order,
)


@dataclass(frozen=True)
class Writes(Pass):
    """Writes into a graph past its methods, and says that it changed nothing."""

    name = "writes"
    how: Callable[[Graph, random.Random], None]
    seed: int

    def run(self, graph: Graph, ledger: Ledger) -> int:
        self.how(graph, random.Random(self.seed))
        return 0


@dataclass(frozen=True)
class Renames(Pass):
    """An honest pass."""

    name = "renames"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        graph.rename(next(iter(graph.values.values())), graph.fresh("renamed"))
        return 1


@dataclass(frozen=True)
class Reads(Pass):
    name = "reads"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        for node in graph:
            graph.set_origins(node, node.origins)
        return 0


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_pass_that_writes_past_the_methods_and_reports_nothing_is_refused(
    how: Callable[[Graph, random.Random], None],
) -> None:
    for seed in range(3):
        print(f"seed {seed}")
        graph = random_graph(seed, FORMS[seed % 3])
        text = str(graph)
        with pytest.raises(PassError, match="pass writes reports no change, the graph was edited"):
            run_passes(graph, (Reads(), Writes(how, seed)), Ledger())
        assert str(graph) == text


def test_a_pass_that_reads_is_taken_at_its_word() -> None:
    graph = random_graph(5, decorated=True)
    assert run_passes(graph, (Reads(), Reads()), Ledger()) == graph
