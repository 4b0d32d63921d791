"""Inputs with defaults are the constants that they default to, and whoever gives one is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import DataError
from qir.ledger import Ledger
from tests.cli.command import qir
from tests.frontends.onnx.models import save

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _given(folder: Path, version: int = 8) -> Path:
    """y = x * k, where k is an input that is 2 unless it is given."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in "xy")
    k = helper.make_tensor_value_info("k", TensorProto.FLOAT, [3])
    held = numpy_helper.from_array(np.full(3, 2, np.float32), "k")
    node = helper.make_node("Mul", ["x", "k"], ["y"])
    graph = helper.make_graph([node], "g", [x, k], [y], [held])
    imports = [helper.make_opsetid("", 17)]
    return save(helper.make_model(graph, opset_imports=imports, ir_version=version), folder)


def _takes(path: Path) -> list[str]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [i.name for i in session.get_overridable_initializers()]


def test_an_input_with_a_default_is_a_constant(tmp_path: Path) -> None:
    path, ledger = _given(tmp_path), Ledger()
    assert _takes(path) == ["k"]
    graph = pipeline.load(path, ledger=ledger)
    assert [(e.change.name, e.subject) for e in ledger] == [("DROPPED", "k")]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert pipeline.run(graph, {"x": X})["y"].tobytes() == session.run(None, {"x": X})[0].tobytes()
    with pytest.raises(DataError, match="input 'k' has a default in its file and is that constant"):
        pipeline.run(graph, {"x": X, "k": np.ones(3, np.float32)})
    pipeline.save(graph, tmp_path / "copy.onnx")
    assert _takes(tmp_path / "copy.onnx") == ["k"]
    pipeline.save(graph, tmp_path / "new.onnx", opset=21)
    assert _takes(tmp_path / "new.onnx") == []
    pipeline.save(graph, tmp_path / "m.qir")
    with pytest.raises(DataError, match="default"):
        pipeline.run(pipeline.load(tmp_path / "m.qir"), {"x": X, "k": np.ones(3, np.float32)})


def test_run_says_which_inputs_are_constants(tmp_path: Path) -> None:
    path, data = _given(tmp_path), tmp_path / "data.npz"
    np.savez(data, x=X, k=np.ones((2, 3), np.float32))
    told = qir("run", path, "--data", data)
    assert told.status == 0
    assert "k: has a default and is constant here, whatever the data say" in told.out
    assert "constant here" not in qir("run", _given(tmp_path, 3), "--data", data).out


def test_before_version_4_no_initializer_is_an_input(tmp_path: Path) -> None:
    path, ledger = _given(tmp_path, 3), Ledger()
    assert _takes(path) == []
    graph = pipeline.load(path, ledger=ledger)
    assert [*ledger] == []
    with pytest.raises(DataError, match="no input 'k'; the model takes x"):
        pipeline.run(graph, {"x": X, "k": np.ones(3, np.float32)})
    assert [i.name for i in onnx.load(path).graph.input] == ["x", "k"]
