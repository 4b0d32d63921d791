"""Axes of which there is nothing, where onnxruntime takes them: the same shapes, and no fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.reference.index import unique
from tests.installed import OPTIMIZED

Attrs = dict[str, int | float | str | list[int]]
RNG = np.random.default_rng(5)
HELD: dict[str, NDArray[np.generic]] = {
    "w": RNG.standard_normal((2, 3, 3, 2)).astype(np.float32),
    "c": RNG.standard_normal((2, 2, 3, 3)).astype(np.float32),
    "b": np.ones(2, np.float32),
    "m": RNG.standard_normal((4, 5)).astype(np.float32),
    "s": np.array([1, 1, 2, 1.3], np.float32),
    "g": np.ones(4, np.float32),
    "p": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "ones": np.array([1]),
    "tiles": np.array([1, 2, 1, 3]),
}
CASES: tuple[tuple[str, tuple[str, ...], Attrs], ...] = (
    ("Conv", ("x", "c"), {}),
    ("ConvTranspose", ("x", "c"), {"strides": [2, 2]}),
    ("MaxPool", ("x",), {"kernel_shape": [2, 2]}),
    ("AveragePool", ("x",), {"kernel_shape": [2, 2]}),
    ("LpPool", ("x",), {"kernel_shape": [2, 2]}),
    ("GlobalMaxPool", ("x",), {}),
    ("GlobalAveragePool", ("x",), {}),
    ("InstanceNormalization", ("x", "b", "b"), {}),
    ("BatchNormalization", ("x", "b", "b", "b", "b"), {}),
    ("LayerNormalization", ("x", "g"), {}),
    ("LRN", ("x",), {"size": 3}),
    ("MatMul", ("x", "m"), {}),
    ("Resize", ("x", "", "s"), {}),
    ("Softmax", ("x",), {}),
    ("Hardmax", ("x",), {}),
    ("CumSum", ("x", "a"), {}),
    ("Pad", ("x", "p"), {}),
    ("Transpose", ("x",), {"perm": [3, 1, 0, 2]}),
    ("Flatten", ("x",), {"axis": 2}),
    ("DepthToSpace", ("x",), {"blocksize": 1}),
    ("Unique", ("x",), {"axis": 0}),
    ("Unique", ("x",), {"axis": 3}),
    ("Unique", ("x",), {}),
    ("Einsum", ("x",), {"equation": "abcd->dab"}),
    ("Concat", ("x", "x"), {"axis": 0}),
    ("ArgMax", ("x",), {"axis": 2}),
    ("ReduceSum", ("x", "ones"), {}),
    ("ReduceMax", ("x",), {"axes": [1, 2]}),
    ("ReduceMin", ("x",), {"axes": [0, 3], "keepdims": 0}),
    ("Tile", ("x", "tiles"), {}),
    ("Gather", ("x", "ones"), {"axis": 2}),
    ("Slice", ("x", "ones", "tiles"), {}),
    ("Relu", ("x",), {}),
    ("DynamicQuantizeLinear", ("x",), {}),
    ("LpNormalization", ("x",), {}),
)


@pytest.mark.parametrize(("op", "names", "attrs"), CASES)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_of_nothing_the_same_is_made(
    tmp_path: Path, op: str, names: tuple[str, ...], attrs: Attrs, axis: int
) -> None:
    if op in ("LRN", "DynamicQuantizeLinear") and axis:
        pytest.skip("tried along the batch")
    if op == "Unique" and attrs.get("axis", axis) != axis:
        pytest.skip("it ends onnxruntime's process")
    shape = tuple(0 if a == axis else d for a, d in enumerate((2, 2, 4, 4)))
    node = helper.make_node(op, names, ["y"], "it", None, None, None, **attrs)
    if op == "DynamicQuantizeLinear":
        node.output.extend(["s_made", "z_made"])
    held = {**HELD, "a": np.array(1)}
    stored = [numpy_helper.from_array(held[n], n) for n in {*names} if n in held]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], stored)
    path = tmp_path / "m.onnx"
    of = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    feed = {"x": np.zeros(shape, np.float32)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        wanted = onnxruntime.InferenceSession(str(path), options).run(None, feed)[0]
    except Exception:
        pytest.skip("onnxruntime takes no such axis")
    (got,) = pipeline.run(pipeline.load(path), feed).values()
    assert got.dtype == wanted.dtype
    assert np.array_equal(got, wanted, equal_nan=True), f"{shape}: {got}, not {wanted}"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_is_there_once_of_nothing(shape: tuple[int, ...], axis: int | None) -> None:
    x = np.zeros(shape, np.float32)
    kept, first, group, times = unique(x, axis=axis)
    wanted = np.unique(x, axis=axis)
    assert kept.shape == wanted.shape
    assert len(first) == len(times) == (x.size if axis is None else wanted.shape[axis])
    assert len(group) == (x.size if axis is None else shape[axis])


CODES: dict[str, NDArray[np.generic]] = {
    "s": np.array(0.1, np.float32),
    "z": np.array(7, np.uint8),
    "v": np.array([0.02, 0.03, 0.04, 0.05], np.float32),
    "o": np.zeros(4, np.int8),
    "r": np.array(0.3, np.float32),
}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("taps", [2, 3])
def test_convolutions_of_integers_over_nothing(
    tmp_path: Path, rank: int, groups: int, pad: int, taps: int
) -> None:
    rng = np.random.default_rng(rank)
    w = rng.integers(-128, 128, (4, 4 // groups, *[taps] * rank)).astype(np.int8)
    names = ("x", "s", "z", "w", "v", "o", "r", "z")
    attrs: Attrs = {"group": groups, "pads": [pad] * 2 * rank}
    node = helper.make_node("QLinearConv", names, ["y"], "it", None, None, None, **attrs)
    stored = [numpy_helper.from_array(a, n) for n, a in {**CODES, "w": w}.items()]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [None, 4, *[None] * rank])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], stored)
    path = tmp_path / "m.onnx"
    of = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    read = pipeline.load(path)
    judge = onnxruntime.InferenceSession(path.read_bytes())
    for axis in (0, *range(2, rank + 2)) if pad else (0,):
        shape = [2, 4, *[5] * rank]
        shape[axis] = 0
        feed = {"x": np.zeros(shape, np.uint8)}
        (wanted,) = judge.run(None, feed)
        (got,) = pipeline.run(read, feed).values()
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("op", ["LpPool", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize("shape", [(0, 1, 6, 0), (0, 2, 4, 2), (1, 2, 6, 1), (2, 1, 7, 2)])
def test_a_window_larger_than_what_it_slides_over(
    tmp_path: Path, op: str, opset: int, shape: tuple[int, ...]
) -> None:
    attrs: Attrs = {"kernel_shape": [3, 3], "strides": [3, 2], "auto_pad": "VALID"}
    node = helper.make_node(op, ["x"], ["y"], "it", None, None, None, **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    path, back = tmp_path / "m.onnx", tmp_path / "back.onnx"
    of = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    feed = {"x": RNG.standard_normal(shape).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)[0]
    read = pipeline.load(path)
    (got,) = pipeline.run(read, feed).values()
    assert np.array_equal(got, wanted)
    pipeline.save(read, back, target="onnxruntime")
    assert np.array_equal(onnxruntime.InferenceSession(back.read_bytes()).run(None, feed)[0], got)


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("form", [None, "qdq", "qoperator", "integer"])
def test_convolutions_of_integers_that_make_nothing(
    tmp_path: Path, op: str, form: str | None
) -> None:
    """Weights of no channels."""
    held = {**CODES, "w": np.zeros((0, 4, 2, 2), np.int8), "o": np.array(0, np.int8)}
    held["v"] = np.array(0.02, np.float32)
    own = ("x", "w", "z", "o") if op == "ConvInteger" else ("x", "s", "z", "w", "v", "o", "r", "z")
    node = helper.make_node(op, own, ["y"], "it")
    stored = [numpy_helper.from_array(a, n) for n, a in held.items() if n in own]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [None, 4, None, None])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], stored)
    path, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    of = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    read, feed = pipeline.load(path), {"x": np.zeros((2, 4, 5, 5), np.uint8)}
    (wanted,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)
    (got,) = pipeline.run(read, feed).values()
    pipeline.save(read, made, format=form)
    (again,) = onnxruntime.InferenceSession(made.read_bytes()).run(None, feed)
    assert got.shape == again.shape == wanted.shape == (2, 0, 4, 4)
    assert got.dtype == again.dtype == wanted.dtype


GEMM = 3.0 if OPTIMIZED in ("ort-1.28", "ort-1.30", "ort-1.31") else 6.0


@pytest.mark.parametrize(
    ("op", "shape", "mine", "theirs"),
    [("ReduceMean", (2, 0), np.nan, 0.0), ("Gemm", (2, 0), 6.0, GEMM)],
)
def test_what_the_guide_says_of_sums_without_terms(
    tmp_path: Path, op: str, shape: tuple[int, ...], mine: float, theirs: float
) -> None:
    attrs: Attrs = {"axes": [1]} if op == "ReduceMean" else {"beta": 2.0}
    held = {"w": np.zeros((0, 3), np.float32), "c": np.full(3, 3, np.float32)}
    names = ("x",) if op == "ReduceMean" else ("x", "w", "c")
    node = helper.make_node(op, names, ["y"], "it", None, None, None, **attrs)
    stored = [numpy_helper.from_array(a, n) for n, a in held.items() if n in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")], stored)
    path = tmp_path / "m.onnx"
    of = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    feed = {"x": np.zeros(shape, np.float32)}
    (wanted,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)
    (got,) = pipeline.run(pipeline.load(path), feed).values()
    assert np.array_equal(got, np.full_like(wanted, mine), equal_nan=True)
    assert np.array_equal(wanted, np.full_like(wanted, theirs))
