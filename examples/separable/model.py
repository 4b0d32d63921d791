"""Writes a small network of depthwise and pointwise convolutions, and images for it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 24
BLOCKS = 6
SIDE = 20
IMAGES = 32


def build(seed: int = 3) -> onnx.ModelProto:
    """Returns the float network: its weights are random, its activations are clipped at 6."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(data: NDArray[np.float64]) -> str:
        weights.append(numpy_helper.from_array(data.astype(np.float32), f"c{len(weights)}"))
        return str(weights[-1].name)

    def conv(name: str, x: str, depth: int, size: int, groups: int = 1) -> str:
        shape = (CHANNELS, depth, size, size)
        kernel = constant(rng.normal(0, 3 / np.sqrt(depth * size * size), shape))
        operands = [x, kernel, constant(rng.normal(0, 0.3, CHANNELS))]
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", operands, [f"{name}.sum"], pads=pads, group=groups))
        bounds = [constant(np.zeros(())), constant(np.full((), 6.0))]
        nodes.append(helper.make_node("Clip", [f"{name}.sum", *bounds], [name]))
        return name

    x = conv("stem", "images", 3, 3)
    for i in range(BLOCKS):
        depthwise = conv(f"depthwise{i}", x, 1, 3, groups=CHANNELS)
        pointwise = conv(f"pointwise{i}", depthwise, CHANNELS, 1)
        block_name = "features" if i == BLOCKS - 1 else f"block{i}"
        nodes.append(helper.make_node("Add", [x, pointwise], [block_name]))
        x = block_name
    images, features = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, SIDE, SIDE])
        for name, channels in (("images", 3), ("features", CHANNELS))
    )
    graph = helper.make_graph(nodes, "separable", [images], [features], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(seed: int = 3) -> NDArray[np.float32]:
    """Returns random images."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (IMAGES, 3, SIDE, SIDE)).astype(np.float32)


def write(model: str | Path, images: str | Path) -> None:
    """Writes the network and its images."""
    onnx.save(build(), str(model))
    np.save(images, samples())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python model.py OUT.onnx IMAGES.npy")
    write(*sys.argv[1:])
