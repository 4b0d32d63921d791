"""Probes of torch's quantized engines; torch is imported when one is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import QuantType, TensorType

from .exported import Exported

if TYPE_CHECKING:
    import torch

Array = NDArray[np.generic]
Tensors = Mapping[str, "torch.Tensor"]

_OPS = (
    "quantize",
    "dequantize",
    "conv2d",
    "linear",
    "add",
    "mul",
    "sigmoid",
    "leaky_relu",
    "avg_pool2d",
    "global_avg_pool",
    "concat",
    "choose_qparams",
)
_FUSED_CHAINS = (("conv2d", "relu"), ("linear", "relu"))


class TorchEngine(Probe):
    """Quantized tensors under one engine, on one thread."""

    backend = "torch"
    distributions = ("torch",)
    forms = Forms(
        _OPS, bias="real", special=("tensor", "channel"), tails=_FUSED_CHAINS, depthwise=True
    )
    engine: ClassVar[str]

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        import torch

        if self.engine not in torch.backends.quantized.supported_engines:
            raise OpError(f"this torch has no engine {self.engine}")
        node = graph["y"].node
        if node.op == "choose_qparams":
            return _chosen(self.engine, graph, feeds["x"])
        with _selected_engine(self.engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantized tensors are deprecated, which is known
            operands = {slot: _tensor(node, slot, feeds) for slot in node.operands}
            try:
                result = _RUN[_first_op(node)](node, operands)
            except RuntimeError as error:
                raise OpError(" ".join(str(error).split())[:160]) from error
            integers = result.int_repr() if result.is_quantized else result
            return np.asarray(integers.numpy())


def _chosen(engine: str, graph: Graph, ranges: Array) -> Array:
    """Scales or zero points by the kind of observer that an engine's configuration names."""
    import torch
    from torch.ao.quantization import PerChannelMinMaxObserver, get_default_qconfig

    # torch warns of the observer's deprecation.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configured = get_default_qconfig(engine).activation()  # type: ignore[no-untyped-call]
        observer = PerChannelMinMaxObserver(
            dtype=torch.quint8,
            qscheme=torch.per_channel_affine,
            reduce_range=configured.reduce_range,
            # One channel is one range: the observer computes each range's parameters on its own.
            eps=float(configured.eps),
        )
        observer(torch.from_numpy(np.array(ranges)))
        parameters = observer.calculate_qparams()
    output = graph.outputs["y"]
    values = parameters[graph["y"].node.results.index(output)].numpy()
    return np.asarray(values.reshape(-1, 1).astype(output.type.dtype.carrier))


def _first_op(node: Node) -> str:
    """Returns the op, or the first of a row of them."""
    return node.stages[0].op if node.stages else node.op


def _fused_suffix(node: Node) -> str:
    """Returns what the name of a kernel adds for the ops after the first."""
    return "".join(f"_{stage.op}" for stage in node.stages[1:])


def _attr(node: Node, name: str) -> Attr:
    return (node.stages[0] if node.stages else node).attrs[name]


@contextmanager
def _selected_engine(engine: str) -> Iterator[None]:
    """An engine and one thread, for a while."""
    import torch

    previous = torch.backends.quantized.engine, torch.get_num_threads()
    torch.backends.quantized.engine = engine
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.quantized.engine = previous[0]
        torch.set_num_threads(previous[1])


def _tensor(node: Node, slot: str, feeds: Mapping[str, Array]) -> torch.Tensor:
    """Returns an operand as torch holds it."""
    value = node.operands[slot]
    constant = value.constant
    data = feeds[value.name] if constant is None else constant.data
    return _quantized_tensor(np.ascontiguousarray(data), value.type)


def _quantized_tensor(data: Array, kind: TensorType) -> torch.Tensor:
    import torch

    integers = torch.from_numpy(data.copy())
    quant = kind.quant
    if quant is None:
        return integers
    scales, zeros = _scales_and_zeros(quant)
    if quant.axis is None:
        return torch._make_per_tensor_quantized_tensor(integers, float(scales), int(zeros))
    channel_params = (
        torch.from_numpy(scales.astype(np.float64)),
        torch.from_numpy(zeros.astype(np.int64)),
    )
    return torch._make_per_channel_quantized_tensor(integers, *channel_params, quant.axis)


def _scales_and_zeros(quant: QuantType) -> tuple[Array, Array]:
    scales = np.asarray(quant.scales())
    zeros = np.broadcast_to(np.asarray(quant.zeros()), scales.shape)
    return scales, np.array(zeros)


def _result(node: Node) -> tuple[float, int]:
    """Scale and zero point of the result."""
    quant = node.result.type.quant
    assert quant is not None
    scales, zeros = _scales_and_zeros(quant)
    return float(scales), int(zeros)


def _int_list(node: Node, name: str) -> list[int]:
    value = _attr(node, name)
    assert isinstance(value, tuple)
    return [int(v) for v in value]  # type: ignore[arg-type]


