"""Probes of TensorFlow's quantized kernels, with oneDNN and without, in child processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import QuantType

from .kernel_runs import Attr, GraphRequest, RequestedType, RequestedTypes, TensorFlow
from .writer.kernels import FUSED_OPS

Array = NDArray[np.generic]
Feeds: TypeAlias = "Mapping[str, Array]"
F = np.float32

_QUANTIZED_TYPES = {"u8": "quint8", "i8": "qint8"}


class _Kernels(Probe):
    """Kernels by name, one in a graph."""

    backend = "tensorflow"
    distributions = ("tensorflow", "tensorflow-cpu")
    onednn: ClassVar[bool]

    def __init__(self) -> None:
        self.child: TensorFlow | None = None

    def begin(self) -> None:
        self._started()

    def _started(self) -> TensorFlow:
        if self.child is None:
            self.child = TensorFlow(onednn=self.onednn)
            weakref.finalize(self, self.child.close)
        return self.child

    def run(self, graph: Graph, feeds: Feeds) -> Array:
        child = self._started()
        node, request = graph["y"].node, GraphRequest()
        first_op = node.stages[0].op if node.stages else node.op
        try:
            return child.run(request, _RUN[first_op](self, node, request, feeds))[0]
        except RuntimeError as error:
            child.close()
            self.child = None
            raise OpError(str(error)[:160]) from error


class Core(_Kernels):
    """TensorFlow's own kernels."""

    name = "tensorflow.core"
    onednn = False
    settings: ClassVar[Mapping[str, str]] = {"onednn": "off"}
    forms = Forms(
        ("quantize", "dequantize", "avg_pool2d", "concat"),
        grains=("tensor",),
        special=(),
        zeros="none",
        layout="NHWC",
        padded=False,
        parts=("u8",),
    )


class OnednnKernels(_Kernels):
    """The kernels that oneDNN brings."""

    name = "tensorflow.onednn"
    onednn = True
    settings: ClassVar[Mapping[str, str]] = {"onednn": "on"}
    forms = Forms(
        ("quantize", "dequantize", "conv2d", "linear", "avg_pool2d", "concat"),
        products=("u8", "i8"),
        grains=("tensor",),
        bias="real",
        special=(),
        zeros="none",
        about_zero=True,
        layout="NHWC",
        padded=False,
        wraps=False,
        tails=(
            ("conv2d", "relu"),
            ("conv2d", "add", "relu"),
            ("linear", "relu"),
            ("linear", "leaky_relu"),
        ),
    )


# -- what an op is given --------------------------------------------------------------------------


def _data(node: Node, slot: str, feeds: Feeds) -> Array:
    value = node.operands[slot]
    constant = value.constant
    return np.ascontiguousarray(feeds[value.name] if constant is None else constant.data)


def _kind(node: Node, slot: str) -> str:
    """Returns the quantized type of an operand or of the result; empty where it is float."""
    return _QUANTIZED_TYPES[str(quant.storage)] if (quant := _quant(node, slot)) else ""


def _quant(node: Node, slot: str) -> QuantType | None:
    return (node.operands[slot] if slot else node.result).type.quant


def _declared_range(node: Node, slot: str) -> tuple[Array, Array]:
    """Returns the range of an operand, or of the result; arrays where there is one a channel."""
    quant = _quant(node, slot)
    assert quant is not None
    declared = quant.declared
    if declared is None:
        raise OpError("TensorFlow needs the range of a quantized tensor")
    low, high = (_flat(end) for end in (declared.low, declared.high))
    return (low, high) if low.size > 1 else (low.reshape(()), high.reshape(()))


def _flat(end: object) -> Array:
    return np.asarray(getattr(end, "data", end), F).reshape(-1)


def _ranges(request: GraphRequest, *ends: tuple[Array, Array]) -> list[str]:
    return [request.constant(v) for pair in ends for v in pair]


def _quantize(probe: _Kernels, node: Node, request: GraphRequest, feeds: Feeds) -> str:
    round_mode = "HALF_TO_EVEN" if probe.onednn else "HALF_AWAY_FROM_ZERO"
    inputs = [request.fed(_data(node, "x", feeds)), *_ranges(request, _declared_range(node, ""))]
    attrs = {"mode": "SCALED", "round_mode": round_mode}
    return f"{request.node('QuantizeV2', inputs, T=RequestedType(_kind(node, '')), **attrs)}:0"


def _dequantize(probe: _Kernels, node: Node, request: GraphRequest, feeds: Feeds) -> str:
    kind = _kind(node, "x")
    inputs = [
        request.fed(_data(node, "x", feeds), kind),
        *_ranges(request, _declared_range(node, "x")),
    ]
    return f"{request.node('Dequantize', inputs, T=RequestedType(kind), mode='SCALED')}:0"


def _pool(probe: _Kernels, node: Node, request: GraphRequest, feeds: Feeds) -> str:
    kind, (height, width) = _kind(node, "x"), _pair(node, "kernel")
    inputs = [
        request.fed(_data(node, "x", feeds), kind),
        *_ranges(request, _declared_range(node, "x")),
    ]
    row_stride, column_stride = _pair(node, "stride")
    sizes = {"ksize": (1, height, width, 1), "strides": (1, row_stride, column_stride, 1)}
    kind_attr = RequestedType(kind)
    return f"{request.node('QuantizedAvgPool', inputs, T=kind_attr, padding='VALID', **sizes)}:0"


