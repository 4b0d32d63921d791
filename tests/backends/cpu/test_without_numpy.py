"""Ops that once ran in NumPy: picked rows, repeated edges, conv1d, recurrent layers, bodies.

Expected values are NumPy's own, or onnxruntime's.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.numpy_helper import from_array

import qir
from qir.errors import OpError
from qir.ir.text import parse

Tensor = NDArray[np.generic]
Q = "!quant.uniform<u8:f32, 0.031:117>"


def run(text: str, **inputs: Tensor) -> dict[str, Tensor]:
    """The results of a graph all of whose steps are kernels."""
    made = qir.compile(parse(text, {}), threads=2)
    assert not made.fallbacks  # type: ignore[attr-defined]
    return {name: np.asarray(found) for name, found in made(**inputs).items()}


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_by_indices_of_a_run(kind: str, axis: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    indices = rng.integers(-3, 3, (2, 3)).astype(f"i{int(kind[1:]) // 8}")
    out = "x".join(map(str, np.take(x, indices, axis).shape))
    text = f"""graph main {{
  %x = input() : 3x4x5xf32
  %i = input() : 2x3x{kind}
  %y = gather(%x, %i) {{axis = {axis}}} : {out}xf32
  output(y=%y)
}}"""
    assert np.array_equal(run(text, x=x, i=indices)["y"], np.take(x, indices, axis))


def test_gather_of_integers_moves_them() -> None:
    text = f"""graph main {{
  %x = input() : 5x3xf32
  %q = quantize(%x) : 5x3x{Q}
  %i = input() : 4xi64
  %y = gather(%q, %i) : 4x3x{Q}
  output(q=%q, y=%y)
}}"""
    indices = np.array([4, 0, -2, 0])
    x = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    got = run(text, x=x, i=indices)
    assert np.array_equal(got["y"], got["q"][indices])


def test_an_index_that_the_axis_has_not_is_one_line() -> None:
    text = """graph main {
  %x = input() : 5x3xf32
  %i = input() : 1xi64
  %y = gather(%x, %i) : 1x3xf32
  output(y=%y)
}"""
    with pytest.raises(OpError, match="y: an index is outside of its axis"):
        run(text, x=np.zeros((5, 3), np.float32), i=np.array([5]))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "symmetric"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 3, 0), (2, 0, 0, 1, 0, 4), (0, -1, 2, 0, 2, -1)])
def test_padding_repeats_elements_as_numpy_does(mode: str, pads: tuple[int, ...]) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    cut = x[:, max(-pads[1], 0) :, : 5 - max(-pads[5], 0)]
    more = [(max(pads[i], 0), max(pads[i + 3], 0)) for i in range(3)]
    wanted = np.pad(cut, more, mode)  # type: ignore[call-overload]
    text = f"""graph main {{
  %x = input() : 3x4x5xf32
  %y = pad(%x) {{pads = {pads}, mode = "{mode}"}} : {"x".join(map(str, wanted.shape))}xf32
  output(y=%y)
}}"""
    assert np.array_equal(run(text, x=x)["y"], wanted)


def by_onnxruntime(model: onnx.ModelProto, feed: dict[str, Tensor]) -> list[Tensor]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def saved(nodes: list[onnx.NodeProto], weights: dict[str, Tensor], x: Tensor,
          outputs: list[str]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [from_array(np.asarray(data, order="C"), name) for name, data in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def close(model: onnx.ModelProto, x: Tensor, folder: object, bound: float) -> None:
    path = f"{folder}/model.onnx"
    onnx.save(model, path)
    made = qir.compile(qir.load(path), threads=1)
    assert not made.fallbacks  # type: ignore[attr-defined]
    got = made(x=x)
    wanted = by_onnxruntime(model, {"x": x})
    for (name, mine), theirs in zip(got.items(), wanted, strict=True):
        assert np.abs(np.asarray(mine) - theirs).max() <= bound, name


@pytest.mark.parametrize(
    ("groups", "stride", "pads", "dilation"),
    [(1, 1, (0, 0), 1), (1, 2, (1, 2), 1), (2, 3, (4, 0), 2), (6, 1, (1, 1), 1)],
)
def test_conv1d_is_a_convolution_of_one_line(
    tmp_path: object, groups: int, stride: int, pads: tuple[int, int], dilation: int
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 6, 29)).astype(np.float32)
    w = rng.normal(size=(12, 6 // groups, 3)).astype(np.float32)
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], kernel_shape=[3], group=groups, strides=[stride],
        pads=list(pads), dilations=[dilation],
    )  # fmt: skip
    bias = rng.normal(size=12).astype(np.float32)
    model = saved([node, helper.make_node("Relu", ["y"], ["r"])], {"w": w, "b": bias}, x, ["r"])
    close(model, x, tmp_path, 2e-5)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("variant", ["plain", "peepholes", "reset after"])
def test_recurrent_layers_are_those_of_onnxruntime(
    tmp_path: object, op: str, direction: str, variant: str
) -> None:
    if (op, variant) in (("LSTM", "reset after"), ("GRU", "peepholes")):
        pytest.skip("an LSTM has no reset gate, a GRU no peepholes")
    rng = np.random.default_rng(4)
    ways, rows, hidden, width = (2 if direction == "bidirectional" else 1), 4, 9, 5
    rows = (4 if op == "LSTM" else 3) * hidden
    x = rng.normal(size=(7, 3, width)).astype(np.float32)
    weights: dict[str, Tensor] = {
        "w": rng.normal(size=(ways, rows, width)).astype(np.float32),
        "r": rng.normal(0, 0.4, (ways, rows, hidden)).astype(np.float32),
        "b": rng.normal(size=(ways, 2 * rows)).astype(np.float32),
        "h0": rng.normal(size=(ways, 3, hidden)).astype(np.float32),
    }
    names, outputs = ["x", "w", "r", "b", "", "h0"], ["y", "h"]
    if op == "LSTM":
        weights["c0"] = rng.normal(size=(ways, 3, hidden)).astype(np.float32)
        names, outputs = [*names, "c0"], [*outputs, "c"]
    if variant == "peepholes":
        weights["p"] = rng.normal(size=(ways, 3 * hidden)).astype(np.float32)
        names.append("p")
    node = helper.make_node(op, names, outputs, hidden_size=hidden, direction=direction)
    if op == "GRU":
        node.attribute.append(
            helper.make_attribute("linear_before_reset", int(variant == "reset after"))
        )
    close(saved([node], weights, x, outputs), x, tmp_path, 2e-6)


def loops() -> tuple[onnx.ModelProto, NDArray[np.float32]]:
    """A loop whose rounds add a row, while the sum stays small, and a branch behind it."""
    f, b, i = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "step"], ["next"]),
            helper.make_node("ReduceMax", ["next"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "bound"], ["on"]),
        ],
        "body",
        [value("i", i, []), value("go", b, []), value("a", f, [2, 3])],
        [value("on", b, []), value("next", f, [2, 3])],
    )
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["last"], [f"{name}_y"])],
            name,
            [],
            [value(f"{name}_y", f, [2, 3])],
        )
        for name, op in (("then_branch", "Sigmoid"), ("else_branch", "Relu"))
    }
    nodes = [
        helper.make_node("Loop", ["count", "yes", "x"], ["last"], body=body),
        helper.make_node("ReduceMax", ["last"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["small"]),
        helper.make_node("If", ["small"], ["y"], **branches),
    ]
    x = np.random.default_rng(6).normal(size=(2, 3)).astype(np.float32)
    weights: dict[str, Tensor] = {
        "count": np.array(9, np.int64),
        "yes": np.array(True),
        "step": np.full((2, 3), 0.5, np.float32),
        "bound": np.array(3.0, np.float32),
        "limit": np.array(3.2, np.float32),
    }
    return saved(nodes, weights, x, ["y", "last"]), x


def test_bodies_of_loops_and_branches_run_as_programs(tmp_path: object) -> None:
    model, x = loops()
    onnx.save(model, f"{tmp_path}/loop.onnx")
    made = qir.compile(qir.load(f"{tmp_path}/loop.onnx"), threads=1)
    for scale in (1.0, 0.1, 4.0):
        feed = (x * scale).astype(np.float32)
        wanted = by_onnxruntime(model, {"x": feed})
        for mine, theirs in zip(made(x=feed).values(), wanted, strict=True):
            assert np.abs(np.asarray(mine) - theirs).max() <= 1e-6
