"""Writes TensorFlow's oneDNN int8 kernels: quantize, dequantize, fused layers, pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import networkx as nx
import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.types import QuantType
from qir.profiles import dequantize_by_profile, library_of

from . import fake_quantize
from .layers import constant_weights, padding, tensorflow_filters
from .moves import reshape
from .nodes import F32, PROFILE, GraphNodes, refusal, type_attr
from .wire import Attr, TypeAttr, TypeListAttr

Write = Callable[[GraphNodes, Node], str]
_ROUND_MODES = {"": "HALF_TO_EVEN", "even": "HALF_TO_EVEN", "away": "HALF_AWAY_FROM_ZERO"}
FUSED_OPS = {"relu": "Relu", "add": "Sum", "leaky_relu": "LeakyRelu"}
"""The names of fused ops in `fused_ops`."""
_NAME = {"conv2d": "_FusedQuantizedConv2D", "linear": "_QuantizedMatMul"}


def supported_type(node: Node, value: Value) -> QuantType:
    """Returns a quantized type that TensorFlow's kernels support; raises Refused for another."""
    quant = value.type.quant
    assert quant is not None
    problem = ""
    if quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None:
        problem = "is no plain scale"
    elif np.any(quant.zeros()):
        problem = f"has zero point {int(np.asarray(quant.zeros()).reshape(-1)[0])}"
    elif quant.granularity is not None and value.constant is None:
        problem = "has more than one scale"
    elif str(quant.storage) not in ("u8", "i8"):
        problem = f"is stored as {quant.storage}"
    if problem:
        remedy = "TensorFlow's kernels have one scale, no zero point, u8 or i8"
        raise refusal(
            node,
            f"%{value.name} {problem}; {remedy}: qir quantize takes its ranges for this target",
        )
    return quant


def _quantize(w: GraphNodes, n: Node) -> str:
    if w.simulates:
        return ""  # written with its dequantize
    x, quant = n.operands["x"], supported_type(n, n.result)
    narrow_range = quant.bounds is not None
    if narrow_range and (quant.low, quant.high) != (-127, 127):
        raise refusal(n, f"TensorFlow has no values {quant.low}..{quant.high}")
    rounding = str(n.attrs["round"])
    if rounding not in _ROUND_MODES or n.attrs["saturate"] is not True:
        raise refusal(n, f"QuantizeV2 has no rounding {rounding!r}")
    inputs = (w.tensor(x), *w.range_constants(quant, n.name))
    return w.add(
        "QuantizeV2",
        inputs,
        n.name,
        T=type_attr(n.result),
        mode="SCALED",
        round_mode=_ROUND_MODES[rounding],
        narrow_range=narrow_range,
    )


