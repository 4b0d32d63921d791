"""Operators that TorchScript applies to tensors and that are answered while a program is read.

Sizes, ranks and element types are known from the shapes that PyTorch infers. Quantize, dequantize
and a few others need more than a call of the operator of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..export_errors import DATA_DEPENDENT_CONTROL_FLOW
from ..quantization import IS_EXPLICIT_QUANTIZE
from . import quantized, quantized_tensors
from .builder import ScriptBuilder, is_tensor
from .quantized_tensors import QuantizedTensor
from .scalars import DTYPE_NUMBERS, DTYPES, SCALARS


def _fake_tensor(builder: ScriptBuilder, operand: Any) -> Any:
    operand = operand.node if isinstance(operand, QuantizedTensor) else builder.as_node(operand)
    return operand.meta["val"]


def _size(builder: ScriptBuilder, operand: Any, axis: int | None = None) -> Any:
    node = operand.node if isinstance(operand, QuantizedTensor) else builder.as_node(operand)
    if axis is not None:
        return builder.size(node, axis)
    return [builder.size(node, i) for i in range(node.meta["val"].dim())]


def _length(builder: ScriptBuilder, operand: Any) -> Any:
    return len(operand) if isinstance(operand, (list, tuple, dict)) else _size(builder, operand, 0)


def _stored_number(builder: ScriptBuilder, tensor: Any, *rest: Any) -> Any:
    """Returns the number in a stored tensor of one element; a computed one is data-dependent."""
    # Tracing records Python numbers as tensors of one element, whose value is known.
    data = builder.stored_data(tensor)
    if isinstance(data, torch.Tensor) and data.numel() == 1:
        return data.item()
    raise builder.error(
        f"takes a number out of a tensor that is computed: it {DATA_DEPENDENT_CONTROL_FLOW}"
    )


def _list_item(builder: ScriptBuilder, container: Any, index: Any) -> Any:
    if isinstance(container, (list, tuple, dict)):
        return container[index]
    raise builder.error("indexes a tensor by a number that is computed")


def _slice(builder: ScriptBuilder, operand: Any, *rest: Any) -> Any:
    """Slices a list, or a tensor."""
    if isinstance(operand, (list, tuple)):
        return SCALARS["aten::slice"](operand, *rest)
    if isinstance(operand, QuantizedTensor):
        node = builder.add_call(torch.ops.aten.slice.Tensor, operand.node, *rest)
        builder.uses_quantized_kernels = True
        return operand.with_node(node)
    return builder.add_call(torch.ops.aten.slice.Tensor, operand, *rest)


def _dtype_number(builder: ScriptBuilder, operand: Any) -> int:
    return DTYPE_NUMBERS[
        operand.kind
        if isinstance(operand, QuantizedTensor)
        else _fake_tensor(builder, operand).dtype
    ]


def _quantize(builder: ScriptBuilder, x: Any, scale: Any, zero: Any, kind: int) -> Any:
    builder.quantizes = True
    scale, zero = (
        _stored_number(builder, number) if is_tensor(number) else number for number in (scale, zero)
    )
    if isinstance(x, (list, tuple)) or isinstance(scale, (list, tuple)):
        raise builder.error("quantizes lists of tensors, which are not read")
    quantized = quantized_tensors.quantize(builder, x, scale, zero, DTYPES[kind])
    # A quantize of an input is the entry of a quantized network; one of a computed float is a call
    # of its own, which no kernel does as its last step.
    quantized.node.meta[IS_EXPLICIT_QUANTIZE] = isinstance(x, fx.Node) and x.op != "placeholder"
    return quantized


def _quantize_channels(builder: ScriptBuilder, x: Any, *rest: Any) -> Any:
    builder.quantizes = True
    scales, zeros, axis, kind = rest
    return quantized_tensors.quantize_channels(builder, x, scales, zeros, axis, DTYPES[kind])


def _dequantize(builder: ScriptBuilder, operand: Any) -> Any:
    if isinstance(operand, (list, tuple)):
        return [quantized_tensors.dequantize(builder, item) for item in operand]
    return quantized_tensors.dequantize(builder, operand)


def _int_repr(builder: ScriptBuilder, tensor: QuantizedTensor) -> fx.Node:
    return tensor.node


def _dynamic_recurrent(layer: str) -> Callable[..., Any]:
    """Returns the function that reads a dynamic recurrent layer."""

    def read(builder: ScriptBuilder, x: Any, states: Any, cells: Any, *rest: Any) -> Any:
        builder.uses_quantized_kernels = True
        return quantized.recurrent(builder, layer, x, states, cells, rest[:6])

    return read


def _add_or_join(builder: ScriptBuilder, a: Any, b: Any, *rest: Any) -> Any:
    """Concatenates lists, or adds tensors."""
    if isinstance(a, list) and isinstance(b, list):
        return a + b
    # `aten::add` has one name for lists, numbers and tensors: its overload follows from the
    # operands.
    numbers = [operand for operand in (a, b) if isinstance(operand, (int, float))]
    if any(isinstance(operand, QuantizedTensor) for operand in (a, b)):
        raise builder.error("adds quantized tensors as if they were not; dequantize first")
    target = torch.ops.aten.add.Scalar if numbers else torch.ops.aten.add.Tensor
    return builder.add_call(target, a, b, **({"alpha": rest[0]} if rest else {}))


ANSWERS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::len": _length,
    "aten::dim": lambda builder, x: _fake_tensor(builder, x).dim(),
    "aten::numel": lambda builder, x: int(_fake_tensor(builder, x).numel()),
    "aten::is_floating_point": lambda builder, x: _fake_tensor(builder, x).is_floating_point(),
    "aten::is_complex": lambda builder, x: False,
    "aten::Int": _stored_number,
    "aten::Float": _stored_number,
    "aten::Bool": _stored_number,
    "aten::IntImplicit": _stored_number,
    "aten::FloatImplicit": _stored_number,
    "aten::ScalarImplicit": _stored_number,
    "aten::item": _stored_number,
    "aten::__getitem__": _list_item,
    "aten::slice": _slice,
    "aten::add": _add_or_join,
    "aten::quantize_per_tensor": _quantize,
    "aten::quantized_lstm": _dynamic_recurrent("lstm"),
    "aten::quantized_gru": _dynamic_recurrent("gru"),
    "aten::quantize_per_channel": _quantize_channels,
    "aten::dequantize": _dequantize,
    "aten::int_repr": _int_repr,
    "aten::q_scale": lambda builder, x: x.scale,
    "aten::q_zero_point": lambda builder, x: x.zero,
    "prim::dtype": _dtype_number,
    "prim::device": lambda builder, x: torch.device("cpu"),
    "prim::layout": lambda builder, x: 0,
    "prim::is_cuda": lambda builder, x: False,
    "prim::is_quantized": lambda builder, x: isinstance(x, QuantizedTensor),
    "prim::requires_grad": lambda builder, x: False,
    "prim::shape": _size,
}
"""Functions by operator; they take precedence over a call of the same operator."""
