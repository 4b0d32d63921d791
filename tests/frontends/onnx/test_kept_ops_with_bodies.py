"""Kept ops that hold graphs: these go with them, and what they use from outside is an operand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ir.printer import array_table
from qir.ir.text import parse
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.frontends.onnx.models import save

FLOAT = TensorProto.FLOAT


def repeated(operator_set: int = 1) -> onnx.ModelProto:
    """An op that nobody knows, whose graph uses a computed value, a constant and one of its own."""
    info = helper.make_tensor_value_info
    inner = helper.make_graph(
        [
            helper.make_node("Add", ["each", "half"], ["a"]),
            helper.make_node("Mul", ["a", "k"], ["b"]),
        ],
        "body",
        [info("each", FLOAT, [3])],
        [info("b", FLOAT, [3])],
        [numpy_helper.from_array(np.array(7, np.float32), "own")],
    )
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["half"], "halved"),
        helper.make_node("Repeat", ["x"], ["y"], "again", domain="com.example", body=inner, n=3),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", FLOAT, [3])],
        [info("y", FLOAT, [3])],
        [numpy_helper.from_array(np.full(3, 0.5, np.float32), "k")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", operator_set)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_an_unknown_op_carries_its_graph(tmp_path: Path) -> None:
    proto = repeated()
    graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    check(graph)
    node = graph["y"].node
    assert [v.name for v in node.operands.values()] == ["x", "half", "k"]
    arrays = {name: array.data for name, array in array_table(graph).items()}
    assert parse(str(graph), arrays) == graph
    written = to_model(graph, Ledger())
    assert list(written.graph.node) == list(proto.graph.node)
    assert [t.name for t in written.graph.initializer] == ["k"]


def test_what_its_graph_uses_keeps_up_with_its_name(tmp_path: Path) -> None:
    graph = OnnxFrontend().load(save(repeated(), tmp_path), Ledger())
    graph.rename(graph["half"], "other")
    (body,) = (
        a.g for n in to_model(graph, Ledger()).graph.node for a in n.attribute if a.name == "body"
    )
    assert list(body.node[0].input) == ["each", "other"]
    assert list(body.node[1].input) == ["a", "k"]


def test_graphs_that_are_carried_are_run(tmp_path: Path) -> None:
    """Scan of opset 8, which goes along batches, is run by ONNX's own evaluator."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", ["sum", "next"], ["new"]),
        helper.make_node("Identity", ["new"], ["part"]),
    ]
    ends = [info("new", FLOAT, [2]), info("part", FLOAT, [2])]
    body = helper.make_graph(
        nodes, "body", [info("sum", FLOAT, [2]), info("next", FLOAT, [2])], ends
    )
    scan = helper.make_node("Scan", ["", "s", "x"], ["y", "z"], "it", num_scan_inputs=1, body=body)
    graph = helper.make_graph(
        [scan],
        "g",
        [info("s", FLOAT, [1, 2]), info("x", FLOAT, [1, 3, 2])],
        [info("y", FLOAT, [1, 2]), info("z", FLOAT, [1, 3, 2])],
    )
    imports = [helper.make_opsetid("", 8)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=4)
    read = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    feeds = {
        "s": np.zeros((1, 2), np.float32),
        "x": np.arange(6, dtype=np.float32).reshape(1, 3, 2),
    }
    found = run(read, feeds)
    assert np.array_equal(found["z"], np.cumsum(feeds["x"], 1))
    assert np.array_equal(found["y"], found["z"][:, -1])


def test_a_type_is_carried_too(tmp_path: Path) -> None:
    kind = helper.make_tensor_type_proto(FLOAT, [2])
    node = helper.make_node("Odd", ["x"], ["y"], "it", domain="com.example", kind=kind)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", FLOAT, [2])], [info("y", FLOAT, [2])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    read = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    assert list(to_model(read, Ledger()).graph.node) == [node]
