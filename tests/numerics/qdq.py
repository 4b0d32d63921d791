"""Small QDQ models, and the graph that onnxruntime's optimizer makes of them."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.generic]
F = np.float32


@dataclass(kw_only=True)
class Nodes:
    """Operators and constants, each named as it is made."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def op(self, kind: str, *operands: str, **attrs: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, list(operands), [name])
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
        self.nodes.append(node)
        return name

    def constant(self, value: object, kind: type[np.generic] | str = F) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, kind)
        return name


@dataclass
class Model(Nodes):
    """A graph that is written node by node; every method gives the name of what it made."""

    storage: type[np.generic] = np.uint8
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def input(self, *shape: int) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs[name] = shape
        return name

    def quantize(
        self, x: str, scale: float, zero: int, storage: type[np.generic] | None = None
    ) -> str:
        kind = storage or self.storage
        return self.op("QuantizeLinear", x, self.constant(scale), self.constant(zero, kind))

    def dequantize(
        self, q: str, scale: float, zero: int, storage: type[np.generic] | None = None
    ) -> str:
        kind = storage or self.storage
        return self.op("DequantizeLinear", q, self.constant(scale), self.constant(zero, kind))

    def coded(self, x: str, scale: float = 0.05, zero: int = 3) -> str:
        """Quantized and dequantized."""
        return self.dequantize(self.quantize(x, scale, zero), scale, zero)

    def data(self, *shape: int, scale: float = 0.05) -> str:
        return self.coded(self.input(*shape), scale)

    def weights(self, *shape: int, scale: float = 0.01) -> str:
        quantized = np.random.default_rng(0).integers(-100, 100, shape)
        return self.dequantize(self.constant(quantized, np.int8), scale, 0, np.int8)

    def bias(self, count: int, scale: float = float(F(0.05) * F(0.01))) -> str:
        quantized = self.constant(np.arange(count) * 7 - 20, np.int32)
        return self.op("DequantizeLinear", quantized, self.constant(scale))

    def proto(self, output: str) -> onnx.ModelProto:
        """The model with this output."""
        graph = helper.make_graph(
            self.nodes,
            "qdq",
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
                for n, s in self.inputs.items()
            ],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(data, name) for name, data in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def optimized(self, output: str, path: Path) -> onnx.GraphProto:
        """The graph as the optimizer writes it."""
        model = self.proto(output)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(path).graph
