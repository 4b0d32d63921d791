"""Plan, target and the questions of the guide agree about which ops are integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir import pipeline
from qir.inspect import islands, longest_chain, quantized_nodes
from qir.ir.graph import Graph
from tests.cli.command import qir as command
from tests.passes.float_networks import Grown


def shortcut(path: Path, size: int | str = 8) -> Path:
    """Writes a block whose shortcut is a slice and zero channels, as in ResNet-56 on CIFAR."""
    rng = np.random.default_rng(5)

    def held(name: str, data: np.ndarray) -> TensorProto:
        return numpy_helper.from_array(data, name)

    def weight(name: str, *shape: int) -> TensorProto:
        return held(name, rng.normal(0, 0.3, shape).astype(np.float32))

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Slice", ["r0", "starts", "ends", "axes", "steps"], ["s"]),
        node("Pad", ["s", "pads"], ["p"]),
        node("Add", ["c1", "p"], ["a"]),
        node("Relu", ["a"], ["r1"]),
        node("GlobalAveragePool", ["r1"], ["m"]),
        node("Shape", ["m"], ["n"]),
        node("Gather", ["n", "first"], ["batch"]),
        node("Concat", ["batch", "rest"], ["sizes"], axis=0),
        node("Reshape", ["m", "sizes"], ["flat"]),
        node("Gemm", ["flat", "w2", "b2"], ["y"], transB=1),
    ]
    numbers = {
        "starts": [0, 0],
        "ends": [99, 99],
        "axes": [2, 3],
        "steps": [2, 2],
        "pads": [0, 2, 0, 0, 0, 2, 0, 0],
        "first": [0],
        "rest": [-1],
    }
    weights = [
        weight("w0", 4, 3, 3, 3),
        weight("w1", 8, 4, 3, 3),
        weight("w2", 5, 8),
        weight("b2", 5),
    ]
    graph = helper.make_graph(
        nodes,
        "shortcut",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [*weights, *(held(k, np.array(v, np.int64)) for k, v in numbers.items())],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def agree(graph: Graph, x: np.ndarray) -> None:
    """Holds plan, target and the graph's own ops to one answer."""
    plan = pipeline.plan(graph)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [{graph.inputs[0].name: x}]))
    planned = {d.node: d.becomes == "integer" for d in plan.decisions if d.becomes != "as it is"}
    taken = {v.node: v.taken == "integer" for v in pipeline.op_verdicts(made)}
    found = {node.name: done for node, done in quantized_nodes(made).items()}
    assert planned == taken == found
    integer = {name for name, done in found.items() if done}
    assert {node.name for island in islands(made) for node in island} == integer
    assert {node.name for node in longest_chain(made)} <= integer


def test_a_pad_between_quantized_values_is_float_for_all(tmp_path: Path) -> None:
    graph = qir.load(shortcut(tmp_path / "m.onnx"))
    x = np.random.default_rng(1).random((4, 3, 8, 8), np.float32)
    agree(graph, x)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, x))
    assert [node.op for node, done in quantized_nodes(made).items() if not done] == ["pad"]
    assert "pad" not in [node.op for node in longest_chain(made)]


@pytest.mark.parametrize("seed", range(12))
def test_plan_target_and_graph_agree_on_random_networks(seed: int) -> None:
    graph = Grown(seed).graph
    agree(graph, np.random.default_rng(seed).normal(size=(2, 4, 6, 6)).astype(np.float32))


def test_work_of_open_size_is_said_to_be_unknown(tmp_path: Path) -> None:
    path = shortcut(tmp_path / "m.onnx", size="S")
    found = {d.op: d.counted for d in pipeline.plan(qir.load(path)).decisions}
    assert not found["conv2d"]
    assert found["gemm"]
    assert "2 ops not counted: foreign, or of open size" in command("plan", path).out
    fixed = shortcut(tmp_path / "fixed.onnx")
    assert all(d.counted for d in pipeline.plan(qir.load(fixed)).decisions)
    assert "not counted" not in command("plan", fixed).out