def _dequantize(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    # A dequantized constant is written as floats: no kernel would read the integers.
    if x.constant is not None and x.type.quant is not None:
        profile_of_node = library_of(n.graph).find(n.profile or PROFILE)
        return w.constant(
            dequantize_by_profile(profile_of_node, x.constant.data, x.type.quant), "float", n.name
        )
    source, quant = fake_quantize.quantized_source(n.result), x.type.quant
    if w.simulates and source is not None and quant is not None:
        if fake_quantize.is_filter(n.result):
            return ""  # written with its convolution
        return fake_quantize.write(w, n, w.tensor(source), quant, quant.axis, x.type.rank)
    inputs = (w.tensor(x), *w.range_constants(supported_type(n, x), n.name))
    return w.add(
        "Dequantize", inputs, n.name, T=type_attr(x), mode="SCALED", dtype=TypeAttr("float")
    )


# -- fused layers ---------------------------------------------------------------------------------


def fused_stages(n: Node) -> tuple[Stage, ...]:
    """Returns the ops of a kernel in order."""
    return n.stages or (Stage(n.op, n.attrs, tuple(n.operands)),)


def _stage_operands(n: Node, index: int) -> Mapping[str, Value]:
    return n.stage_operands(index) if n.stages else n.operands


class _FusedKernel:
    """The inputs and attributes that all fused kernels have."""

    def __init__(self, w: GraphNodes, n: Node, weights: np.ndarray) -> None:
        self.w, self.n = w, n
        operands = _stage_operands(n, 0)
        self.data, self.weights = operands["x"], operands["w"]
        self.has_float_result = n.result.type.quant is None
        data_type, weight_type = supported_type(n, self.data), supported_type(n, self.weights)
        self.inputs = [w.tensor(self.data), w.constant(weights, "qint8", self.weights.name)]
        self.types = [type_attr(self.data).name, "qint8"]
        self.ranges = [
            *w.range_constants(data_type, self.data.name),
            *w.range_constants(weight_type, self.weights.name),
        ]
        self.stages = ["BiasAdd"]
        self._bias(operands.get("bias"), weights.shape)

    def _bias(self, bias: Value | None, shape: Sequence[int]) -> None:
        """Adds a float bias, of zeros if there is none: kernels without one, or with int32,
        compute wrongly."""
        if bias is not None and bias.type.quant is not None:
            raise refusal(self.n, "its bias is quantized; TensorFlow's kernels take a float bias")
        # Depthwise filters are [height, width, channels, multiplier].
        count = shape[2] * shape[3] if self.is_depthwise else shape[-1]
        zeros = np.zeros(count, F32)
        self.inputs.append(self.w.constant(zeros) if bias is None else self.w.tensor(bias))
        self.types.append("float")

    @property
    def is_depthwise(self) -> bool:
        """Whether it is a depthwise convolution."""
        return False

    def add_epilogue(self) -> None:
        """Adds the fused ops after the sums, and the conversion of the result."""
        for index, stage in enumerate(fused_stages(self.n)[1:], 1):
            if stage.op not in FUSED_OPS:
                raise refusal(self.n, f"TensorFlow's kernel has no {stage.op}")
            self.stages.append(FUSED_OPS[stage.op])
            if stage.op == "add":
                (other,) = _stage_operands(self.n, index).values()
                self._summand(other)
        if not self.has_float_result:
            self.stages.append("Requantize")
            self.ranges += self.w.range_constants(
                supported_type(self.n, self.n.result), self.n.name
            )
        else:
            self.stages.append("Dequantize")

    def _summand(self, other: Value) -> None:
        raise refusal(self.n, "TensorFlow's product adds no quantized tensor")

    def attrs(self) -> dict[str, Attr]:
        """Returns the attributes of all fused kernels."""
        result_types = (
            ("float",)
            if self.has_float_result
            else (type_attr(self.n.result).name, "float", "float")
        )
        return {
            "fused_ops": tuple(self.stages),
            "Thost_inputs": TypeListAttr((*self.types, *("float",) * len(self.ranges))),
            "Tdevice_inputs": TypeListAttr(()),
            "Thost_outputs": TypeListAttr(result_types),
            "Tdevice_outputs": TypeListAttr(()),
            "Tbias": TypeAttr("float"),
            "is_bias_const": True,
        }


class _FusedConvolution(_FusedKernel):
    def __init__(self, w: GraphNodes, n: Node) -> None:
        attrs = fused_stages(n)[0].attrs
        if attrs["layout"] != "NHWC":
            raise refusal(n, "TensorFlow's int8 convolution has its channels last")
        groups = attrs["groups"]
        assert isinstance(groups, int)
        weight_value = _stage_operands(n, 0)["w"]
        weights, self._is_depthwise = tensorflow_filters(constant_weights(n, weight_value), groups)
        super().__init__(w, n, weights)
        if self.has_float_result:
            raise refusal(n, "TensorFlow's int8 convolution has no float result")
        self.window = weights.shape[:2]

    @property
    def is_depthwise(self) -> bool:
        return self._is_depthwise

    def _summand(self, other: Value) -> None:
        if self.is_depthwise:
            raise refusal(self.n, "TensorFlow's depthwise kernel adds no tensor")
        self.inputs.append(self.w.tensor(other))
        self.types.append(type_attr(other).name)
        self.ranges += self.w.range_constants(supported_type(self.n, other), other.name)

    def write(self) -> str:
        self.add_epilogue()
        anchor, result_type = fused_stages(self.n)[0], type_attr(self.n.result)
        window = {}
        for name in ("stride", "dilation", "pad"):
            value = anchor.attrs[name]
            assert isinstance(value, tuple)
            window[name] = [int(each) for each in value]  # type: ignore[arg-type]
        size = self.data.type.shape[1:3]
        pads = padding(size, self.window, window["stride"], window["pad"], window["dilation"])
        options: dict[str, Attr] = {
            "Tinput": type_attr(self.data),
            "Tfilter": TypeAttr("qint8"),
            "Tsummand": TypeAttr(self.types[3]) if "Sum" in self.stages else result_type,
            "out_type": result_type,
            "data_format": "NHWC",
            "is_filter_const": True,
            "strides": (1, *window["stride"], 1),
            "dilations": (1, *window["dilation"], 1),
            **pads,
        }
        op = "_FusedQuantizedDepthwiseConv2D" if self.is_depthwise else "_FusedQuantizedConv2D"
        # The kernels' inputs: data, weights, bias, summand, then (min, max) of each quantized
        # tensor.
        inputs = (*self.inputs, *self.ranges)
        return self.w.add(op, inputs, self.n.name, **options, **self.attrs())


class _FusedMatMul(_FusedKernel):
    def __init__(self, w: GraphNodes, n: Node) -> None:
        weight_matrix = constant_weights(n, _stage_operands(n, 0)["w"])
        super().__init__(w, n, np.ascontiguousarray(weight_matrix.T))
        if self.data.type.rank != 2:
            raise refusal(n, "TensorFlow's int8 product takes matrices; reshape its data")

    def write(self) -> str:
        self.add_epilogue()
        result_type = "float" if self.has_float_result else type_attr(self.n.result).name
        options: dict[str, Attr] = {
            "T1": type_attr(self.data),
            "T2": TypeAttr("qint8"),
            "U": TypeAttr("float"),
            "Tout": TypeAttr(result_type),
            "is_weight_const": True,
            "input_quant_mode": "SCALED",
            "output_quant_mode": "SCALED",
        }
        for stage in fused_stages(self.n)[1:]:
            if stage.op == "leaky_relu":
                alpha = stage.attrs["alpha"]
                assert isinstance(alpha, float)
                options["leakyrelu_alpha"] = alpha
        inputs = (*self.inputs, *self.ranges)
        return self.w.add("_QuantizedMatMul", inputs, self.n.name, **options, **self.attrs())


# -- pools, reshape and concat --------------------------------------------------------------------


def pool_attributes(n: Node) -> dict[str, Attr] | None:
    """Returns the attributes of an int8 pool, or None where TensorFlow has none for it."""
    x, attrs = n.operands["x"], n.attrs
    is_plain = attrs["layout"] == "NHWC" and attrs.get("dilation", (1, 1)) == (1, 1)
    window = {}
    for name in ("kernel", "stride", "pad"):
        value = attrs[name]
        assert isinstance(value, tuple)
        window[name] = [int(each) for each in value]  # type: ignore[arg-type]
    pads = padding(x.type.shape[1:3], window["kernel"], window["stride"], window["pad"])
    if not is_plain or attrs["ceil"] or pads["padding"] == "EXPLICIT":
        return None
    if n.op == "avg_pool2d" and attrs["count_pad"] and any(window["pad"]):
        return None
    kernel, stride = window["kernel"], window["stride"]
    return {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1), **pads}


