"""Elements that NumPy has no type for go to onnxruntime and come from it bit by bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.session import OnnxSession
from qir.errors import DataError
from tests.cli.command import qir

X = np.array([[1, -2], [3, 0], [0.5, 1]], np.float32)
KINDS = {
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    "i4": (TensorProto.INT4, ml_dtypes.int4),
    "u4": (TensorProto.UINT4, ml_dtypes.uint4),
    "i2": (TensorProto.INT2, ml_dtypes.int2),
    "u2": (TensorProto.UINT2, ml_dtypes.uint2),
}
WHOLE = np.array([[1, 0], [1, 1], [0, 1]], np.float32)
"""What all of these types hold."""


def cast(given: int, made: int) -> onnx.ModelProto:
    """x in one type, y in another."""
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=made)]
    info = helper.make_tensor_value_info
    ins, outs = [info("x", given, ["N", 2])], [info("y", made, ["N", 2])]
    graph = helper.make_graph(nodes, "g", ins, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


@pytest.mark.parametrize("name", KINDS)
def test_results_are_what_they_mean(name: str, tmp_path: Path) -> None:
    number, kind = KINDS[name]
    x = X if name[0] in "bf" else WHOLE
    model = cast(TensorProto.FLOAT, number)
    (y,) = OnnxSession(model.SerializeToString())(x=x).values()
    assert isinstance(y, np.ndarray)
    assert y.astype(np.float32).tolist() == x.astype(kind).astype(np.float32).tolist()

    path, data = tmp_path / "m.onnx", tmp_path / "x.npy"
    onnx.save(model, path)
    np.save(data, x)
    said = qir("run", path, "--data", data, "--compare", "reference,onnxruntime")
    assert not said.status, said
    for engine in ("reference", "onnxruntime"):
        said = qir("run", path, "--data", data, "--with", engine, "--json")
        assert f'"dtype": "{name}"' in said.out


@pytest.mark.parametrize("name", KINDS)
def test_such_tensors_are_taken(name: str) -> None:
    number, kind = KINDS[name]
    session = OnnxSession(cast(number, TensorProto.FLOAT).SerializeToString())
    for x in (WHOLE, WHOLE[:0]):
        tensor = numpy_helper.to_array(helper.make_tensor("x", number, x.shape, x.ravel()))
        held = tensor.astype(np.int8 if name[0] == "i" else np.uint8) if name[0] in "iu" else tensor
        (y,) = session(x=held).values()
        assert isinstance(y, np.ndarray)
        assert (y.shape, y.tolist()) == (x.shape, x.astype(kind).astype(np.float32).tolist())
    for wrong in ({"x": WHOLE}, {}, {"x": held, "z": WHOLE}):
        with pytest.raises(DataError, match="onnxruntime cannot run it"):
            session(**wrong)


def test_texts_come_beside_them() -> None:
    model = cast(TensorProto.FLOAT, TensorProto.INT4)
    model.graph.node.append(helper.make_node("Cast", ["x"], ["s"], to=TensorProto.STRING))
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.STRING, ["N", 2]))
    found = OnnxSession(model.SerializeToString())(x=WHOLE)
    assert np.asarray(found["s"]).tolist() == [["1", "0"], ["1", "1"], ["0", "1"]]
    assert np.asarray(found["y"]).tolist() == WHOLE.tolist()
