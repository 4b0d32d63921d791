"""A small network and data for it, made with onnx alone."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 11
SAMPLES = 24


def network(seed: int = SEED) -> onnx.ModelProto:
    """Two convolutions with relu and batch norm, a pool, a classifier and a softmax."""
    random = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        data = random.normal(0, 0.4, shape).astype(np.float32)
        return numpy_helper.from_array(data, name)

    def spread(name: str) -> TensorProto:
        return numpy_helper.from_array(random.uniform(0.5, 2, 8).astype(np.float32), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["images", "w1", "b1"], ["conv1"], "/conv1/Conv", pads=[1, 1, 1, 1]),
        node("Relu", ["conv1"], ["relu1"], "/conv1/Relu"),
        node("Conv", ["relu1", "w2"], ["conv2"], "/conv2/Conv"),
        node("BatchNormalization", ["conv2", "g", "b", "m", "v"], ["norm2"], "/conv2/Norm"),
        node("Relu", ["norm2"], ["relu2"], "/conv2/Relu"),
        node("GlobalAveragePool", ["relu2"], ["mean"], "/pool/Mean"),
        node("Flatten", ["mean"], ["flat"], "/pool/Flatten"),
        node("Gemm", ["flat", "w3", "b3"], ["logits"], "/fc/Gemm", transB=1),
        node("Softmax", ["logits"], ["classes"], "/softmax"),
    ]
    weights = [
        weight("w1", 6, 3, 3, 3),
        weight("b1", 6),
        weight("w2", 8, 6, 3, 3),
        *(spread(name) for name in "gbmv"),
        weight("w3", 5, 8),
        weight("b3", 5),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["N", 5])],
        weights,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="tests"
    )


def images(seed: int = SEED) -> np.ndarray:
    """Samples for it."""
    return np.random.default_rng(seed).random((SAMPLES, 3, 8, 8), np.float32)


def write(folder: Path) -> None:
    """All as files: model.onnx, samples.npy, and labels.npy for them."""
    onnx.save(network(), str(folder / "model.onnx"))
    np.save(folder / "samples.npy", images())
    np.save(folder / "labels.npy", np.random.default_rng(SEED).integers(0, 5, SAMPLES))
