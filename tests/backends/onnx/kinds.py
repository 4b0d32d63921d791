"""A small ONNX model of each kind, with what is fed to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.differential.onnxruntime import ort_tools
from tests.differential.onnxruntime.contrib import one
from tests.differential.onnxruntime.test_contrib_experts import experts
from tests.differential.onnxruntime.test_contrib_networks import Net
from tests.differential.texts import Text
from tests.frontends.onnx.models import model

Made = tuple[onnx.ModelProto, Mapping[str, NDArray[Any]]]
F = np.float32
QONNX = "qonnx.custom_op.general"
FLOAT, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def qonnx() -> Made:
    """Weights of three bits a channel, data of six, a sign at the end."""
    rng, node = np.random.default_rng(0), helper.make_node
    held = {
        **{"s": np.array(0.1, F), "z": np.array(0, F), "b": np.array(6, F)},
        **{"ws": rng.uniform(0.01, 0.1, (8, 1, 1, 1)).astype(F), "wb": np.array(3, F)},
        **{"w": rng.normal(size=(8, 3, 3, 3)).astype(F), "os": np.array(0.2, F)},
    }
    more: dict[str, Any] = {"domain": QONNX, "signed": 1, "rounding_mode": "ROUND"}
    nodes = [
        node("Quant", ["x", "s", "z", "b"], ["xq"], "q1", narrow=0, **more),
        node("Quant", ["w", "ws", "z", "wb"], ["wq"], "q2", narrow=1, **more),
        node("Conv", ["xq", "wq"], ["c"], "c"),
        node("Relu", ["c"], ["r"], "r"),
        node("BipolarQuant", ["r", "os"], ["y"], "bq", domain=QONNX),
    ]
    proto = model(nodes, {"x": (FLOAT, ["N", 3, 8, 8])}, {"y": (FLOAT, None)}, held, 17, (QONNX,))
    return proto, {"x": rng.normal(size=(2, 3, 8, 8)).astype(F)}


def _held() -> list[onnx.TensorProto]:
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        **{"s": np.array(0.1, F), "z": np.array(3, np.uint8), "n": np.array(3)},
        "w": rng.integers(-50, 50, (4, 4)).astype(np.int8),
        **{"ws": np.array(0.02, F), "wz": np.array(0, np.int8)},
    }
    return [numpy_helper.from_array(a, n) for n, a in arrays.items()]


def bodies() -> Made:
    """Products of integers within a branch and within a loop."""
    node, info = helper.make_node, helper.make_tensor_value_info
    numbers = ["s", "z", "w", "ws", "wz", "s", "z"]
    first = [
        node("QLinearMatMul", ["q", *numbers], ["tq"], "mm"),
        node("DequantizeLinear", ["tq", "s", "z"], ["to"], "td"),
    ]
    then = helper.make_graph(first, "then", [], [info("to", FLOAT, None)])
    other = [node("DequantizeLinear", ["q", "s", "z"], ["eo"], "ed")]
    els = helper.make_graph(other, "else", [], [info("eo", FLOAT, None)])
    steps = [
        node("QuantizeLinear", ["v", "s", "z"], ["vq"], "vq"),
        node("QLinearMatMul", ["vq", *numbers], ["vm"], "vm"),
        node("DequantizeLinear", ["vm", "s", "z"], ["vo"], "vo"),
        node("Identity", ["more"], ["again"], "id"),
    ]
    takes = [info("i", I64, []), info("more", BOOL, []), info("v", FLOAT, [2, 4])]
    body = helper.make_graph(
        steps, "body", takes, [info("again", BOOL, []), info("vo", FLOAT, [2, 4])]
    )
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("If", ["cond"], ["y"], "if", then_branch=then, else_branch=els),
        node("Loop", ["n", "cond", "y"], ["out"], "loop", body=body),
    ]
    takes = [info("x", FLOAT, [2, 4]), info("cond", BOOL, [])]
    graph = helper.make_graph(nodes, "bodies", takes, [info("out", FLOAT, [2, 4])], _held())
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(2).normal(size=(2, 4)).astype(F)
    return proto, {"x": x, "cond": np.array(True)}


def function() -> Made:
    """A function of the model's own between integers and floats."""
    node, info = helper.make_node, helper.make_tensor_value_info
    own = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    parts = [node("MatMul", ["a", "b"], ["t"]), node("Relu", ["t"], ["o"])]
    block = helper.make_function("my", "Block", ["a", "b"], ["o"], parts, own[:1])
    nodes = [
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], "wd"),
        node("Block", ["x", "wd"], ["y"], "blk", domain="my"),
    ]
    ends = [info("x", FLOAT, ["N", 4])], [info("y", FLOAT, ["N", 4])]
    graph = helper.make_graph(nodes, "fn", *ends, [t for t in _held() if t.name[0] == "w"])
    proto = helper.make_model(graph, opset_imports=own, functions=[block], ir_version=8)
    return proto, {"x": np.random.default_rng(3).normal(size=(3, 4)).astype(F)}


def qmoe() -> Made:
    """Experts whose weights are integers."""
    operands = experts(51, 4, 16, zeros=True, bias=True, paired=False)
    attrs: dict[str, Any] = {"k": 2, "expert_weight_bits": 4, "activation_type": "silu"}
    made = one("QMoE", operands, ["x", "r"], {"y": FLOAT}, block_size=16, **attrs)
    return made.proto, made.feeds


def _text() -> Made:
    made = Text(5, fixed=True).grown(9)
    return made.proto, made.feeds


class _Fixed(Net):
    """A network whose numbers are all constants."""

    def number(self, name: str, data: Any, *, fixed: bool = False) -> str:
        return super().number(name, data, fixed=True)


def _network() -> Made:
    made = _Fixed(4).grown(6)
    return made.proto, made.feeds


def _tool(name: str) -> Callable[[], Made]:
    return lambda: (ort_tools.quantized(name), ort_tools.samples(1)[0])


KINDS: Mapping[str, Callable[[], Made]] = {
    "qonnx": qonnx,
    "bodies": bodies,
    "function": function,
    "qmoe": qmoe,
    "text": _text,
    "network": _network,
    "nbits": _tool("nbits-4-affine-qoperator"),
    "dynamic": _tool("dynamic-QUInt8"),
    "operators": _tool("qoperator-QUInt8-QInt8"),
    "16 bits": _tool("qdq-QInt16-QInt16"),
    "float8": _tool("qdq-float8"),
    "table": _tool("table-nf4"),
}
