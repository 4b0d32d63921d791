"""A model that is written anew keeps what its author wrote; the ledger has what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ledger import Change, Ledger

FLOAT = TensorProto.FLOAT


def rich(opset: int = 17) -> onnx.ModelProto:
    """Notes wherever a model has some, functions, a sparse tensor and a stated type."""
    node = helper.make_node
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    body = [node("Mul", ["a", "a"], ["s"]), node("Relu", ["s"], ["b"])]
    function = helper.make_function("mine", "Square", ["a"], ["b"], body, imports[:1])
    values = numpy_helper.from_array(np.array([1, 2.5], np.float32), "sparse")
    places = numpy_helper.from_array(np.array([1, 7], np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [4, 4])
    inner = [
        helper.make_graph(
            [node(op, ["h", "w"], [op], f"in {op}", doc_string=f"the {op}")],
            op,
            [],
            [helper.make_tensor_value_info(op, FLOAT, None)],
        )
        for op in ("Add", "Sub")
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first", doc_string="a product"),
        node("Square", ["a"], ["b"], "squared", domain="mine"),
        node("MatMul", ["b", "sparse"], ["h"]),
        node("If", ["c"], ["y"], "if", then_branch=inner[0], else_branch=inner[1]),
    ]
    nodes[0].metadata_props.add(key="place", value="layer 0")
    nodes[2].metadata_props.add(key="place", value="layer 1")
    nodes[1].doc_string = "goes with its function"
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 4], "what comes in")
    y = helper.make_tensor_value_info("y", FLOAT, ["n", 4], "what goes out")
    x.metadata_props.add(key="unit", value="m")
    graph = helper.make_graph(
        nodes,
        "net",
        [x, helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [y],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
        doc_string="a net",
        sparse_initializer=[sparse],
        value_info=[helper.make_tensor_value_info("a", FLOAT, ["n", 4])],
    )
    graph.metadata_props.add(key="part", value="whole")
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=imports,
        ir_version=10,
        producer_name="somebody",
        producer_version="1.2",
        domain="their.domain",
        model_version=7,
        doc_string="a model",
    )
    helper.set_model_props(model, {"author": "them"})
    return model


def held(part: object) -> tuple[str, dict[str, str]]:
    assert isinstance(part, onnx.NodeProto | onnx.GraphProto | onnx.ValueInfoProto)
    return part.doc_string, {p.key: p.value for p in part.metadata_props}


@pytest.mark.parametrize("through", [False, True])
def test_notes_come_back_and_what_does_not_is_told(tmp_path: Path, through: bool) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.checker.check_model(rich())
    onnx.save(rich(), source)
    ledger = Ledger()
    graph = pipeline.load(source, ledger=ledger)
    if through:
        pipeline.save(graph, tmp_path / "m.qir", ledger=ledger)
        graph = pipeline.load(tmp_path / "m.qir")
    pipeline.save(graph, made, ledger=ledger, format=None if through else "qdq")
    back = onnx.load(made)
    onnx.checker.check_model(back)
    assert (back.domain, back.model_version, back.doc_string) == ("their.domain", 7, "a model")
    props = {p.key: p.value for p in back.metadata_props}
    assert props["qir.producer"] == "somebody 1.2"
    assert props["author"] == "them"
    assert held(back.graph) == ("a net", {"part": "whole"})
    assert held(back.graph.input[0]) == ("what comes in", {"unit": "m"})
    assert held(back.graph.output[0]) == ("what goes out", {})
    nodes = {n.name: held(n) for n in back.graph.node}
    assert nodes["first"] == ("a product", {"place": "layer 0"})
    assert nodes[""] == ("", {"place": "layer 1"})
    assert [n.name for n in back.graph.node] == ["first", *[""] * 3, "if"]
    inside = next(n for n in back.graph.node if n.op_type == "If").attribute
    docs = {n.name: n.doc_string for a in inside for n in a.g.node}
    assert docs == {"in Add": "the Add", "in Sub": "the Sub"}
    said = {(e.change, e.subject, e.reason) for e in ledger}
    assert said == {
        (Change.EXACT, "sparse", "1 sparse tensor dense"),
        (Change.DROPPED, "Square", "1 function written out"),
    }
    assert list(back.graph.value_info) == list(rich().graph.value_info)
    feeds = {"x": np.arange(16, dtype=np.float32).reshape(4, 4), "c": np.array(True)}
    runs = [onnxruntime.InferenceSession(str(p)).run(None, feeds)[0] for p in (source, made)]
    assert (runs[0] == runs[1]).all()


def test_the_first_producer_stays(tmp_path: Path) -> None:
    made = tmp_path / "m.onnx"
    onnx.save(rich(), made)
    for form in ("qdq", "qoperator"):
        pipeline.save(pipeline.load(made), made, format=form, force=True)
        props = {p.key: p.value for p in onnx.load(made).metadata_props}
        assert props["qir.producer"] == "somebody 1.2"


def test_notes_of_nodes_that_are_gone_are_counted(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(rich(), source)
    graph, ledger = pipeline.load(source), Ledger()
    value = graph["h"]
    graph.replace(value, graph.add("relu", {"x": graph["b"]}, before=value.node).result)
    graph.remove(value.node)
    pipeline.save(graph, tmp_path / "made.onnx", ledger=ledger)
    assert [(e.change, e.subject, e.reason) for e in ledger] == [
        (
            Change.DROPPED,
            "h_MatMul",
            "1 metadata property of nodes that are written as others dropped",
        ),
    ]


@pytest.mark.parametrize(
    ("opset", "more", "said"),
    [
        (17, {"opset": 21}, "opset 17 -> 21: as asked for"),
        (11, {"format": "qdq"}, "opset 11 -> 13: what it holds needs it"),
        (27, {}, "opset 27 -> 26: the newest that onnxruntime 1.31 has"),
    ],
)
def test_another_operator_set_is_told(
    tmp_path: Path, opset: int, more: dict[str, object], said: str
) -> None:
    source, ledger = tmp_path / "m.onnx", Ledger()
    x, y = (helper.make_tensor_value_info(n, FLOAT, [2, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), source)
    pipeline.save(pipeline.load(source), tmp_path / "made.onnx", ledger=ledger, **more)  # type: ignore[arg-type]
    assert [(e.subject, e.reason) for e in ledger] == [
        ("net", said),
        ("net", "IR version 8 -> 10: the one that is written"),
    ]
