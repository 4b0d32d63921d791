"""`quantization_annotation`: integers that go into a model or come out of it say what they mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.reference.interpreter import run

CODES = """graph main as native {
  %x = input() : 2x3x!quant.uniform<u8:f32, 0.5:7>
  %y = transpose(%x) {perm = (1, 0)} : 3x2x!quant.uniform<u8:f32, 0.5:7>
  output(y=%y)
}"""


def test_codes_that_only_move_keep_their_meaning(tmp_path: Path) -> None:
    graph, path = parse(CODES), tmp_path / "m.onnx"
    pipeline.save(graph, path)
    proto = onnx.load(path)
    assert {a.tensor_name for a in proto.graph.quantization_annotation} == {"x", "y"}
    back = pipeline.load(path)
    assert [back[n].type for n in "xy"] == [graph[n].type for n in "xy"]
    feeds = {"x": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert (session.run(None, feeds)[0] == run(back, feeds)["y"]).all()


def test_an_annotation_of_a_tensor_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    pipeline.save(parse(CODES), path)
    proto = onnx.load(path)
    proto.graph.quantization_annotation.add(tensor_name="nobody")
    onnx.save(proto, path)
    ledger = Ledger()
    pipeline.load(path, ledger=ledger)
    assert [e.subject for e in ledger] == ["nobody"]


def test_a_written_model_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    pipeline.save(parse(CODES), path, format="qdq")
    said = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert said["qir.profile"] == "native"
    assert said["qir.form"] == "qdq"
    pipeline.save(pipeline.load(path), path, format="qoperator", force=True)
    again = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert again["qir.form"] == "qoperator"


def annotated(**given: tuple[str, str]) -> onnx.ModelProto:
    """A product of raw integers, with annotations (scale, zero) of what these names have."""
    held = {
        "w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3),
        "xz": np.uint8(3),
        "xs": np.float32(0.5),
        "ws": np.float32(0.25),
        "wz": np.int8(0),
        "each": np.array([1, 2, 3], np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "xz"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [2, 3])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    for name, pair in given.items():
        each = graph.quantization_annotation.add(tensor_name=name)
        for key, value in zip(("SCALE_TENSOR", "ZERO_POINT_TENSOR"), pair, strict=True):
            if value:
                each.quant_parameter_tensor_names.add(key=key, value=value)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_a_constant_that_is_taken_raw_has_the_meaning_that_is_said(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(annotated(x=("xs", "xz"), w=("ws", "wz")), source)
    graph = pipeline.load(source)
    assert str(graph["w"].type.quant) == "!quant.uniform<i8:f32, 0.25>"
    pipeline.save(graph, made, opset=21)
    assert {a.tensor_name for a in onnx.load(made).graph.quantization_annotation} == {"x", "w"}
    back = pipeline.load(made)
    assert [back[n].type for n in "xwy"] == [graph[n].type for n in "xwy"]
    feeds = {"x": np.arange(8, dtype=np.uint8).reshape(2, 4)}
    wanted = onnxruntime.InferenceSession(str(source)).run(None, feeds)[0]
    assert (onnxruntime.InferenceSession(str(made)).run(None, feeds)[0] == wanted).all()
    assert (run(back, feeds)["y"] == wanted).all()


@pytest.mark.parametrize(
    ("name", "pair", "said"),
    [
        ("w", ("each", ""), "is dropped: it has 3 scales and no axis"),
        ("w", ("nobody", ""), "is dropped: 'nobody' is no constant"),
        ("w", ("", "wz"), "names no scale"),
        ("y", ("ws", ""), "is of an operator's result that is not quantized"),
        ("ws", ("xs", ""), "is of a float value"),
        ("none", ("ws", "wz"), "is of a tensor that is not there"),
    ],
)
def test_an_annotation_that_does_not_fit_says_why(
    tmp_path: Path, name: str, pair: tuple[str, str], said: str
) -> None:
    source, ledger = tmp_path / "m.onnx", Ledger()
    onnx.save(annotated(**{name: pair}), source)
    pipeline.load(source, ledger=ledger)
    reasons = [e.reason for e in ledger if "annotation" in e.reason]
    assert reasons == [f"the quantization_annotation {said}"]


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer", "nbits"])
def test_codes_of_every_form_are_annotated(tmp_path: Path, target: str, form: str) -> None:
    text = """graph main as ort-1.31 {
      %x = input() : 2x4xf32
      %q = quantize(%x) : 2x4x!quant.uniform<u8:f32, 0.5:7>
      %d = dequantize(%q) : 2x4xf32
      %w = constant(@w) : 4x2x!quant.uniform<i8:f32, 0.25>
      %v = dequantize(%w) : 4x2xf32
      %p = matmul(%d, %v) : 2x2xf32
      %r = quantize(%p) : 2x2x!quant.uniform<u8:f32, 2.0:128>
      %y = dequantize(%r) : 2x2xf32
      output(y=%y)
    }"""
    path = tmp_path / "m.onnx"
    quantized = np.array([[1, -2], [3, 4], [5, 6], [7, 8]], np.int8)
    pipeline.save(parse(text, {"w": quantized}), path, target=target, format=form)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    said = {
        a.tensor_name: {p.key: held[p.value].item() for p in a.quant_parameter_tensor_names}
        for a in model.graph.quantization_annotation
    }
    wanted = {
        "q": {"SCALE_TENSOR": 0.5, "ZERO_POINT_TENSOR": 7},
        "r": {"SCALE_TENSOR": 2.0, "ZERO_POINT_TENSOR": 128},
    }
    if form in ("qdq", "qoperator"):
        wanted["w"] = {"SCALE_TENSOR": 0.25, "ZERO_POINT_TENSOR": 0}
    assert {name: said[name] for name in wanted} == wanted
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    found = onnxruntime.InferenceSession(str(path)).run(None, feeds)[0]
    assert (run(pipeline.load(path), feeds)["y"] == found).all()
