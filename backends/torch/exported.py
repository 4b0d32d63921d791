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
        node, threads = graph["y"].node, torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            head = node.stages[0].op if node.stages else node.op
            made = (
                _run_conversion(node, feeds)
                if head.endswith("quantize")
                else _run_product(node, feeds)
            )
        except RuntimeError as error:
            raise OpError(" ".join(str(error).split())[:160]) from error
        finally:
            torch.set_num_threads(threads)
        return np.ascontiguousarray(made.numpy())


def _operand_tensor(node: Node, slot: str, feeds: Mapping[str, Array]) -> torch.Tensor:
    import torch

    value = node.operands[slot]
    held = value.constant
    return torch.from_numpy(np.array(feeds[value.name] if held is None else held.data))


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
        made: torch.Tensor = kernel(x, *_scale_and_zero(quant), low, high, kind)
        return made
    kernel = getattr(ops, f"{node.op}_per_channel")
    scales, zeros = _channel_parameters(quant)
    made = kernel(x, scales, zeros, quant.axis, low, high, kind)
    return made


def _channel_parameters(quant: QuantType) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    scales = np.atleast_1d(np.asarray(quant.scales()))
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.int64), scales.shape)
    return torch.from_numpy(scales.copy()), torch.from_numpy(zeros.copy())


def _run_product(node: Node, feeds: Mapping[str, Array]) -> torch.Tensor:
    import torch

    ops, first = torch.ops.onednn, node.stages[0] if node.stages else node
    x, w = _operand_tensor(node, "x", feeds), _operand_tensor(node, "w", feeds)
    bias = _operand_tensor(node, "bias", feeds) if "bias" in node.operands else None
    given, made = _scale_and_zero(_quant(node, "x")), _scale_and_zero(_quant(node, ""))
    numbers = _channel_parameters(_quant(node, "w"))
    if numbers[0].numel() == 1:
        numbers = (numbers[0].expand(len(w)).contiguous(), numbers[1].expand(len(w)).contiguous())
    end: tuple[Any, ...] = (*made, torch.uint8, "relu" if node.stages else "none", [], "")
    if first.op == "linear":
        packed = ops.qlinear_prepack(w, None)
        found: torch.Tensor = ops.qlinear_pointwise(x, *given, packed, *numbers, bias, *end)
        return found
    top, left = _int_list(first.attrs["pad"])[:2]
    sides = (_int_list(first.attrs["stride"]), [top, left], _int_list(first.attrs["dilation"]), 1)
    packed = ops.qconv_prepack(w, numbers[0], *given, *sides, list(x.shape))
    found = ops.qconv_pointwise(x, *given, packed, *numbers, bias, *sides, *end)
    return found.contiguous()


def _int_list(value: object) -> list[int]:
    assert isinstance(value, tuple)
    return [int(v) for v in value]
