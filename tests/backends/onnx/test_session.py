"""onnxruntime as an engine: graphs and files, with and without its optimizer."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.session import OnnxSession
from qir.errors import DataError, InputError
from qir.ir.text import parse

PROGRAM = """
graph main as native {
  %x.1 = input() : (N)x4xf32
  %y = relu(%x.1) : (N)x4xf32
  output(out=%y, in.1=%x.1)
}
"""


def model(op: str = "Relu") -> onnx.ModelProto:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])

    nodes = [helper.make_node(op, ["x"], ["y"])]
    graph = helper.make_graph(nodes, "main", [info("x")], [info("y")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("nobody", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux does")
def test_no_more_threads_are_started_than_there_are_processors() -> None:
    before = len(os.listdir("/proc/self/task"))
    session = OnnxRuntimeTarget().compile(parse(PROGRAM, {}), threads=200)
    assert len(os.listdir("/proc/self/task")) - before < len(os.sched_getaffinity(0)) + 2
    session(**{"x.1": np.zeros((1, 4), np.float32)})


def test_a_graph_runs_under_the_names_it_has() -> None:
    x = np.array([[-1, 0, 2, -0.5]], np.float32)
    results = OnnxRuntimeTarget().compile(parse(PROGRAM, {}), threads=1)(**{"x.1": x})
    assert list(results) == ["out", "in.1"]
    np.testing.assert_array_equal(results["out"], np.maximum(x, 0))
    np.testing.assert_array_equal(results["in.1"], x)


@pytest.mark.parametrize("optimize", [True, False])
def test_a_file_runs_as_it_is(tmp_path: Path, optimize: bool) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model("Exp"), str(path))
    x = np.linspace(-2, 2, 4, dtype=np.float32)[None]
    results = OnnxRuntimeTarget().session(path, optimize=optimize)(x=x)
    wanted = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]
    np.testing.assert_array_equal(results["y"], wanted)


def test_a_file_that_onnxruntime_does_not_take_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    broken = model()
    broken.graph.node[0].domain = "nobody"
    path.write_bytes(broken.SerializeToString())
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime does not take it: .*Relu"):
        OnnxRuntimeTarget().session(path)
    path.write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime does not take it"):
        OnnxRuntimeTarget().session(path)
    assert capfd.readouterr() == ("", ""), "onnxruntime prints nothing of its own"


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"x": np.zeros((1, 5), np.float32)},
        {"x": np.zeros((1, 4), np.float64)},
        {"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)},
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    inputs: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    run = OnnxRuntimeTarget().session(parse(PROGRAM.replace("x.1", "x"), {}))
    with pytest.raises(DataError, match=r"^onnxruntime cannot run it: [^\n]+$"):
        run(**inputs)
    assert capfd.readouterr() == ("", "")


def test_what_onnxruntime_says_is_told_without_its_sources() -> None:
    shape = TensorProto.INT64, [2], [3, 5]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("s", *shape)],
    )
    sets = [helper.make_opsetid("", 20)]
    data = helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()
    with pytest.raises(DataError) as caught:
        OnnxSession(data)(x=np.zeros(4, np.float32))
    said = str(caught.value)
    assert "cannot be reshaped to the requested shape. Input shape:{4}" in said
    assert ".h:" not in said
    assert "was false" not in said
