"""Which storages onnxruntime's kernels on integers take: the groups of `ort-1.31` take those
alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qir
from qir.errors import OpError
from qir.ir.dtype import dtype
from qir.ir.types import uniform
from qir.ledger import Ledger
from qir.numerics import affine_of
from qir.passes.forms.group import Group
from qir.reference.methods import exponent_table
from tests.installed import OPTIMIZED

IMAGE = (1, 4, 8, 8)
TYPES = {
    "u8": (TensorProto.UINT8, 0, 200),
    "i8": (TensorProto.INT8, -100, 100),
    "u16": (TensorProto.UINT16, 0, 40000),
    "i16": (TensorProto.INT16, -9000, 9000),
    "u4": (TensorProto.UINT4, 0, 15),
    "i4": (TensorProto.INT4, -8, 7),
}
QDQ = ("QuantizeLinear", "DequantizeLinear")
BIAS = float(np.float32(0.05) * np.float32(0.01))


class Written:
    """A graph whose data and weights are integers of given storages."""

    def __init__(self, data: str, weight: str) -> None:
        self.data, self.weight = data, weight
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *operands: str, **attrs: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, list(operands), [name])
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
        self.nodes.append(node)
        return name

    def constant(self, value: object, kind: int = TensorProto.FLOAT) -> str:
        data, name = np.asarray(value), f"c{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, kind, data.shape, data.ravel().tolist()))
        return name

    def coded(self, x: str, scale: float = 0.05) -> str:
        zero = self.constant(3, TYPES[self.data][0])
        quantized = self.op("QuantizeLinear", x, self.constant(scale), zero)
        return self.op("DequantizeLinear", quantized, self.constant(scale), zero)

    def read(self, *shape: int, scale: float = 0.05) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.coded(name, scale)

    def weights(self, *shape: int) -> str:
        kind, low, high = TYPES[self.weight]
        quantized = np.random.default_rng(0).integers(low, high, shape)
        zero = self.constant(0, kind)
        return self.op(
            "DequantizeLinear", self.constant(quantized, kind), self.constant(0.01), zero
        )

    def bias(self, count: int) -> str:
        quantized = self.constant(np.arange(count) * 7 - 20, TensorProto.INT32)
        return self.op("DequantizeLinear", quantized, self.constant(BIAS))

    def model(self, output: str) -> bytes:
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "qdq", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 21)]
        return bytes(
            helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        )


def _one(kind: str, **attrs: object) -> Callable[[Written], str]:
    return lambda m: m.op(kind, m.read(*IMAGE), **attrs)


def _two(kind: str, **attrs: object) -> Callable[[Written], str]:
    return lambda m: m.op(kind, m.read(*IMAGE), m.read(*IMAGE, scale=0.07), **attrs)


PRODUCTS: dict[str, Callable[[Written], str]] = {
    "conv2d": lambda m: m.op("Conv", m.read(*IMAGE), m.weights(6, 4, 3, 3), m.bias(6)),
    "matmul": lambda m: m.op("MatMul", m.read(5, 16), m.weights(16, 6)),
    "gemm": lambda m: m.op("Gemm", m.read(5, 16), m.weights(16, 6), m.bias(6)),
}
OTHERS: dict[str, Callable[[Written], str]] = {
    "add": _two("Add"),
    "mul": _two("Mul"),
    "concat": _two("Concat", axis=1),
    "sigmoid": _one("Sigmoid"),
    "leaky_relu": _one("LeakyRelu", alpha=0.1),
    "softmax": _one("Softmax", axis=1),
    "avg_pool2d": _one("AveragePool", kernel_shape=[2, 2]),
    "global_avg_pool": _one("GlobalAveragePool"),
    "max_pool2d": _one("MaxPool", kernel_shape=[2, 2]),
    "flatten": _one("Flatten"),
    "transpose": _one("Transpose", perm=[0, 2, 3, 1]),
    "reshape": lambda m: m.op("Reshape", m.read(*IMAGE), m.constant([1, -1], TensorProto.INT64)),
}
REFUSED = {
    *(("conv2d", data, weight) for data in ("u4", "i4") for weight in ("u8", "i8")),
    *(("max_pool2d", data, data) for data in ("u4", "i4")),
}
"""Models of which onnxruntime itself makes a graph that it then does not load."""
CASES = [(op, data, w) for op in PRODUCTS for data in TYPES for w in TYPES]
CASES += [(op, data, data) for op in OTHERS for data in TYPES]


def is_quantized_by_runtime(model: bytes, path: Path) -> bool:
    """Whether onnxruntime's optimizer leaves an op that reads integers."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(path).graph.node
    makers = {name: node.op_type for node in nodes for name in node.output}
    real = [node for node in nodes if node.op_type not in QDQ]
    return any(makers.get(node.input[0]) != "DequantizeLinear" for node in real)


