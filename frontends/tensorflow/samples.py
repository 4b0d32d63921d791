"""Small frozen graphs that hold what the frontend reads, for those who check it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .messages import GraphDefMessage

_FLOAT, _INT = 1, 3


class _Builder:
    """A GraphDef, node by node."""

    def __init__(self) -> None:
        self.proto: Any = GraphDefMessage()
        self.random = np.random.default_rng(0)

    def node(self, op: str, name: str, *inputs: str) -> Any:
        """Adds a node and returns its message."""
        node_proto = self.proto.node.add(op=op, name=name, input=inputs)
        node_proto.attr["T"].type = _FLOAT
        return node_proto

    def input(self, name: str, *shape: int) -> None:
        """Adds an input."""
        node_proto = self.proto.node.add(op="Placeholder", name=name)
        node_proto.attr["dtype"].type = _FLOAT
        for size in shape:
            node_proto.attr["shape"].shape.dim.add(size=size)

    def constant(self, name: str, data: NDArray[np.generic]) -> None:
        """Adds a constant, of float32 or int32."""
        node_proto = self.proto.node.add(op="Const", name=name)
        tensor = node_proto.attr["value"].tensor
        tensor.dtype = node_proto.attr["dtype"].type = _FLOAT if data.dtype == np.float32 else _INT
        tensor.tensor_shape.SetInParent()
        for size in data.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = data.tobytes()

    def weights(self, name: str, *shape: int) -> None:
        """Adds random weights."""
        self.constant(name, self.random.normal(0, 0.3, shape).astype(np.float32))

    def integers(self, name: str, *data: int) -> None:
        """Adds a row of integers."""
        self.constant(name, np.asarray(data, np.int32))


def _convolutional() -> Any:
    b = _Builder()
    b.input("image", -1, 8, 8, 3)
    b.weights("kernel", 3, 3, 3, 8)
    conv = b.node("Conv2D", "conv", "image", "kernel")
    conv.attr["strides"].list.i.extend((1, 2, 2, 1))
    conv.attr["padding"].s = b"SAME"
    for name in ("scale", "offset", "mean"):
        b.weights(name, 8)
    b.constant("variance", np.linspace(0.5, 1.5, 8, dtype=np.float32))
    norm = b.node("FusedBatchNormV3", "norm", "conv", "scale", "offset", "mean", "variance")
    norm.attr["is_training"].b = False
    norm.attr["epsilon"].f = 0.001
    b.node("Relu6", "relu", "norm")
    pool = b.node("MaxPool", "pool", "relu")
    pool.attr["ksize"].list.i.extend((1, 2, 2, 1))
    pool.attr["strides"].list.i.extend((1, 2, 2, 1))
    pool.attr["padding"].s = b"VALID"
    b.integers("axes", 1, 2)
    b.node("Mean", "mean_of_image", "pool", "axes")
    b.weights("dense", 8, 4)
    b.weights("bias", 4)
    b.node("MatMul", "product", "mean_of_image", "dense")
    b.node("BiasAdd", "sum", "product", "bias")
    b.node("Softmax", "probabilities", "sum")
    return b.proto


def _elementwise() -> Any:
    b = _Builder()
    b.input("x", 4, 6)
    b.weights("w", 6, 6)
    b.node("MatMul", "product", "x", "w")
    b.node("Tanh", "tanh", "product")
    b.node("Sigmoid", "sigmoid", "product")
    b.node("Mul", "gated", "tanh", "sigmoid")
    b.node("AddV2", "y", "gated", "x")
    return b.proto


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and returns their paths."""
    paths = []
    for name, proto in (("convolutional", _convolutional()), ("elementwise", _elementwise())):
        paths.append(folder / f"{name}.pb")
        paths[-1].write_bytes(proto.SerializeToString())
    return paths
