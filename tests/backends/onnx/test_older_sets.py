"""Operators of older sets that are kept mean the same in every newer set, or are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import QirError, Refused
from qir.frontends.onnx import foreign_run, frontend

Arrays = Mapping[str, NDArray[Any]]
Node = onnx.NodeProto
F = np.float32
make = helper.make_node
SETS = (13, 16, 18, 19, 21, 26)


def model(
    path: Path, opset: int, nodes: list[Node], feed: Arrays, held: Arrays, names: list[str]
) -> Path:
    """A model of that operator set, with inputs as they are fed."""
    ins = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
    ]
    outs = [onnx.ValueInfoProto(name=n) for n in names]
    stored = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    onnx.save(onnx.shape_inference.infer_shapes(made), path)
    return path


def judged(path: Path, feed: Arrays) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, dict(feed))
    return found


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operator is kept as if unknown."""
    for key in [k for k in frontend._HANDLERS if not k[0]]:
        monkeypatch.delitem(frontend._HANDLERS, key)


def random_floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(shape).astype(F)


X = random_floats(1, 2, 8, 7)
SCALES = [
    (0.25, 0.5),
    (0.4, 0.3),
    (2, 3),
    (1.5, 2.7),
    (0.6, 1.7),
    (2.5, 0.9),
    (1, 0.33),
    (1.1, 0.6),
]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("two", SCALES)
def test_the_first_resize_takes_the_same_places(
    tmp_path: Path, two: tuple[float, float], mode: str, *, computed: bool
) -> None:
    feed: dict[str, NDArray[Any]] = {"x": X}
    scales = {"s": np.array([1, 1, *two], F)}
    (feed if computed else {}).update(scales)
    node = make("Resize", ["x", "s"], ["y"], mode=mode)
    path = model(tmp_path / "m.onnx", 10, [node], feed, {} if computed else scales, ["y"])
    want = judged(path, feed)[0]
    graph = pipeline.load(path)
    for opset in SETS:
        pipeline.save(graph, tmp_path / f"{opset}.onnx", target="onnxruntime", opset=opset)
        assert np.array_equal(judged(tmp_path / f"{opset}.onnx", feed)[0], want), opset