def _pool(w: GraphNodes, n: Node) -> str:
    x, attrs = n.operands["x"], pool_attributes(n)
    if attrs is None:
        raise refusal(n, "TensorFlow has no such pool on quantized values")
    op = {"max_pool2d": "QuantizedMaxPool", "avg_pool2d": "QuantizedAvgPool"}[n.op]
    return w.add(
        op,
        (w.tensor(x), *w.range_constants(supported_type(n, x), n.name)),
        n.name,
        T=type_attr(x),
        **attrs,
    )


def _reshape(w: GraphNodes, n: Node) -> str:
    supported_type(n, n.operands["x"])
    return reshape(w, n)


def _concat(w: GraphNodes, n: Node) -> str:
    parts, axis = list(n.operands.values()), n.attrs["axis"]
    ranges = [w.range_constants(supported_type(n, part), part.name) for part in parts]
    axis_tensor = w.constant(np.asarray(axis, np.int32))
    inputs = (
        *map(w.tensor, parts),
        axis_tensor,
        *(low for low, _ in ranges),
        *(high for _, high in ranges),
    )
    return w.add(
        "QuantizedConcatV2",
        inputs,
        n.name,
        N=len(parts),
        T=type_attr(n.result),
        Tidx=TypeAttr("int32"),
    )


def require_last_read(graph: Graph, n: Node) -> None:
    """Raises Refused for a summand that is read later: the kernel overwrites it with the result."""
    for index, stage in enumerate(n.stages):
        if stage.op != "add":
            continue
        for other in n.stage_operands(index).values():
            later_users = {use.node for use in other.uses} - {n} - nx.ancestors(graph.nx, n)
            if later_users or sum(use.node is n for use in other.uses) > 1:
                reader = min(node.name for node in later_users or {n})
                reason = f"TensorFlow writes the sum over %{other.name}, which {reader} reads too"
                raise refusal(n, f"{reason}; quantize the float model for this target")


OPS: Mapping[str, Write] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv2d": lambda w, n: _FusedConvolution(w, n).write(),
    "linear": lambda w, n: _FusedMatMul(w, n).write(),
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "reshape": _reshape,
    "concat": _concat,
}
"""Writers by the first op of a kernel."""

__all__ = [
    "OPS",
    "PROFILE",
    "fused_stages",
    "pool_attributes",
    "require_last_read",
    "supported_type",
]
