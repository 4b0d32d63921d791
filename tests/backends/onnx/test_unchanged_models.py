"""A model that nobody changed comes back as it was; an edited one is written anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ir.text import parse
from qir.ledger import Ledger

FLOAT = TensorProto.FLOAT


def with_function(opset: int = 11) -> onnx.ModelProto:
    """Old opset, a function, metadata, a constant that nothing uses, a dimension with odd name."""
    node = helper.make_node
    body = [node("Mul", ["a", "a"], ["s"]), node("Relu", ["s"], ["b"])]
    function = helper.make_function(
        "mine", "Square", ["a"], ["b"], body, [helper.make_opsetid("", opset)]
    )
    nodes = [node("Square", ["x"], ["h"], "first", domain="mine"), node("Add", ["h", "w"], ["y"])]
    tensors = [numpy_helper.from_array(np.ones((1, 3), np.float32), n) for n in ("w", "spare")]
    x, y = (helper.make_tensor_value_info(n, FLOAT, ["batch size", 3]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], tensors, doc_string="a doc")
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)],
        ir_version=8,
        producer_name="somebody",
    )
    helper.set_model_props(model, {"author": "them"})
    return model


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
def test_names_metadata_functions_and_opset_come_back(tmp_path: Path, opset: int) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    proto = with_function(opset)
    onnx.save(proto, source)
    ledger = Ledger()
    pipeline.save(pipeline.load(source, ledger=ledger), made, ledger=ledger)
    assert onnx.load(made) == proto
    assert not len(ledger)


def test_an_edited_graph_is_written_anew(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(with_function(), source)
    graph = pipeline.load(source)
    graph.rename(graph["h"], "other")
    pipeline.save(graph, made)
    assert [n.op_type for n in onnx.load(made).graph.node] == ["Mul", "Relu", "Add"]


def test_a_form_or_an_operator_set_that_is_asked_for_is_written_anew(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(with_function(), source)
    for more in ({"format": "qdq"}, {"opset": 17}):
        pipeline.save(pipeline.load(source), made, force=True, **more)
        written = onnx.load(made)
        assert written.opset_import[0].version in (13, 17)
        assert not written.functions


def test_a_file_that_was_changed_since_is_not_given_back(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(with_function(), source)
    graph = pipeline.load(source)
    onnx.save(with_function(13), source)
    os.utime(source, ns=(1, 1))
    pipeline.save(graph, made)
    assert not onnx.load(made).functions


def test_data_beside_a_model_go_with_it(tmp_path: Path) -> None:
    proto = with_function(13)
    folder = tmp_path / "there"
    folder.mkdir()
    source, made = tmp_path / "m.onnx", folder / "made.onnx"
    onnx.save(proto, source, save_as_external_data=True, location="all.bin", size_threshold=0)
    pipeline.save(pipeline.load(source), made)
    assert {p.name for p in folder.iterdir()} == {"made.onnx", "all.bin"}
    assert onnx.load(made).graph.initializer[0] == onnx.load(source).graph.initializer[0]
    assert (folder / "all.bin").read_bytes() == (tmp_path / "all.bin").read_bytes()


def test_data_of_another_model_are_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "all.bin").write_bytes(b"mine")
    source, made = tmp_path / "m.onnx", folder / "made.onnx"
    proto = with_function(13)
    onnx.save(proto, source, save_as_external_data=True, location="all.bin", size_threshold=0)
    ledger = Ledger()
    pipeline.save(pipeline.load(source), made, ledger=ledger)
    assert (
        sum("not copied: 'all.bin' in its folder is another file" in e.reason for e in ledger) == 1
    )
    assert (folder / "all.bin").read_bytes() == b"mine"
    assert numpy_helper.to_array(onnx.load(made).graph.initializer[0]).sum() == 3


def test_an_operator_set_that_the_runtime_lacks_is_written_anew(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    newest = onnx.defs.onnx_opset_version()
    onnx.save(with_function(newest), source)
    pipeline.save(pipeline.load(source), made)
    assert max(o.version for o in onnx.load(made).opset_import if not o.domain) <= 26
    pipeline.save(pipeline.load(source), made, target="onnx", force=True)
    assert onnx.load(made) == onnx.load(source)


@pytest.mark.parametrize(
    "place", ["../secret.bin", "link.bin", "hard.bin", "/etc/hostname", "d\\e"]
)
def test_data_that_nothing_reads_are_not_fetched_from_elsewhere(tmp_path: Path, place: str) -> None:
    inner, there = tmp_path / "inner", tmp_path / "there"
    inner.mkdir()
    there.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"key=1234")
    (inner / "link.bin").symlink_to("../secret.bin")
    os.link(tmp_path / "secret.bin", inner / "hard.bin")
    proto = with_function(13)
    spare = proto.graph.initializer[1]
    spare.ClearField("raw_data")
    spare.data_location = TensorProto.EXTERNAL
    for key, value in (("location", place), ("offset", "1e3"), ("length", "8")):
        spare.external_data.add(key=key, value=value)
    (inner / "m.onnx").write_bytes(proto.SerializeToString())
    pipeline.save(pipeline.load(inner / "m.onnx"), there / "made.onnx", lossy=True)
    assert [p.name for p in there.iterdir()] == ["made.onnx"]
    assert [t.name for t in onnx.load(there / "made.onnx").graph.initializer] == ["w"]


QUANTIZED = """graph main as ort-1.31 {
  %x = input() : 2x4xf32
  %q = quantize(%x) : 2x4x!quant.uniform<u8:f32, 0.5:7>
  %d = dequantize(%q) : 2x4xf32
  %y = add(%d, %d) : 2x4xf32
  %r = quantize(%y) : 2x4x!quant.uniform<u8:f32, 1.0:7>
  %s = dequantize(%r) : 2x4xf32
  output(y=%s)
}"""


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_quantized_file_comes_back_in_the_form_that_it_has(tmp_path: Path, form: str) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    pipeline.save(parse(QUANTIZED), source, format=form)
    ledger = Ledger()
    pipeline.save(pipeline.load(source, ledger=ledger), made, ledger=ledger)
    assert made.read_bytes() == source.read_bytes()
    assert not len(ledger)


def test_operators_of_onnxruntime_are_not_copied_for_onnx_itself(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    pipeline.save(parse(QUANTIZED), source, format="qoperator")
    assert "QLinearAdd" in {n.op_type for n in onnx.load(source).graph.node}
    ledger = Ledger()
    pipeline.save(pipeline.load(source, ledger=ledger), made, target="onnx", ledger=ledger)
    assert {n.domain for n in onnx.load(made).graph.node} == {""}
    assert len(ledger)


def test_an_edited_quantized_graph_is_written_anew(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    pipeline.save(parse(QUANTIZED), source, format="qoperator")
    graph = pipeline.load(source)
    graph.rename(graph["q"], "other")
    pipeline.save(graph, made)
    (add,) = [n for n in onnx.load(made).graph.node if n.op_type == "QLinearAdd"]
    assert add.domain == "com.microsoft"
