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
_ROWS = (("conv2d", "relu"), ("linear", "relu"))


class TorchEngine(Probe):
    """Quantized tensors under one engine, on one thread."""

    backend = "torch"
    distributions = ("torch",)
    forms = Forms(_OPS, bias="real", special=("tensor", "channel"), tails=_ROWS, depthwise=True)
    engine: ClassVar[str]

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        import torch

        if self.engine not in torch.backends.quantized.supported_engines:
            raise OpError(f"this torch has no engine {self.engine}")
        node = graph["y"].node
        if node.op == "choose_qparams":
            return _chosen(self.engine, graph, feeds["x"])
        with _under(self.engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantized tensors are deprecated, which is known
            given = {slot: _tensor(node, slot, feeds) for slot in node.operands}
            try:
                made = _RUN[_head(node)](node, given)
            except RuntimeError as error:
                raise OpError(" ".join(str(error).split())[:160]) from error
            found = made.int_repr() if made.is_quantized else made
            return np.asarray(found.numpy())


def _chosen(engine: str, graph: Graph, ranges: Array) -> Array:
    """Scales or zero points by the kind of observer that an engine's configuration names."""
    import torch
    from torch.ao.quantization import PerChannelMinMaxObserver, get_default_qconfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = get_default_qconfig(engine).activation()  # type: ignore[no-untyped-call]
        observer = PerChannelMinMaxObserver(
            dtype=torch.quint8,
            qscheme=torch.per_channel_affine,
            reduce_range=named.reduce_range,
            eps=float(named.eps),
        )
        observer(torch.from_numpy(np.array(ranges)))
        found = observer.calculate_qparams()
    wanted = graph.outputs["y"]
    made = found[graph["y"].node.results.index(wanted)].numpy()
    return np.asarray(made.reshape(-1, 1).astype(wanted.type.dtype.carrier))


def _head(node: Node) -> str:
    """Returns the op, or the first of a row of them."""
    return node.stages[0].op if node.stages else node.op


def _tail(node: Node) -> str:
    """Returns what the name of a kernel adds for the ops after the first."""
    return "".join(f"_{stage.op}" for stage in node.stages[1:])


def _attr(node: Node, name: str) -> Attr:
    return (node.stages[0] if node.stages else node).attrs[name]


@contextmanager
def _under(engine: str) -> Iterator[None]:
    """An engine and one thread, for a while."""
    import torch

    before = torch.backends.quantized.engine, torch.get_num_threads()
    torch.backends.quantized.engine = engine
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.quantized.engine = before[0]
        torch.set_num_threads(before[1])


def _tensor(node: Node, slot: str, feeds: Mapping[str, Array]) -> torch.Tensor:
    """Returns an operand as torch holds it."""
    value = node.operands[slot]
    held = value.constant
    data = feeds[value.name] if held is None else held.data
    return _coded(np.ascontiguousarray(data), value.type)


def _coded(data: Array, kind: TensorType) -> torch.Tensor:
    import torch

    plain = torch.from_numpy(data.copy())
    quant = kind.quant
    if quant is None:
        return plain
    scales, zeros = _numbers(quant)
    if quant.axis is None:
        return torch._make_per_tensor_quantized_tensor(plain, float(scales), int(zeros))
    many = torch.from_numpy(scales.astype(np.float64)), torch.from_numpy(zeros.astype(np.int64))
    return torch._make_per_channel_quantized_tensor(plain, *many, quant.axis)


def _numbers(quant: QuantType) -> tuple[Array, Array]:
    scales = np.asarray(quant.scales())
    zeros = np.broadcast_to(np.asarray(quant.zeros()), scales.shape)
    return scales, np.array(zeros)


def _result(node: Node) -> tuple[float, int]:
    """Scale and zero point of the result."""
    quant = node.result.type.quant
    assert quant is not None
    scales, zeros = _numbers(quant)
    return float(scales), int(zeros)


def _whole(node: Node, name: str) -> list[int]:
    value = _attr(node, name)
    assert isinstance(value, tuple)
    return [int(v) for v in value]  # type: ignore[arg-type]


# -- the ops --------------------------------------------------------------------------------------


def _quantize(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    quant = node.result.type.quant
    assert quant is not None
    kind = {"u8": torch.quint8, "i8": torch.qint8}[str(quant.storage)]
    if quant.axis is None:
        return torch.quantize_per_tensor(given["x"], *_result(node), kind)
    scales, zeros = _numbers(quant)
    many = torch.from_numpy(scales.astype(np.float64)), torch.from_numpy(zeros.astype(np.int64))
    return torch.quantize_per_channel(given["x"], *many, quant.axis, kind)


def _dequantize(node: Node, given: Tensors) -> torch.Tensor:
    return given["x"].dequantize()


def _convolution(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    op, pad = _head(node), _whole(node, "pad")
    before, after = pad[: len(pad) // 2], pad[len(pad) // 2 :]
    if before != after:
        raise OpError("torch pads both sides alike")
    stride, dilation = _whole(node, "stride"), _whole(node, "dilation")
    packed = getattr(torch.ops.quantized, f"{op}_prepack")(
        given["w"], given.get("bias"), stride, before, dilation, _attr(node, "groups")
    )
    kernel = getattr(torch.ops.quantized, f"{op}{_tail(node)}")
    beside = [given[slot] for slot in given if slot.endswith(".b")]
    made: torch.Tensor = kernel(given["x"], *beside, packed, *_result(node))
    return made.contiguous()


def _linear(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    packed = torch.ops.quantized.linear_prepack(given["w"], given.get("bias"))
    kernel = getattr(torch.ops.quantized, f"linear{_tail(node)}")
    made: torch.Tensor = kernel(given["x"], packed, *_result(node))
    return made


def _pairwise(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    kernel = {"add": torch.ops.quantized.add, "mul": torch.ops.quantized.mul}[node.op]
    made: torch.Tensor = kernel(given["a"], given["b"], *_result(node))
    return made


def _pointwise(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    if node.op == "sigmoid":
        made: torch.Tensor = torch.ops.quantized.sigmoid(given["x"], *_result(node))
        return made
    alpha = node.attrs["alpha"]
    leaky: torch.Tensor = torch.ops.quantized.leaky_relu(given["x"], alpha, False, *_result(node))
    return leaky


def _pool(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    if node.op == "global_avg_pool":
        return torch.nn.functional.adaptive_avg_pool2d(given["x"], 1)
    top, left, *_ = _whole(node, "pad")
    kernel, stride = _whole(node, "kernel"), _whole(node, "stride")
    return torch.nn.functional.avg_pool2d(
        given["x"], kernel, stride, (top, left), count_include_pad=bool(node.attrs["count_pad"])
    )


def _concat(node: Node, given: Tensors) -> torch.Tensor:
    import torch

    parts = [given[slot] for slot in sorted(given)]
    made: torch.Tensor = torch.ops.quantized.cat(parts, node.attrs["axis"], *_result(node))
    return made


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
    forms = replace(TorchEngine.forms, tails=(*_ROWS, ("conv2d", "add"), ("conv2d", "add", "relu")))
    settings: ClassVar[Mapping[str, str]] = {"engine": "onednn"}


class Qnnpack(TorchEngine):
    """Engine qnnpack."""

    name = "torch.qnnpack"
    forms = replace(TorchEngine.forms, ops=tuple(op for op in _OPS if op != "sigmoid"))
    engine = "qnnpack"
    settings: ClassVar[Mapping[str, str]] = {"engine": "qnnpack"}


PROBES: tuple[Probe, ...] = (Fbgemm(), X86(), OnednnEngine(), Qnnpack(), Exported())
