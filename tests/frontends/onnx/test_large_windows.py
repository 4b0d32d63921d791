"""Windows of pools that are larger than what they slide over: onnxruntime's results, or a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import OpError

KINDS = {"QLinearAveragePool": TensorProto.UINT8, "NhwcMaxPool": TensorProto.UINT8}
Dims = list[int | str | None]


def made(
    folder: Path, op: str, sizes: Dims, kernel: list[int], stride: list[int], pads: list[int]
) -> Path:
    node = helper.make_node(op, ["x"], ["y"], "it", kernel_shape=kernel, strides=stride, pads=pads)
    held: list[onnx.TensorProto] = []
    if op in KINDS:
        node.domain = "com.microsoft"
    if op == "QLinearAveragePool":
        node.input.extend(["s", "z", "t", "z"])
        numbers: dict[str, NDArray[np.generic]] = {
            "s": np.array(0.1, np.float32),
            "t": np.array(0.13, np.float32),
            "z": np.array(7, np.uint8),
        }
        held = [numpy_helper.from_array(a, n) for n, a in numbers.items()]
    kind = KINDS.get(op, TensorProto.FLOAT)
    x = helper.make_tensor_value_info("x", kind, sizes)
    y = helper.make_tensor_value_info("y", kind, [None] * len(sizes))
    graph = helper.make_graph([node], "g", [x], [y], held)
    of = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    return path


def drawn(op: str, seed: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Sizes, window, strides and pads along two axes; the first window is too large."""
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(1, 4)), int(rng.integers(2, 7))]
    stride = [int(rng.integers(1, 4)), int(rng.integers(1, 3))]
    kernel = [sizes[0] + int(rng.integers(1, stride[0] + 1)), 2]
    lead = [2, *sizes, 3] if op == "NhwcMaxPool" else [2, 3, *sizes]
    return lead, kernel, stride, [0, int(rng.integers(0, 2)), 0, 0]


@pytest.mark.parametrize("op", ["QLinearAveragePool", "NhwcMaxPool", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("seed", range(8))
def test_known_sizes_give_what_onnxruntime_gives(tmp_path: Path, op: str, seed: int) -> None:
    lead, kernel, stride, pads = drawn(op, seed)
    path = made(tmp_path, op, [*lead], kernel, stride, pads)
    kind = np.uint8 if op in KINDS else np.float32
    feed = {"x": np.random.default_rng(seed).integers(0, 256, lead).astype(kind)}
    (wanted,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)
    read = pipeline.load(path)
    (got,) = pipeline.run(read, feed).values()
    assert got.shape == wanted.shape
    assert np.array_equal(got, wanted)
    for form in (None, "qdq", "qoperator", "integer"):
        back = tmp_path / f"{form}.onnx"
        pipeline.save(read, back, format=form, force=True)
        (again,) = onnxruntime.InferenceSession(back.read_bytes()).run(None, feed)
        assert np.array_equal(again, wanted)


@pytest.mark.parametrize("op", ["QLinearAveragePool", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("seed", range(4))
def test_sizes_that_show_in_a_run_are_refused_there(tmp_path: Path, op: str, seed: int) -> None:
    """But for windows that are larger by whole steps: there is no result, in onnxruntime too."""
    lead, kernel, stride, pads = drawn(op, seed)
    path = made(tmp_path, op, [2, 3, "H", "W"], kernel, stride, pads)
    kind = np.uint8 if op in KINDS else np.float32
    feed = {"x": np.zeros(lead, kind)}
    read = pipeline.load(path)
    if (lead[2] - kernel[0]) % stride[0]:
        with pytest.raises(OpError, match=r"a window of \d is larger than the (height|axis 2)"):
            pipeline.run(read, feed)
        return
    (wanted,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)
    (got,) = pipeline.run(read, feed).values()
    assert got.shape == wanted.shape
