"""A Cast to the type that its operand has is another name of it, also of quantized values."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir import pipeline

WIDTH = 6


def network(seed: int, *, casts: bool) -> onnx.ModelProto:
    """Layers between QuantizeLinear and DequantizeLinear, with casts in random places or none."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    held: list[TensorProto] = []

    def hold(name: str, data: object, kind: type[np.generic]) -> str:
        held.append(numpy_helper.from_array(np.asarray(data, kind), name))
        return name

    def through(name: str, kind: int) -> str:
        """The name itself, or what up to two casts make of it."""
        for i in range(pick.choice([0, 1, 1, 2])):
            if casts:
                nodes.append(helper.make_node("Cast", [name], [f"{name}_{i}"], to=kind))
                name = f"{name}_{i}"
        return name

    scale, zero = hold("s", 0.05, np.float32), hold("z", pick.choice([0, 100, 128]), np.uint8)
    weight_scale, weight_zero = hold("ws", 0.01, np.float32), hold("wz", 0, np.int8)
    at = "x"
    for i in range(pick.randint(1, 3)):
        weights = hold(f"w{i}", rng.integers(-127, 128, (WIDTH, WIDTH, 3, 3)), np.int8)
        at = through(at, TensorProto.FLOAT)
        nodes.append(helper.make_node("QuantizeLinear", [at, scale, zero], [f"q{i}"]))
        quantized = through(f"q{i}", TensorProto.UINT8)
        nodes.append(helper.make_node("DequantizeLinear", [quantized, scale, zero], [f"d{i}"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [weights, weight_scale, weight_zero], [f"v{i}"])
        )
        nodes.append(helper.make_node("Conv", [f"d{i}", f"v{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        at = f"c{i}"
    nodes.append(helper.make_node("QuantizeLinear", [through(at, 1), scale, zero], ["ql"]))
    last = through("ql", TensorProto.UINT8)
    nodes.append(helper.make_node("DequantizeLinear", [last, scale, zero], ["y"]))
    kind = [1, WIDTH, 5, 5]
    graph = helper.make_graph(
        nodes,
        "casts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, kind)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, kind)],
        held,
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


@pytest.mark.parametrize("seed", range(12))
def test_casts_that_do_nothing_are_read_as_nothing(seed: int, tmp_path: Path) -> None:
    paths = tmp_path / "casts.onnx", tmp_path / "plain.onnx", tmp_path / "written.onnx"
    onnx.save(network(seed, casts=True), paths[0])
    onnx.save(network(seed, casts=False), paths[1])
    graph, plain = qir.load(paths[0]), qir.load(paths[1])
    assert [n.op for n in graph] == [n.op for n in plain], f"seed {seed}"
    assert {v.taken for v in pipeline.op_verdicts(graph)} == {"integer"}, f"seed {seed}"
    assert {v.taken for v in pipeline.op_verdicts(graph, target="cpu")} == {"integer"}, (
        f"seed {seed}"
    )
    qir.save(graph, paths[2])
    x = np.random.default_rng(seed).normal(0, 3, (1, WIDTH, 5, 5)).astype(np.float32)
    was, now = (
        onnxruntime.InferenceSession(p).run(None, {"x": x})[0] for p in (paths[1], paths[2])
    )
    assert np.array_equal(was, now), f"seed {seed}"


@pytest.mark.parametrize(("kind", "to"), [("uint8", 2), ("int8", 3), ("int32", 6), ("float32", 1)])
def test_a_cast_of_an_input_to_its_own_type_is_no_op(kind: str, to: int, tmp_path: Path) -> None:
    info = [helper.make_tensor_value_info(n, to, [3]) for n in "xy"]
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=to), helper.make_node("Neg", ["c"], ["y"])]
    if kind == "uint8":
        nodes[1] = helper.make_node("Max", ["c"], ["y"])
    graph = helper.make_graph(nodes, "one", info[:1], info[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    read = qir.load(tmp_path / "m.onnx")
    assert "cast" not in [node.op for node in read]
    x = np.array([0, 1, 100], kind)
    (wanted,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    assert np.array_equal(qir.run(read, {"x": x})["y"], wanted)