def _pair(node: Node, name: str) -> tuple[int, int]:
    value = node.attrs[name]
    assert isinstance(value, tuple)
    first, second = value
    return int(first), int(second)  # type: ignore[arg-type]


def _concat(probe: _Kernels, node: Node, request: GraphRequest, feeds: Feeds) -> str:
    kind, slots = _kind(node, ""), sorted(node.operands)
    parts = [request.fed(_data(node, slot, feeds), kind) for slot in slots]
    ends = [_declared_range(node, slot) for slot in slots]
    lows, highs = ([request.constant(pair[i]) for pair in ends] for i in (0, 1))
    axis = request.constant(np.int32(1))
    attrs: dict[str, Attr] = {"N": len(slots), "T": RequestedType(kind)}
    if probe.onednn:
        inputs = [*parts, axis, *lows, *highs]
        return (
            f"{request.node('QuantizedConcatV2', inputs, Tidx=RequestedType('int32'), **attrs)}:0"
        )
    return f"{request.node('QuantizedConcat', [axis, *parts, *lows, *highs], **attrs)}:0"


# -- products -------------------------------------------------------------------------------------


def _product(probe: _Kernels, node: Node, request: GraphRequest, feeds: Feeds) -> str:
    """Returns a fused kernel: data, weights, a real bias, maybe a summand, then what is done with
    sums."""
    is_matrix = len(node.result.type.shape) == 2
    data_type, result_type = _kind(node, "x"), _kind(node, "")
    w = _data(node, "w", feeds)
    # Filters are [height, width, in, out] and matrices [in, out] in TensorFlow.
    w = w.T if is_matrix else w.transpose(2, 3, 1, 0)
    inputs = [request.fed(_data(node, "x", feeds), data_type), request.constant(w.copy(), "qint8")]
    bias = _data(node, "bias", feeds) if "bias" in node.operands else np.zeros(w.shape[-1], F)
    inputs.append(request.constant(bias))
    types, ends = (
        [data_type, "qint8", "float"],
        [_declared_range(node, "x"), _declared_range(node, "w")],
    )
    summand = next((s for s in node.operands if s.endswith(".b")), "")
    if summand:
        # One op makes the summand, as another owner of it would end the process.
        types.append(_kind(node, summand))
        ends.append(_declared_range(node, summand))
        inputs.append(_quantized_in_graph(request, _data(node, summand, feeds), types[-1]))
    ends.append(_declared_range(node, ""))
    inputs += _ranges(request, *ends)
    stages = [FUSED_OPS[stage.op] for stage in node.stages[1:]]
    common: dict[str, Attr] = {
        "fused_ops": ("BiasAdd", *stages, "Requantize"),
        "Thost_inputs": RequestedTypes((*types, *("float",) * (2 * len(ends)))),
        "Tdevice_inputs": RequestedTypes(()),
        "Thost_outputs": RequestedTypes((result_type, "float", "float")),
        "Tdevice_outputs": RequestedTypes(()),
        "Tbias": RequestedType("float"),
        "is_bias_const": True,
    }
    if is_matrix:
        type_attrs: dict[str, Attr] = {
            "T1": RequestedType(data_type),
            "T2": RequestedType("qint8"),
            "U": RequestedType("float"),
            "Tout": RequestedType(result_type),
        }
        options: dict[str, Attr] = {"is_weight_const": True, "leakyrelu_alpha": 0.25}
        return f"{request.node('_QuantizedMatMul', inputs, **type_attrs, **options, **common)}:0"
    type_attrs = {
        "Tinput": RequestedType(data_type),
        "Tfilter": RequestedType("qint8"),
        "Tsummand": RequestedType(types[3] if summand else result_type),
        "out_type": RequestedType(result_type),
    }
    options = {"data_format": "NHWC", "padding": "SAME", "is_filter_const": True}
    window_attrs = {"strides": (1, 1, 1, 1), "dilations": (1, 1, 1, 1)}
    name = "_FusedQuantizedConv2D"
    return f"{request.node(name, inputs, **type_attrs, **options, **window_attrs, **common)}:0"


def _quantized_in_graph(request: GraphRequest, integers: Array, kind: str) -> str:
    """Returns the same integers, quantized from floats."""
    highest = F(127.5 if kind == "qint8" else 255)
    ends = (np.asarray(-highest if kind == "qint8" else F(0)), np.asarray(highest))
    inputs = [request.fed(integers.astype(F)), *_ranges(request, ends)]
    mode_attrs = {"mode": "SCALED", "round_mode": "HALF_TO_EVEN"}
    return request.node("QuantizeV2", inputs, T=RequestedType(kind), **mode_attrs)


_WriteRequest: TypeAlias = Callable[[_Kernels, Node, GraphRequest, Feeds], str]
_RUN: Mapping[str, _WriteRequest] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv2d": _product,
    "linear": _product,
    "avg_pool2d": _pool,
    "concat": _concat,
}

PROBES: tuple[Probe, ...] = (Core(), OnednnKernels())