def is_quantized_here(model: bytes, path: Path) -> bool:
    """Whether an op of the grouped graph reads integers."""
    path.write_bytes(model)
    graph = qir.load(path)
    Group(profile=OPTIMIZED).run(graph, Ledger())
    real = [n for n in graph if n.op not in ("quantize", "dequantize", "constant", "output")]
    return any(v.type.quant is not None for n in real for v in n.operands.values())


@pytest.mark.parametrize("op", [*PRODUCTS, *OTHERS])
def test_a_group_takes_the_storages_that_the_kernel_takes(op: str, tmp_path: Path) -> None:
    make = PRODUCTS.get(op) or OTHERS[op]
    for case in (c for c in CASES if c[0] == op and c not in REFUSED):
        m = Written(*case[1:])
        model = m.model(m.coded(make(m)))
        there = is_quantized_by_runtime(model, tmp_path / "there.onnx")
        assert is_quantized_here(model, tmp_path / "here.onnx") == there, case


@pytest.mark.parametrize("op", ["add", "mul", "sigmoid", "softmax", "max_pool2d"])
@pytest.mark.parametrize("data", ["u16", "i16"])
def test_sixteen_bits_run_grouped_as_there_and_on_kernels_a_code_off_at_most(
    op: str, data: str, tmp_path: Path
) -> None:
    """A real sum of exponents has an order of its own: a code of softmax may be one off."""
    m = Written(data, data)
    path = tmp_path / "m.onnx"
    name = m.coded(OTHERS[op](m))
    path.write_bytes(m.model(name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(5)
    feeds = {i.name: random.normal(0, 20, IMAGE).astype(np.float32) for i in m.inputs}
    wanted = session.run(None, feeds)[0]
    graph = qir.load(path)
    Group(profile=OPTIMIZED).run(graph, Ledger())
    off = np.asarray(qir.run(graph, feeds)[name], np.float64) - wanted
    assert np.abs(off).max() <= (0.0501 if op == "softmax" else 0.0)
    compiled = qir.compile(qir.load(path))
    assert np.abs(np.asarray(compiled(**feeds)[name], np.float64) - wanted).max() <= 0.0501


def test_a_product_too_wide_for_sums_of_32_bits_stays_real(tmp_path: Path) -> None:
    """64 products of integers near 65535 and 30000 would wrap."""
    m = Written("u16", "u16")
    w = m.constant(np.full((64, 3), 30000), TensorProto.UINT16)
    zero = m.constant(0, TensorProto.UINT16)
    real = m.op("DequantizeLinear", w, m.constant(1e-8), zero)
    name = m.coded(m.op("MatMul", m.read(2, 64), real))
    path = tmp_path / "m.onnx"
    path.write_bytes(m.model(name))
    x = np.full((2, 64), 3000.0, np.float32)
    found = np.asarray(qir.compile(qir.load(path))(in0=x)[name])
    assert np.allclose(found, 64 * 3000 * 3e-4, rtol=0.02)


def test_the_table_of_exponents_refuses_wider_codes_in_one_line() -> None:
    of = affine_of(uniform(dtype("u16"), np.asarray(0.1, np.float32), np.asarray(3)))
    with pytest.raises(OpError, match=r"softmax: exponent_table .* u16 has more; dequantize"):
        exponent_table(np.zeros((2, 3), np.uint16), of, of)
