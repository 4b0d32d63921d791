"""Names of a foreign operator are put at their slots, and outer ones of its subgraphs renamed."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from qir.ir.foreign_names import names_at_slots, rename_captured


def test_names_are_at_their_slots() -> None:
    assert names_at_slots((0, 3), ["a", "b"]) == ["a", "", "", "b"]
    assert names_at_slots((), []) == []
    with pytest.raises(ValueError, match="zip"):
        names_at_slots((0, 1), ["a"])


def subgraph(*nodes: onnx.NodeProto, **fields: Any) -> onnx.GraphProto:
    info = helper.make_tensor_value_info("outer", TensorProto.FLOAT, [2])
    return helper.make_graph(list(nodes), "branch", [], [info], **fields)


def test_outer_names_are_renamed_at_every_depth() -> None:
    inner = subgraph(helper.make_node("Relu", ["outer"], ["made"]))
    nested = helper.make_node("If", ["outer"], ["chosen"], then_branch=inner, else_branch=inner)
    graph = subgraph(nested, helper.make_node("Add", ["chosen", "outer"], ["sum"]))
    rename_captured(graph, {"outer": "new", "sum": "not this"})
    assert [list(node.input) for node in graph.node] == [["new"], ["chosen", "new"]]
    assert [list(node.output) for node in graph.node] == [["chosen"], ["sum"]]
    assert [a.g.node[0].input[0] for a in graph.node[0].attribute] == ["new", "new"]
    assert graph.output[0].name == "new"


@pytest.mark.parametrize("kind", ["node", "initializer", "sparse_initializer"])
def test_a_name_that_the_subgraph_defines_hides_the_outer_one(kind: str) -> None:
    values = helper.make_tensor("outer", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [0])
    sparse = helper.make_sparse_tensor(values, indices, [2])
    fields: dict[str, dict[str, Any]] = {
        "node": {},
        "initializer": {"initializer": [values]},
        "sparse_initializer": {"sparse_initializer": [sparse]},
    }
    nodes = [helper.make_node("Relu", ["outer"], ["made"])]
    if kind == "node":
        nodes.insert(0, helper.make_node("Exp", ["x"], ["outer"]))
    graph = subgraph(*nodes, **fields[kind])
    rename_captured(graph, {"outer": "new"})
    assert graph.node[-1].input[0] == "outer"
    assert graph.output[0].name == "outer"
