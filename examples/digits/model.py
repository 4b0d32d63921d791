"""The demo's data and its float network, written as an ONNX model from the trained weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open
from sklearn.datasets import load_digits

WEIGHTS = Path(__file__).with_name("weights.safetensors")
OPSET = 21
IR_VERSION = 10
EPSILON = 1e-5

SPLIT_SEED = 1797
TEST_IMAGES = 500
CALIBRATION_IMAGES = 128

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


class Digits(NamedTuple):
    """Images are [n, 1, 8, 8] in 0..1; those for calibration are the first of the training ones."""

    train_x: Floats
    train_y: Labels
    calib_x: Floats
    test_x: Floats
    test_y: Labels


def digits() -> Digits:
    """Split scikit-learn's 1,797 handwritten digits, always in the same way."""
    bunch = load_digits()
    images = (bunch.images[:, None] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Digits(
        train_x=images[train],
        train_y=labels[train],
        calib_x=images[train[:CALIBRATION_IMAGES]],
        test_x=images[test],
        test_y=labels[test],
    )


class _Builder:
    """Appends named nodes to a graph; each method returns the name of its node's result."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.float32]] = {}

    def node(self, op: str, path: str, *inputs: str, **attributes: int | float | list[int]) -> str:
        name = f"/{path.replace('.', '/')}/{op}"
        output = f"{name}_output_0"
        node = helper.make_node(op, list(inputs), [output], name=name)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in sorted(attributes.items()))
        self.nodes.append(node)
        return output

    def weight(self, name: str) -> str:
        self.constants[name] = self.weights[name]
        return name

    def conv_norm(self, path: str, x: str, *, depthwise: bool = False) -> str:
        """A convolution that keeps the size of its image, and its batch normalization."""
        weight = self.weights[f"{path}.conv.weight"]
        kernel = list(weight.shape[2:])
        x = self.node(
            "Conv", f"{path}.conv", x, self.weight(f"{path}.conv.weight"),
            dilations=[1, 1], group=weight.shape[0] if depthwise else 1, kernel_shape=kernel,
            pads=[k // 2 for k in kernel] * 2, strides=[1, 1],
        )  # fmt: skip
        parameters = ("weight", "bias", "running_mean", "running_var")
        names = [self.weight(f"{path}.norm.{parameter}") for parameter in parameters]
        return self.node("BatchNormalization", f"{path}.norm", x, *names, epsilon=EPSILON)

    def relu(self, path: str, x: str) -> str:
        return self.node("Relu", f"{path}.act", x)

    def relu6(self, path: str, x: str) -> str:
        for name, bound in (("relu6.min", 0.0), ("relu6.max", 6.0)):
            self.constants[name] = np.array(bound, np.float32)
        return self.node("Clip", f"{path}.act", x, "relu6.min", "relu6.max")

    def block(self, path: str, x: str) -> str:
        """An inverted residual: widen, depthwise, narrow, and add what came in."""
        y = self.relu6(f"{path}.expand", self.conv_norm(f"{path}.expand", x))
        y = self.conv_norm(f"{path}.depthwise", y, depthwise=True)
        y = self.relu6(f"{path}.depthwise", y)
        y = self.conv_norm(f"{path}.project", y)
        return self.node("Add", path, x, y)


def build(weights: Path = WEIGHTS) -> onnx.ModelProto:
    """Build the float network, batch normalization unfolded, for any batch size."""
    with safe_open(weights, framework="numpy") as file:
        b = _Builder({name: file.get_tensor(name) for name in file.keys()})
    x = b.relu("stem", b.conv_norm("stem", "images"))
    x = b.block("blocks.0", x)
    x = b.node("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.relu("widen", b.conv_norm("widen", x))
    x = b.block("blocks.1", x)
    x = b.block("blocks.2", x)
    x = b.relu6("head", b.conv_norm("head", x))
    x = b.node("GlobalAveragePool", "mean", x)
    x = b.node("Flatten", "flatten", x, axis=1)
    classifier = b.weight("classifier.weight"), b.weight("classifier.bias")
    x = b.node("Gemm", "classifier", x, *classifier, alpha=1.0, beta=1.0, transB=1)
    b.nodes.append(
        helper.make_node("Softmax", [x], ["probabilities"], name="/softmax/Softmax", axis=1)
    )
    graph = helper.make_graph(
        b.nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(array, name) for name, array in b.constants.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="examples/digits",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write(path: str | Path) -> None:
    """Write the float network as an ONNX file."""
    onnx.save(build(), str(path))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python model.py OUT.onnx [IMAGES.npy]")
    write(sys.argv[1])
    if len(sys.argv) == 3:
        np.save(sys.argv[2], digits().calib_x)
