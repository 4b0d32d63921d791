"""Which values share a map, and which ops form one piece in integers."""

import networkx as nx
import pytest

from qir.errors import GraphError
from qir.inspect import bytes_by_dtype, islands, longest_chain, quantized_nodes, sharing
from qir.query.facts import value_quant_type
from qir.testing import random_graph
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program


def test_values_share_where_equal_codes_mean_equal_reals() -> None:
    graph = program(INTEGER)
    assert [v.name for v in sharing(graph, "q")] == ["q", "y", "d", "s", "r"]
    assert [v.name for v in sharing(graph, "w")] == ["w", "w2"]
    assert sharing(graph, "f") == ()
    with pytest.raises(GraphError, match="no value %nobody"):
        sharing(graph, "nobody")
    assert [v.name for v in sharing(program(QDQ), "wd")] == ["w", "wd"]


def test_islands_are_the_pieces_between_float_ops() -> None:
    assert [[n.name for n in i] for i in islands(program(INTEGER))] == [["y", "d", "s"]]
    assert [[n.name for n in i] for i in islands(program(QDQ))] == [["y", "a", "p"]]
    assert islands(program(FLOAT)) == ()


def test_every_integer_op_is_on_one_island_and_chains_stay_on_one() -> None:
    for seed in range(40):
        graph = random_graph(seed, "qdq" if seed % 2 else "integer")
        found = islands(graph)
        integer = {n for n, done in quantized_nodes(graph).items() if done}
        assert sorted(n.name for i in found for n in i) == sorted(n.name for n in integer)
        chain = set(longest_chain(graph))
        assert not chain or any(chain <= set(island) for island in found), f"seed {seed}"
        sizes = [len(island) for island in found]
        assert sizes == sorted(sizes, reverse=True)


def test_sharing_is_an_equivalence() -> None:
    for seed in range(20):
        graph = random_graph(seed, "integer")
        same = nx.Graph()
        for value in graph.values.values():
            if value_quant_type(value) is not None:
                same.add_edges_from((value.name, v.name) for v in sharing(graph, value.name))
        for group in nx.connected_components(same):
            for name in group:
                assert {v.name for v in sharing(graph, name)} == group, f"seed {seed}"


def test_bytes_are_counted_by_what_is_stored() -> None:
    assert bytes_by_dtype(program(FLOAT)) == {"f32": 4 * (6 * 27 + 6)}
    assert bytes_by_dtype(program(INTEGER)) == {"i8": 6 * 27 + 6 * 9}
