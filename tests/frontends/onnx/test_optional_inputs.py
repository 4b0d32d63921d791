"""An optional input may be left out, as onnxruntime allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qir
from qir.errors import DataError
from tests.cli.command import qir as command

X = np.array([[-1, 0, 2]], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 3])
    info = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
        helper.make_value_info("more", helper.make_optional_type_proto(tensor)),
    ]
    made = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
        helper.make_tensor_value_info("there", TensorProto.BOOL, []),
    ]
    nodes = [
        helper.make_node("OptionalHasElement", ["more"], ["there"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "optional", info, made)
    path = tmp_path / "optional.onnx"
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


@pytest.mark.parametrize("given", [{}, {"more": None}, {"more": X}])
def test_it_is_nothing_where_nobody_gives_it(given: dict[str, object], model: Path) -> None:
    feeds = {"x": X, **given}
    wanted = onnxruntime.InferenceSession(model).run(None, feeds)
    found = qir.run(qir.load(model), feeds)  # type: ignore[arg-type]
    assert np.array_equal(found["y"], wanted[0])
    assert found["there"].item() == wanted[1].item() == ("more" in given and given["more"] is X)


def test_one_that_is_not_optional_is_missing(model: Path) -> None:
    with pytest.raises(DataError, match="input 'x' is missing"):
        qir.run(qir.load(model), {})


def test_data_need_not_hold_it(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    words = ("run", model, "--data", tmp_path / "x.npy", "--compare", "reference,onnxruntime")
    outcome = command(*words)
    assert outcome.status == 0, outcome
    assert qir.calibrate(qir.load(model), X).batches
