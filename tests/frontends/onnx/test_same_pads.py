"""Automatic padding where less than nothing is missing, and with dilations."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

from qir import pipeline

Array = NDArray[np.generic]
OPS = {"Conv": (11, 22), "MaxPool": (11, 22), "AveragePool": (11, 19), "LpPool": (11, 18)}
DILATED = {"MaxPool": 11, "LpPool": 18, "AveragePool": 19}


def written(path: Path, op: str, opset: int, x: Array, **attrs: int | str | list[int]) -> Path:
    w = np.ones((3, x.shape[1], *x.shape[2:]), np.float32)
    kernel = attrs["kernel_shape"]
    assert isinstance(kernel, list)
    w = w[tuple(slice(None, k) for k in (3, x.shape[1], *kernel))]
    names = ["x", "w"] if op == "Conv" else ["x"]
    node = helper.make_node(op, names, ["y"], "it", None, None, None, **attrs)
    held = [numpy_helper.from_array(w, "w")] if op == "Conv" else []
    taken = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    graph = helper.make_graph([node], "g", [taken], [onnx.ValueInfoProto(name="y")], held)
    of = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=7), path)
    return path


def ran(path: Path, x: Array) -> Array | None:
    """What onnxruntime gives; nothing where it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options)
        made: Array = session.run(None, {"x": x})[0]
    except (state.Fail, state.InvalidArgument, state.RuntimeException, state.NotImplemented):
        return None
    return made


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", OPS)
def test_padding_is_the_same_in_every_way(tmp_path: Path, op: str, mode: str) -> None:
    """From the source, by the interpreter, and written anew for onnxruntime."""
    found, kept = 0, 0
    drawn = [*product((1, 2, 3), (1, 3, 4), (1,), (3, 4, 8))]
    drawn += [*product((1, 2), (1, 3), (2,), (3, 6))]
    for number, (kernel, stride, dilation, size) in enumerate(drawn):
        opset = DILATED.get(op, 11) if dilation > 1 else OPS[op][number % 2]
        attrs: dict[str, int | str | list[int]] = {"auto_pad": mode}
        n = 1 + number % 2
        x = np.arange(2 * size * 5 ** (n - 1), dtype=np.float32).reshape(1, 2, *[5] * (n - 1), size)
        attrs |= {"kernel_shape": [1] * (n - 1) + [kernel], "strides": [1] * (n - 1) + [stride]}
        if dilation > 1:
            attrs["dilations"] = [1] * (n - 1) + [dilation]
        source = written(tmp_path / "m.onnx", op, opset, x, **attrs)
        wanted = ran(source, x)
        if wanted is None:
            continue
        graph = pipeline.load(source)
        (got,) = pipeline.run(graph, {"x": x}).values()
        note = f"{op} {opset} {attrs} of {size}"
        assert np.array_equal(got, wanted), f"{note}: {got}, not {wanted}"
        pipeline.save(graph, tmp_path / "b.onnx", target="onnxruntime", format="qdq", force=True)
        back = ran(tmp_path / "b.onnx", x)
        assert back is not None, note
        assert np.array_equal(back, wanted), f"{note} written: {back}"
        found += 1
        kept += any(node.op == "foreign" for node in graph)
    assert found >= 24
    assert kept > 0 or op == "MaxPool"