CASES: dict[str, tuple[int, Node, Arrays, Arrays]] = {
    "Upsample 7": (
        7,
        make("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 1.3, 1.5]),
        {"x": X},
        {},
    ),
    "Upsample 9": (
        9,
        make("Upsample", ["x", "s"], ["y"], mode="linear"),
        {"x": X, "s": np.array([1, 1, 1.5, 2.7], F)},
        {},
    ),
    "Softmax 9": (9, make("Softmax", ["x"], ["y"]), {"x": X}, {}),
    "LogSoftmax 11": (11, make("LogSoftmax", ["x"], ["y"], axis=-2), {"x": X}, {}),
    "Hardmax 11": (11, make("Hardmax", ["x"], ["y"], axis=1), {"x": X}, {}),
    "Dropout 10": (10, make("Dropout", ["x"], ["y", "z"]), {"x": X}, {}),
    "Dropout 7": (7, make("Dropout", ["x"], ["y", "z"], ratio=0.3), {"x": X}, {}),
    "TopK 7": (7, make("TopK", ["x"], ["y", "z"], k=2), {"x": X}, {}),
    "TopK 10": (10, make("TopK", ["x", "k"], ["y", "z"]), {"x": X}, {"k": np.array([2])}),
    "Clip 7": (7, make("Clip", ["x"], ["y"], min=-0.5), {"x": X}, {}),
    "Slice 7": (7, make("Slice", ["x"], ["y"], starts=[1], ends=[-1], axes=[2]), {"x": X}, {}),
    "Pad 7": (7, make("Pad", ["x"], ["y"], pads=[0, 0, 1, 2, 0, 0, 0, -1]), {"x": X}, {}),
    "ReduceMean 7": (7, make("ReduceMean", ["x"], ["y"], axes=[1, 2]), {"x": X}, {}),
    "ReduceSum 7": (7, make("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0), {"x": X}, {}),
    "Split 7": (7, make("Split", ["x"], ["y", "z"], axis=2, split=[3, 5]), {"x": X}, {}),
    "Squeeze 7": (7, make("Squeeze", ["x"], ["y"], axes=[0]), {"x": X}, {}),
    "Unsqueeze 7": (7, make("Unsqueeze", ["x"], ["y"], axes=[0, 3]), {"x": X}, {}),
    "Cast 7": (7, make("Cast", ["x"], ["y"], to=TensorProto.INT32), {"x": X}, {}),
    "BatchNormalization 7": (
        7,
        make("BatchNormalization", ["x", "a", "b", "a", "v"], ["y"]),
        {"x": X},
        {"a": random_floats(2), "b": random_floats(2), "v": abs(random_floats(2))},
    ),
    "AveragePool 7": (
        7,
        make("AveragePool", ["x"], ["y"], kernel_shape=[2, 3], auto_pad="SAME_LOWER"),
        {"x": X},
        {},
    ),
    "MaxPool 8": (
        8,
        make("MaxPool", ["x"], ["y", "z"], kernel_shape=[2, 2], storage_order=1),
        {"x": X},
        {},
    ),
    "LpPool 7": (7, make("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=1), {"x": X}, {}),
    "DepthToSpace 7": (
        7,
        make("DepthToSpace", ["x"], ["y"], blocksize=2),
        {"x": random_floats(1, 8, 2, 3)},
        {},
    ),
    "ArgMax 11": (11, make("ArgMax", ["x"], ["y"], axis=-1), {"x": X}, {}),
    "Scatter 9": (
        9,
        make("Scatter", ["x", "i", "u"], ["y"], axis=3),
        {"x": X},
        {"i": np.array([[[[1, 3]]]]), "u": random_floats(1, 1, 1, 2)},
    ),
    "GroupNormalization 18": (
        18,
        make("GroupNormalization", ["x", "a", "b"], ["y"], num_groups=2),
        {"x": random_floats(2, 6, 3, 3)},
        {"a": random_floats(2), "b": random_floats(2) + 1},
    ),
    "DFT 17": (17, make("DFT", ["x"], ["y"], axis=2), {"x": random_floats(1, 3, 8, 1)}, {}),
    "GridSample 16": (
        16,
        make("GridSample", ["x", "g"], ["y"], mode="bicubic", align_corners=1),
        {"x": X},
        {"g": random_floats(1, 3, 3, 2) / 2},
    ),
    "RoiAlign 10": (
        10,
        make("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2),
        {"x": X},
        {"r": np.array([[0, 0, 6, 6], [1, 2, 5, 7]], F), "b": np.array([0, 0])},
    ),
    "Mod 10": (10, make("Mod", ["x", "d"], ["y"], fmod=1), {"x": X}, {"d": np.array(0.7, F)}),
    "LSTM 7": (
        7,
        make("LSTM", ["x", "w", "r"], ["y", "z"], hidden_size=2),
        {"x": random_floats(4, 2, 3)},
        {"w": random_floats(1, 8, 3), "r": random_floats(1, 8, 2)},
    ),
}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", CASES)
def test_it_is_kept_and_means_the_same_in_newer_sets(tmp_path: Path, case: str) -> None:
    opset, node, feed, held = CASES[case]
    path = model(tmp_path / "m.onnx", opset, [node], feed, held, list(node.output))
    want = judged(path, feed)
    graph = pipeline.load(path)
    assert {n.op for n in graph} - {"input", "constant", "output"} == {"foreign"}
    for at in (s for s in SETS if s >= opset):
        if case == "RoiAlign 10" and at > 21:
            continue  # onnxruntime has no kernel there
        pipeline.save(graph, tmp_path / f"{at}.onnx", target="onnxruntime", opset=at)
        for found, one in zip(judged(tmp_path / f"{at}.onnx", feed), want, strict=True):
            assert found.dtype == one.dtype
            np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-6, err_msg=str(at))


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("name", ["Hardmax", "Softmax"])
def test_within_an_if_it_means_the_same_or_is_refused(tmp_path: Path, name: str) -> None:
    info = [helper.make_tensor_value_info("t", TensorProto.FLOAT, X.shape)]
    bodies = {
        f"{w}_branch": helper.make_graph([make(op, ["x"], ["t"])], w, [], info)
        for w, op in (("then", name), ("else", "Identity"))
    }
    feed = {"x": X, "c": np.array(True)}
    path = model(tmp_path / "m.onnx", 11, [make("If", ["c"], ["y"], **bodies)], feed, {}, ["y"])
    want, graph = judged(path, feed)[0], pipeline.load(path)
    if name == "Hardmax":
        with pytest.raises(Refused, match="holds Hardmax, which means another thing in opset 17"):
            pipeline.save(graph, tmp_path / "17.onnx", target="onnxruntime", opset=17)
        return
    pipeline.save(graph, tmp_path / "17.onnx", target="onnxruntime", opset=17)
    np.testing.assert_allclose(judged(tmp_path / "17.onnx", feed)[0], want, rtol=1e-6)


PLACES = make("MaxPool", ["x"], ["y", "z"], kernel_shape=[2, 3], auto_pad="SAME_LOWER")
RUN = {
    **{name: case for name, case in CASES.items() if case[0] < 16},
    "MaxPool 22": (22, PLACES, {"x": random_floats(2, 3, 4, 5)}, {}),
    "Resize 13": (
        13,
        make("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="align_corners"),
        {"x": X, "s": np.array([1, 1, 0.6, 1.7], F)},
        {},
    ),
}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", RUN)
def test_it_is_run_as_its_own_operator_set_has_it(tmp_path: Path, case: str) -> None:
    opset, node, feed, held = RUN[case]
    path = model(tmp_path / "m.onnx", opset, [node], feed, held, list(node.output))
    found = pipeline.run(pipeline.load(path), feed)
    for name, one in zip(node.output, judged(path, feed), strict=True):
        assert found[name].dtype == one.dtype
        np.testing.assert_array_equal(found[name], one)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("case", ["Softmax 9", "Hardmax 11", "RoiAlign 10", "Upsample 9", "LSTM 7"])
def test_without_onnxruntime_it_is_refused(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opset, node, feed, held = CASES[case]
    path = model(tmp_path / "m.onnx", opset, [node], feed, held, list(node.output))
    graph = pipeline.load(path)
    monkeypatch.setattr(foreign_run, "_run_in_runtime", lambda model, feed: None)
    with pytest.raises(QirError, match=f"{node.op_type} of opset {opset} needs onnxruntime"):
        pipeline.run(graph, feed)
