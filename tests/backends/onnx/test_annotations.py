"""`quantization_annotation`: codes that go into a model or come out of it say what they mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

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
