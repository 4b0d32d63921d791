"""A dimension of -1, as old exporters write it, is an open size, as it is for onnxruntime."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qir
from tests.cli.command import qir as command

SIZES = (3, 4, 6, 5)


def dims_of(proto: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for info in (*proto.input, *proto.value_info, *proto.output):
        yield from info.type.tensor_type.shape.dim
    for node in proto.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from dims_of(attribute.g)


def model(seed: int) -> onnx.ModelProto:
    """A layer, sums and a branch; random dimensions of its tensors are -1."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    w = helper.make_tensor("w", TensorProto.FLOAT, (4, 4, 3, 3), rng.normal(size=144))
    shape = list(SIZES)

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def branch(op: str) -> onnx.GraphProto:
        made = info("made")
        return helper.make_graph([helper.make_node(op, ["s"], ["made"])], op, [], [made])

    yes = helper.make_tensor("yes", TensorProto.BOOL, (), [True])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "x"], ["s"]),
        helper.make_node(
            "If", ["yes"], ["b"], then_branch=branch("Relu"), else_branch=branch("Neg")
        ),
        helper.make_node("Mul", ["b", "c"], ["y"]),
    ]
    values = [info("c"), info("s")]
    graph = helper.make_graph(nodes, "m", [info("x")], [info("y")], [w, yes], value_info=values)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    for dim in dims_of(proto.graph):
        if chance.random() < 0.5:
            dim.dim_value = -1
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = SIZES[1]
    return proto


@pytest.mark.parametrize("seed", range(10))
def test_models_with_sizes_of_minus_one_compute_what_onnxruntime_computes(
    seed: int, tmp_path: Path
) -> None:
    path, again = tmp_path / "m.onnx", tmp_path / "again.onnx"
    proto = model(seed)
    path.write_bytes(proto.SerializeToString())
    graph = qir.load(path)
    (given,) = graph.inputs
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    assert given.type.shape == tuple(None if size == -1 else size for size in sizes)
    graph.set_attrs(graph["y"].node)  # so that it is written anew
    qir.save(graph, again, target="onnxruntime")
    for rows in (SIZES[0], 7):
        if rows != SIZES[0] and seed:  # other tensors have a fixed size here
            continue
        x = np.random.default_rng(seed).normal(size=(rows, *SIZES[1:])).astype(np.float32)
        for file in (path, again):
            (wanted,) = onnxruntime.InferenceSession(str(file)).run(None, {"x": x})
            found = np.asarray(qir.run(graph, {"x": x})["y"], np.float32)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_model_with_a_batch_of_minus_one_is_quantized_by_the_command(tmp_path: Path) -> None:
    path, data, out = tmp_path / "m.onnx", tmp_path / "x.npy", tmp_path / "q.onnx"
    proto = model(3)
    for dim, size in zip(dims_of(proto.graph), SIZES, strict=False):
        dim.dim_value = size
    for info in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    path.write_bytes(proto.SerializeToString())
    x = np.random.default_rng(3).normal(size=(12, *SIZES[1:])).astype(np.float32)
    np.save(data, x)
    made = command("quantize", path, "--data", data, "-o", out)
    assert made.status == 0, made.err
    session = onnxruntime.InferenceSession(str(out))
    assert session.get_inputs()[0].shape[1:] == list(SIZES[1:])
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    (found,) = session.run(None, {"x": x})
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
