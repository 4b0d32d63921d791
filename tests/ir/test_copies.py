"""Graphs are copied and pickled whole, have no hash, and print what moves a cursor as escapes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from qir.errors import GraphError, QirError
from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ir.verify import errors
from qir.testing import EVERY, random_graph
from tests.ir.alike import difference
from tests.ir.test_graph import KIND, sound


@pytest.mark.parametrize("seed", range(12))
def test_copies_and_pickles_of_graphs_are_equal_and_live_alone(seed: int) -> None:
    print(f"seed {seed}")
    graph = random_graph(seed, EVERY[seed % len(EVERY)], decorated=True)
    was = print_graph(graph, origins=True)
    for made in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert difference(graph, made, history=True) == ""
        assert made == graph
        assert sound(made) == ""
        made.add("input", types=[KIND])
        assert made != graph
        assert print_graph(graph, origins=True) == was


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_nodes_and_values_are_not_copied_without_their_graph(
    way: Callable[[object], object],
) -> None:
    graph = Graph()
    x = graph.add("input", types=[KIND], name="x").result
    for part in (x, x.node):
        with pytest.raises(GraphError, match="is part of a graph: copy or pickle the graph"):
            way(part)


def test_a_graph_has_no_hash_since_it_is_compared_by_its_contents() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Graph())


@pytest.mark.parametrize("odd", ["\x9b31m", "\u202eabc", "\u2066", "\x7f", "\U000e0001", "\ud800"])
def test_characters_that_move_a_cursor_print_as_escapes_and_read_back(odd: str) -> None:
    graph = Graph(odd, odd)
    x = graph.add("input", types=[KIND], name=odd).result
    graph.add("output", {odd: x})
    text = print_graph(graph)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert parse(text) == graph


def test_an_unknown_range_rule_does_not_pass_verification() -> None:
    text = """graph main as native {
      %x = input() : 3xf32
      %s, %z = choose_qparams(%x) {rule = "RULE", storage = u8} : f32, u8
      output(s=%s, z=%z)
    }"""
    assert errors(parse(text.replace("RULE", "profile"))) == []
    (found,) = errors(parse(text.replace("RULE", "bogus")))
    assert "rule = 'bogus' is none of profile, onnx.dynamic" in found.message


def test_a_chain_in_text_whose_stage_lacks_operands_is_refused() -> None:
    text = """graph main as native {
      %b = input() : 3xf32
      %y = conv2d(bias=%b) |> relu : 1x3x2x2xf32
      output(y=%y)
    }"""
    with pytest.raises(QirError, match="stage 0: conv2d needs x"):
        parse(text)