# -- the ops --------------------------------------------------------------------------------------


def _quantize(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    quant = node.result.type.quant
    assert quant is not None
    kind = {"u8": torch.quint8, "i8": torch.qint8}[str(quant.storage)]
    if quant.axis is None:
        return torch.quantize_per_tensor(operands["x"], *_result(node), kind)
    scales, zeros = _scales_and_zeros(quant)
    channel_params = (
        torch.from_numpy(scales.astype(np.float64)),
        torch.from_numpy(zeros.astype(np.int64)),
    )
    return torch.quantize_per_channel(operands["x"], *channel_params, quant.axis, kind)


def _dequantize(node: Node, operands: Tensors) -> torch.Tensor:
    return operands["x"].dequantize()


def _convolution(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    op, pad = _first_op(node), _int_list(node, "pad")
    before, after = pad[: len(pad) // 2], pad[len(pad) // 2 :]
    if before != after:
        raise OpError("torch pads both sides alike")
    stride, dilation = _int_list(node, "stride"), _int_list(node, "dilation")
    packed = getattr(torch.ops.quantized, f"{op}_prepack")(
        operands["w"], operands.get("bias"), stride, before, dilation, _attr(node, "groups")
    )
    kernel = getattr(torch.ops.quantized, f"{op}{_fused_suffix(node)}")
    addends = [operands[slot] for slot in operands if slot.endswith(".b")]
    result: torch.Tensor = kernel(operands["x"], *addends, packed, *_result(node))
    return result.contiguous()


def _linear(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    packed = torch.ops.quantized.linear_prepack(operands["w"], operands.get("bias"))
    kernel = getattr(torch.ops.quantized, f"linear{_fused_suffix(node)}")
    result: torch.Tensor = kernel(operands["x"], packed, *_result(node))
    return result


def _pairwise(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    kernel = {"add": torch.ops.quantized.add, "mul": torch.ops.quantized.mul}[node.op]
    result: torch.Tensor = kernel(operands["a"], operands["b"], *_result(node))
    return result


def _pointwise(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    if node.op == "sigmoid":
        result: torch.Tensor = torch.ops.quantized.sigmoid(operands["x"], *_result(node))
        return result
    alpha = node.attrs["alpha"]
    leaky: torch.Tensor = torch.ops.quantized.leaky_relu(
        operands["x"], alpha, False, *_result(node)
    )
    return leaky


def _pool(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    if node.op == "global_avg_pool":
        return torch.nn.functional.adaptive_avg_pool2d(operands["x"], 1)
    top, left, *_ = _int_list(node, "pad")
    kernel, stride = _int_list(node, "kernel"), _int_list(node, "stride")
    return torch.nn.functional.avg_pool2d(
        operands["x"], kernel, stride, (top, left), count_include_pad=bool(node.attrs["count_pad"])
    )


def _concat(node: Node, operands: Tensors) -> torch.Tensor:
    import torch

    parts = [operands[slot] for slot in sorted(operands)]
    result: torch.Tensor = torch.ops.quantized.cat(parts, node.attrs["axis"], *_result(node))
    return result


_RUN: Mapping[str, Callable[[Node, Tensors], torch.Tensor]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    **dict.fromkeys(("conv2d", "conv3d"), _convolution),
    "linear": _linear,
    **dict.fromkeys(("add", "mul"), _pairwise),
    **dict.fromkeys(("sigmoid", "leaky_relu"), _pointwise),
    **dict.fromkeys(("avg_pool2d", "global_avg_pool"), _pool),
    "concat": _concat,
}


class Fbgemm(TorchEngine):
    """Engine fbgemm."""

    name = "torch.fbgemm"
    forms = replace(TorchEngine.forms, ops=(*_OPS, "conv3d"))
    engine = "fbgemm"
    settings: ClassVar[Mapping[str, str]] = {"engine": "fbgemm"}


class X86(TorchEngine):
    """Engine x86."""

    name = "torch.x86"
    engine = "x86"
    settings: ClassVar[Mapping[str, str]] = {"engine": "x86"}


class OnednnEngine(TorchEngine):
    """Engine onednn."""

    name = "torch.onednn"
    engine = "onednn"
    forms = replace(
        TorchEngine.forms, tails=(*_FUSED_CHAINS, ("conv2d", "add"), ("conv2d", "add", "relu"))
    )
    settings: ClassVar[Mapping[str, str]] = {"engine": "onednn"}


class Qnnpack(TorchEngine):
    """Engine qnnpack."""

    name = "torch.qnnpack"
    forms = replace(TorchEngine.forms, ops=tuple(op for op in _OPS if op != "sigmoid"))
    engine = "qnnpack"
    settings: ClassVar[Mapping[str, str]] = {"engine": "qnnpack"}


PROBES: tuple[Probe, ...] = (Fbgemm(), X86(), OnednnEngine(), Qnnpack(), Exported())
