"""What a file says of its inner tensors and of other domains is kept, or the ledger says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ledger import Ledger

FLOAT = TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info


def stated(folder: Path, version: int = 1) -> Path:
    """A model that states the types of two inner tensors, one of them of integers."""
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("QuantizeLinear", ["h", "s", "z"], ["q"], domain="com.microsoft"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], domain="com.microsoft"),
        node("Abs", ["d"], ["y"]),
    ]
    held: dict[str, NDArray[Any]] = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", FLOAT, ["N", 4])],
        [info("y", FLOAT, ["N", 4])],
        tensors,
        value_info=[info("q", TensorProto.UINT8, ["N", 4]), info("h", FLOAT, ["N", 4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", version)]
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path


@pytest.mark.parametrize("through", ["", ".qir"])
def test_types_of_inner_tensors_come_back(tmp_path: Path, through: str) -> None:
    path, ledger = stated(tmp_path), Ledger()
    graph = pipeline.load(path, ledger=ledger)
    if through:
        pipeline.save(graph, tmp_path / "m.qir")
        graph = pipeline.load(tmp_path / "m.qir")
    again = tmp_path / "again.onnx"
    pipeline.save(graph, again, opset=20, ledger=ledger)
    made = onnx.load(again)
    assert list(made.graph.value_info) == list(onnx.load(path).graph.value_info)
    assert not [e for e in ledger if "stated" in e.reason]
    onnxruntime.InferenceSession(again, providers=["CPUExecutionProvider"])


def test_a_stated_type_of_what_is_not_there_is_told(tmp_path: Path) -> None:
    graph, ledger = pipeline.load(stated(tmp_path)), Ledger()
    (value,) = (v for v in graph.values.values() if v.name == "h")
    graph.rename(value, "other")
    pipeline.save(graph, tmp_path / "again.onnx", ledger=ledger)
    said = [(e.subject, e.reason) for e in ledger if "stated" in e.reason]
    assert said == [("h", "1 stated type of inner tensors dropped: no operator gives them")]


def test_another_version_of_another_domain_is_told(tmp_path: Path) -> None:
    graph, ledger = pipeline.load(stated(tmp_path, version=3)), Ledger()
    pipeline.save(graph, tmp_path / "again.onnx", opset=20, ledger=ledger)
    made = {i.domain: i.version for i in onnx.load(tmp_path / "again.onnx").opset_import}
    assert made["com.microsoft"] == 1
    said = [e.reason for e in ledger if "com.microsoft" in e.reason]
    assert said == ["opset 3 of com.microsoft -> 1: the one that its operators are of"]
