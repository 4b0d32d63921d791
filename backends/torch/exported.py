"""The probe of exported programs: decomposed ops, and the kernels of oneDNN that inductor
selects."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import QuantType

if TYPE_CHECKING:
    import torch

Array = NDArray[np.generic]


class Exported(Probe):
    """Quantized programs of `torch.export`, with the kernels that inductor replaces their layers
    by.

    Inductor itself is not run, since it compiles for minutes: its fused kernels are called by name.
    """

    name = "torch.pt2e"
    backend = "torch"
    settings: ClassVar[Mapping[str, str]] = {"flow": "pt2e"}
    distributions = ("torch",)
    forms = Forms(
        ("quantize", "dequantize", "conv2d", "linear"),
        bias="real",
        special=("tensor", "channel"),
        weights=("channel",),
        tails=(("conv2d", "relu"), ("linear", "relu")),
        wraps=False,
    )

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        import torch

        importlib.import_module("torch.ao.quantization.fx._decomposed")
        # One thread: results are compared bit by bit, and sums of several threads may differ.
        node, threads = graph["y"].node, torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            first_op = node.stages[0].op if node.stages else node.op
            result = (
                _run_conversion(node, feeds)
                if first_op.endswith("quantize")
                else _run_product(node, feeds)
            )
        except RuntimeError as error:
            raise OpError(" ".join(str(error).split())[:160]) from error
        finally:
            torch.set_num_threads(threads)
        return np.ascontiguousarray(result.numpy())


def _operand_tensor(node: Node, slot: str, feeds: Mapping[str, Array]) -> torch.Tensor:
    import torch

    value = node.operands[slot]
    constant = value.constant
    return torch.from_numpy(np.array(feeds[value.name] if constant is None else constant.data))


def _quant(node: Node, slot: str) -> QuantType:
    quant = (node.operands[slot] if slot else node.result).type.quant
    assert quant is not None
    return quant


def _scale_and_zero(quant: QuantType) -> tuple[float, int]:
    return float(quant.scales()), int(np.asarray(quant.zeros()))


def _run_conversion(node: Node, feeds: Mapping[str, Array]) -> torch.Tensor:
    import torch

    ops = torch.ops.quantized_decomposed
    quant = _quant(node, "" if node.op == "quantize" else "x")
    kind = {"u8": torch.uint8, "i8": torch.int8}[str(quant.storage)]
    low, high = quant.storage.bounds
    x = _operand_tensor(node, "x", feeds)
    if quant.axis is None:
        kernel = getattr(ops, f"{node.op}_per_tensor")
        result: torch.Tensor = kernel(x, *_scale_and_zero(quant), low, high, kind)
        return result
    kernel = getattr(ops, f"{node.op}_per_channel")
    scales, zeros = _channel_parameters(quant)
    result = kernel(x, scales, zeros, quant.axis, low, high, kind)
    return result


def _channel_parameters(quant: QuantType) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    scales = np.atleast_1d(np.asarray(quant.scales()))
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.int64), scales.shape)
    return torch.from_numpy(scales.copy()), torch.from_numpy(zeros.copy())


def _run_product(node: Node, feeds: Mapping[str, Array]) -> torch.Tensor:
    import torch

    ops, anchor = torch.ops.onednn, node.stages[0] if node.stages else node
    x, w = _operand_tensor(node, "x", feeds), _operand_tensor(node, "w", feeds)
    bias = _operand_tensor(node, "bias", feeds) if "bias" in node.operands else None
    input_parameters, output_parameters = (
        _scale_and_zero(_quant(node, "x")),
        _scale_and_zero(_quant(node, "")),
    )
    weight_parameters = _channel_parameters(_quant(node, "w"))
    # The kernels take one scale per result channel, also where all are equal.
    if weight_parameters[0].numel() == 1:
        weight_parameters = (
            weight_parameters[0].expand(len(w)).contiguous(),
            weight_parameters[1].expand(len(w)).contiguous(),
        )
    # What every pointwise kernel takes last: scale, zero point, type, and the fused activation.
    epilogue: tuple[Any, ...] = (
        *output_parameters,
        torch.uint8,
        "relu" if node.stages else "none",
        [],
        "",
    )
    if anchor.op == "linear":
        packed = ops.qlinear_prepack(w, None)
        result: torch.Tensor = ops.qlinear_pointwise(
            x, *input_parameters, packed, *weight_parameters, bias, *epilogue
        )
        return result
    top, left = _int_list(anchor.attrs["pad"])[:2]
    conv_attrs = (
        _int_list(anchor.attrs["stride"]),
        [top, left],
        _int_list(anchor.attrs["dilation"]),
        1,
    )
    packed = ops.qconv_prepack(
        w, weight_parameters[0], *input_parameters, *conv_attrs, list(x.shape)
    )
    result = ops.qconv_pointwise(
        x, *input_parameters, packed, *weight_parameters, bias, *conv_attrs, *epilogue
    )
    return result.contiguous()


def _int_list(value: object) -> list[int]:
    assert isinstance(value, tuple)
    return [int(v) for v in value]
