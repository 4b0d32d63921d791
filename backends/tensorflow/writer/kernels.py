"""TensorFlow's int8 kernels: quantize, dequantize, fused convolutions and products, pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import networkx as nx
import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.types import QuantType
from qir.profiles import dequantize_by_profile, profile

from . import simulated
from .layers import constant_weights, filters, padding
from .moves import reshaped
from .nodes import F32, PROFILE, Nodes, kind, kind_of, refused
from .wire import Attr, TypeAttr, TypeListAttr

Write = Callable[[Nodes, Node], str]
_ROUND = {"": "HALF_TO_EVEN", "even": "HALF_TO_EVEN", "away": "HALF_AWAY_FROM_ZERO"}
_BEHIND = {"relu": "Relu", "add": "Sum", "leaky_relu": "LeakyRelu"}
_NAME = {"conv2d": "_FusedQuantizedConv2D", "linear": "_QuantizedMatMul"}


def quant_of(node: Node, value: Value) -> QuantType:
    """Returns the type of quantized values that TensorFlow has; Refused for another."""
    quant = value.type.quant
    assert quant is not None
    why = ""
    if quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None:
        why = "is no plain scale"
    elif np.any(quant.zeros()):
        why = f"has zero point {int(np.asarray(quant.zeros()).reshape(-1)[0])}"
    elif quant.granularity is not None and value.constant is None:
        why = "has more than one scale"
    elif str(quant.storage) not in ("u8", "i8"):
        why = f"is stored as {quant.storage}"
    if why:
        said = "TensorFlow's kernels have one scale, no zero point, u8 or i8"
        raise refused(
            node, f"%{value.name} {why}; {said}: qir quantize takes its ranges for this target"
        )
    return quant


def _quantize(w: Nodes, n: Node) -> str:
    if w.simulates:
        return ""  # written with its dequantize
    x, quant = n.operands["x"], quant_of(n, n.result)
    narrow = quant.bounds is not None
    if narrow and (quant.low, quant.high) != (-127, 127):
        raise refused(n, f"TensorFlow has no values {quant.low}..{quant.high}")
    way = str(n.attrs["round"])
    if way not in _ROUND or n.attrs["saturate"] is not True:
        raise refused(n, f"QuantizeV2 has no rounding {way!r}")
    given = (w.read(x), *w.ends(quant, n.name))
    return w.add(
        "QuantizeV2",
        given,
        n.name,
        T=kind(n.result),
        mode="SCALED",
        round_mode=_ROUND[way],
        narrow_range=narrow,
    )


def _dequantize(w: Nodes, n: Node) -> str:
    x = n.operands["x"]
    if x.constant is not None and x.type.quant is not None:
        found = profile(n.profile or PROFILE)
        return w.constant(
            dequantize_by_profile(found, x.constant.data, x.type.quant), "float", n.name
        )
    real, quant = simulated.source(n.result), x.type.quant
    if w.simulates and real is not None and quant is not None:
        if simulated.is_filter(n.result):
            return ""  # written with its convolution
        return simulated.write(w, n, w.read(real), quant, quant.axis, x.type.rank)
    given = (w.read(x), *w.ends(quant_of(n, x), n.name))
    return w.add("Dequantize", given, n.name, T=kind(x), mode="SCALED", dtype=TypeAttr("float"))


# -- fused kernels --------------------------------------------------------------------------------


def stages_of(n: Node) -> tuple[Stage, ...]:
    """Returns the ops of a kernel in order."""
    return n.stages or (Stage(n.op, n.attrs, tuple(n.operands)),)


def _given(n: Node, index: int) -> Mapping[str, Value]:
    return n.stage_operands(index) if n.stages else n.operands


class _Fused:
    """What every fused kernel is given, and what it gives."""

    def __init__(self, w: Nodes, n: Node, weights: np.ndarray) -> None:
        self.w, self.n = w, n
        first = _given(n, 0)
        self.data, self.weights = first["x"], first["w"]
        self.real = n.result.type.quant is None
        of_x, of_w = quant_of(n, self.data), quant_of(n, self.weights)
        self.inputs = [w.read(self.data), w.constant(weights, "qint8", self.weights.name)]
        self.types = [kind(self.data).name, "qint8"]
        self.ends = [*w.ends(of_x, self.data.name), *w.ends(of_w, self.weights.name)]
        self.stages = ["BiasAdd"]
        self._bias(first.get("bias"), weights.shape)

    def _bias(self, bias: Value | None, shape: Sequence[int]) -> None:
        """A bias is always given, and float: TensorFlow computes others wrong."""
        if bias is not None and bias.type.quant is not None:
            raise refused(self.n, "its bias is quantized; TensorFlow's kernels take a float bias")
        outer = shape[2] * shape[3] if self.deep else shape[-1]
        zeros = np.zeros(outer, F32)
        self.inputs.append(self.w.constant(zeros) if bias is None else self.w.read(bias))
        self.types.append("float")

    @property
    def deep(self) -> bool:
        """Whether it is a depthwise convolution."""
        return False

    def behind(self) -> None:
        """Adds what follows the sums."""
        for index, stage in enumerate(stages_of(self.n)[1:], 1):
            if stage.op not in _BEHIND:
                raise refused(self.n, f"TensorFlow's kernel has no {stage.op}")
            self.stages.append(_BEHIND[stage.op])
            if stage.op == "add":
                (other,) = _given(self.n, index).values()
                self._summand(other)
        if not self.real:
            self.stages.append("Requantize")
            self.ends += self.w.ends(quant_of(self.n, self.n.result), self.n.name)
        else:
            self.stages.append("Dequantize")

    def _summand(self, other: Value) -> None:
        raise refused(self.n, "TensorFlow's product adds no quantized tensor")

    def attrs(self) -> dict[str, Attr]:
        """Returns the attributes that all fused kernels have."""
        made = ("float",) if self.real else (kind(self.n.result).name, "float", "float")
        return {
            "fused_ops": tuple(self.stages),
            "Thost_inputs": TypeListAttr((*self.types, *("float",) * len(self.ends))),
            "Tdevice_inputs": TypeListAttr(()),
            "Thost_outputs": TypeListAttr(made),
            "Tdevice_outputs": TypeListAttr(()),
            "Tbias": TypeAttr("float"),
            "is_bias_const": True,
        }


class _Convolution(_Fused):
    def __init__(self, w: Nodes, n: Node) -> None:
        attrs = stages_of(n)[0].attrs
        if attrs["layout"] != "NHWC":
            raise refused(n, "TensorFlow's int8 convolution has its channels last")
        groups = attrs["groups"]
        assert isinstance(groups, int)
        held = _given(n, 0)["w"]
        weights, self._deep = filters(constant_weights(n, held), groups)
        super().__init__(w, n, weights)
        if self.real:
            raise refused(n, "TensorFlow's int8 convolution has no float result")
        self.window = weights.shape[:2]

    @property
    def deep(self) -> bool:
        return self._deep

    def _summand(self, other: Value) -> None:
        if self.deep:
            raise refused(self.n, "TensorFlow's depthwise kernel adds no tensor")
        self.inputs.append(self.w.read(other))
        self.types.append(kind(other).name)
        self.ends += self.w.ends(quant_of(self.n, other), other.name)

    def write(self) -> str:
        self.behind()
        head, made = stages_of(self.n)[0], kind(self.n.result)
        sides = {}
        for name in ("stride", "dilation", "pad"):
            value = head.attrs[name]
            assert isinstance(value, tuple)
            sides[name] = [int(each) for each in value]  # type: ignore[arg-type]
        size = self.data.type.shape[1:3]
        pads = padding(size, self.window, sides["stride"], sides["pad"], sides["dilation"])
        more: dict[str, Attr] = {
            "Tinput": kind(self.data),
            "Tfilter": TypeAttr("qint8"),
            "Tsummand": TypeAttr(self.types[3]) if "Sum" in self.stages else made,
            "out_type": made,
            "data_format": "NHWC",
            "is_filter_const": True,
            "strides": (1, *sides["stride"], 1),
            "dilations": (1, *sides["dilation"], 1),
            **pads,
        }
        op = "_FusedQuantizedDepthwiseConv2D" if self.deep else "_FusedQuantizedConv2D"
        given = (*self.inputs, *self.ends)
        return self.w.add(op, given, self.n.name, **more, **self.attrs())


class _Product(_Fused):
    def __init__(self, w: Nodes, n: Node) -> None:
        held = constant_weights(n, _given(n, 0)["w"])
        super().__init__(w, n, np.ascontiguousarray(held.T))
        if self.data.type.rank != 2:
            raise refused(n, "TensorFlow's int8 product takes matrices; reshape its data")

    def write(self) -> str:
        self.behind()
        made = "float" if self.real else kind(self.n.result).name
        more: dict[str, Attr] = {
            "T1": kind(self.data),
            "T2": TypeAttr("qint8"),
            "U": TypeAttr("float"),
            "Tout": TypeAttr(made),
            "is_weight_const": True,
            "input_quant_mode": "SCALED",
            "output_quant_mode": "SCALED",
        }
        for stage in stages_of(self.n)[1:]:
            if stage.op == "leaky_relu":
                alpha = stage.attrs["alpha"]
                assert isinstance(alpha, float)
                more["leakyrelu_alpha"] = alpha
        given = (*self.inputs, *self.ends)
        return self.w.add("_QuantizedMatMul", given, self.n.name, **more, **self.attrs())


# -- pools and moves of quantized values ----------------------------------------------------------


def pooled(n: Node) -> dict[str, Attr] | None:
    """Returns the attributes of a pool that TensorFlow has on quantized values, if it has."""
    x, attrs = n.operands["x"], n.attrs
    plain = attrs["layout"] == "NHWC" and attrs.get("dilation", (1, 1)) == (1, 1)
    sides = {}
    for name in ("kernel", "stride", "pad"):
        value = attrs[name]
        assert isinstance(value, tuple)
        sides[name] = [int(each) for each in value]  # type: ignore[arg-type]
    pads = padding(x.type.shape[1:3], sides["kernel"], sides["stride"], sides["pad"])
    if not plain or attrs["ceil"] or pads["padding"] == "EXPLICIT":
        return None
    if n.op == "avg_pool2d" and attrs["count_pad"] and any(sides["pad"]):
        return None
    kernel, stride = sides["kernel"], sides["stride"]
    return {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1), **pads}


def _pool(w: Nodes, n: Node) -> str:
    x, attrs = n.operands["x"], pooled(n)
    if attrs is None:
        raise refused(n, "TensorFlow has no such pool on quantized values")
    op = {"max_pool2d": "QuantizedMaxPool", "avg_pool2d": "QuantizedAvgPool"}[n.op]
    return w.add(op, (w.read(x), *w.ends(quant_of(n, x), n.name)), n.name, T=kind(x), **attrs)


def _reshape(w: Nodes, n: Node) -> str:
    x = n.operands["x"]
    quant_of(n, x)
    if made := reshaped(w, n, w.read(x), x, n.result):
        return made
    raise refused(n, "more than one size of its result is open; state the sizes")


def _concat(w: Nodes, n: Node) -> str:
    parts, axis = list(n.operands.values()), n.attrs["axis"]
    ends = [w.ends(quant_of(n, part), part.name) for part in parts]
    at = w.constant(np.asarray(axis, np.int32))
    given = (*map(w.read, parts), at, *(low for low, _ in ends), *(high for _, high in ends))
    return w.add(
        "QuantizedConcatV2", given, n.name, N=len(parts), T=kind(n.result), Tidx=TypeAttr("int32")
    )


def check_summand(graph: Graph, n: Node) -> None:
    """Refuses a sum whose summand is read later: TensorFlow writes the result over it."""
    for index, stage in enumerate(n.stages):
        if stage.op != "add":
            continue
        for other in n.stage_operands(index).values():
            later = {use.node for use in other.uses} - {n} - nx.ancestors(graph.nx, n)
            if later or sum(use.node is n for use in other.uses) > 1:
                who = min(node.name for node in later or {n})
                said = f"TensorFlow writes the sum over %{other.name}, which {who} reads too"
                raise refused(n, f"{said}; quantize the float model for this target")


OPS: Mapping[str, Write] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv2d": lambda w, n: _Convolution(w, n).write(),
    "linear": lambda w, n: _Product(w, n).write(),
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "reshape": _reshape,
    "concat": _concat,
}
"""By the first op of a kernel."""

__all__ = ["OPS", "PROFILE", "check_summand", "kind_of", "pooled", "quant_of", "stages_of"]
