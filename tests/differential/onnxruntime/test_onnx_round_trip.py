"""ONNX files read and written again: the same model, and the same bytes in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ledger import Ledger
from tests.frontends.onnx.models import conv_net, model, quantized, save

FLOAT = TensorProto.FLOAT


def outputs(
    proto: onnx.ModelProto, inputs: dict[str, NDArray[Any]], *, optimize: bool
) -> list[NDArray[Any]]:
    """What onnxruntime computes, on one thread."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[NDArray[Any]] = session.run(None, inputs)
    return found


def again(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model after reading and writing; it passes ONNX's checker and reads back equal."""
    ledger = Ledger()
    graph = OnnxFrontend().load(save(proto, folder), ledger)
    written: onnx.ModelProto = to_model(graph, ledger)
    onnx.checker.check_model(written)
    assert OnnxFrontend().load(save(written, folder, "again.onnx"), Ledger()) == graph
    return written


def same_bytes(
    a: onnx.ModelProto, b: onnx.ModelProto, inputs: dict[str, NDArray[Any]], what: str
) -> None:
    for optimize in (True, False):
        one, other = (outputs(m, inputs, optimize=optimize) for m in (a, b))
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes(), f"{what}, optimize {optimize}, output {i}"


def skeleton(proto: onnx.ModelProto) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(n.op_type, n.name, tuple(n.input), tuple(n.output)) for n in proto.graph.node]


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_float_models_keep_names_ops_and_bytes(tmp_path: Path, opset: int) -> None:
    for seed in range(3):
        proto = conv_net(seed, opset)
        written = again(proto, tmp_path)
        assert skeleton(written) == skeleton(proto)
        assert {t.name for t in written.graph.initializer} == {
            t.name for t in proto.graph.initializer
        }
        x = np.random.default_rng(seed).normal(size=(5, 3, 8, 8)).astype(np.float32)
        same_bytes(proto, written, {"x": x}, f"seed {seed}")


@pytest.mark.parametrize("qdq", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activation", ["u8", "i8"])
def test_models_that_onnxruntime_quantized_keep_names_ops_and_bytes(
    tmp_path: Path, qdq: bool, per_channel: bool, activation: str
) -> None:
    for seed in range(3):
        proto = quantized(
            conv_net(seed),
            (2, 3, 8, 8),
            seed,
            qdq=qdq,
            per_channel=per_channel,
            activation=activation,
        )
        written = again(proto, tmp_path)
        assert skeleton(written) == skeleton(proto)
        assert {t.name for t in written.graph.initializer} == {
            t.name for t in proto.graph.initializer
        }
        x = np.random.default_rng(seed).normal(size=(5, 3, 8, 8)).astype(np.float32)
        same_bytes(proto, written, {"x": x}, f"seed {seed}")


@pytest.mark.parametrize("per_channel", [True, False])
def test_one_form_turns_into_the_other_with_the_same_bytes(
    tmp_path: Path, per_channel: bool
) -> None:
    """onnxruntime's optimizer makes of QDQ what QOperator says; so the bytes agree."""
    target = OnnxRuntimeTarget()
    for seed in range(3):
        for qdq in (True, False):
            proto = quantized(conv_net(seed), (2, 3, 8, 8), seed, qdq=qdq, per_channel=per_channel)
            graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
            path = tmp_path / "other.onnx"
            target.emit(graph, path, Ledger(), format="qoperator" if qdq else "qdq")
            other = onnx.load(path)
            onnx.checker.check_model(other)
            ops = {n.op_type for n in other.graph.node}
            assert ("QLinearConv" in ops) == qdq
            x = np.random.default_rng(seed).normal(size=(5, 3, 8, 8)).astype(np.float32)
            one, two = (outputs(m, {"x": x}, optimize=True) for m in (proto, other))
            assert one[0].tobytes() == two[0].tobytes(), f"seed {seed}, qdq {qdq}"


# -- what QIR does not know ---------------------------------------------------------------------


def foreign_cases() -> dict[str, tuple[list[onnx.NodeProto], dict[str, NDArray[Any]], int]]:
    node = helper.make_node
    scales = np.array([1, 1, 2, 2], np.float32)
    return {
        "absent operand in the middle": (
            [node("Resize", ["x", "", "r"], ["y"], "up", mode="nearest")],
            {"r": scales},
            13,
        ),
        "two results": (
            [
                node("Split", ["x", "parts"], ["a", "b"], "cut", axis=1),
                node("Concat", ["b", "a"], ["y"], "join", axis=1),
            ],
            {"parts": np.array([1, 2])},
            13,
        ),
        "shapes computed": (
            [
                node("Shape", ["x"], ["s"], "shape"),
                node("Gather", ["s", "zero"], ["n"], "batch"),
                node("Unsqueeze", ["n", "front"], ["m"], "row"),
                node("Concat", ["m", "minus"], ["t"], "target", axis=0),
                node("Reshape", ["x", "t"], ["y"], "flat"),
            ],
            {"zero": np.array(0), "front": np.array([0]), "minus": np.array([-1])},
            17,
        ),
        "attributes of all kinds": (
            [
                node("LpNormalization", ["x"], ["a"], "norm", axis=-1, p=1),
                node("Elu", ["a"], ["b"], "elu", alpha=0.25),
                node("DepthToSpace", ["b"], ["y"], "d2s", blocksize=2, mode="CRD"),
            ],
            {},
            17,
        ),
        "an older form": (
            [
                node("Squeeze", ["x"], ["a"], "squeeze", axes=[0]),
                node("Unsqueeze", ["a"], ["y"], "unsqueeze", axes=[0]),
            ],
            {},
            11,
        ),
    }


@pytest.mark.parametrize("case", list(foreign_cases()))
def test_ops_that_are_not_known_come_through(tmp_path: Path, case: str) -> None:
    nodes, constants, opset = foreign_cases()[case]
    channels = 4 if case == "attributes of all kinds" else 3
    shape = [1, channels, 4, 4]
    proto = model(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, None)}, constants, opset)
    written = again(proto, tmp_path) if opset >= 13 else converted(proto, tmp_path)
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    if opset >= 13:
        assert skeleton(written) == skeleton(proto)
        attrs = [{a.name: a for a in n.attribute} for n in proto.graph.node]
        assert [{a.name: a for a in n.attribute} for n in written.graph.node] == attrs
    same_bytes(proto, written, {"x": x}, case)


def converted(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    graph = OnnxFrontend().load(save(proto, folder), Ledger())
    written: onnx.ModelProto = to_model(graph, Ledger())
    onnx.checker.check_model(written)
    assert written.opset_import[0].version >= 13
    return written
