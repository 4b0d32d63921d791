"""Operators that TorchScript applies to tensors and that are answered while a program is read.

Sizes, ranks and element types are known from the shapes that PyTorch infers. Quantize, dequantize
and a few others need more than a call of the operator of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ..export_errors import DATA_DEPENDENT_CONTROL_FLOW
from ..quantization import IS_EXPLICIT_QUANTIZE
from . import quantized, quantized_tensors
from .builder import is_tensor
from .quantized_tensors import QuantizedTensor
from .scalars import DTYPE_NUMBERS, DTYPES, SCALARS

if TYPE_CHECKING:
    from .interpreter import Interpreter


def _fake_tensor(reader: Interpreter, operand: Any) -> Any:
    operand = (
        operand.node if isinstance(operand, QuantizedTensor) else reader.builder.as_node(operand)
    )
    return operand.meta["val"]


def _size(reader: Interpreter, operand: Any, axis: int | None = None) -> Any:
    node = operand.node if isinstance(operand, QuantizedTensor) else reader.builder.as_node(operand)
    if axis is not None:
        return reader.builder.size(node, axis)
    return [reader.builder.size(node, i) for i in range(node.meta["val"].dim())]


def _length(reader: Interpreter, operand: Any) -> Any:
    return len(operand) if isinstance(operand, (list, tuple, dict)) else _size(reader, operand, 0)


def _stored_number(reader: Interpreter, tensor: Any, *rest: Any) -> Any:
    """Returns the number in a stored tensor of one element; a computed one is data-dependent."""
    # Tracing records Python numbers as tensors of one element, whose value is known.
    data = reader.builder.stored_data(tensor)
    if isinstance(data, torch.Tensor) and data.numel() == 1:
        return data.item()
    raise reader.error(
        f"takes a number out of a tensor that is computed: it {DATA_DEPENDENT_CONTROL_FLOW}"
    )


def _list_item(reader: Interpreter, container: Any, index: Any) -> Any:
    if isinstance(container, (list, tuple, dict)):
        return container[index]
    raise reader.error("indexes a tensor by a number that is computed")


def _slice(reader: Interpreter, operand: Any, *rest: Any) -> Any:
    """Slices a list, or a tensor."""
    if isinstance(operand, (list, tuple)):
        return SCALARS["aten::slice"](operand, *rest)
    if isinstance(operand, QuantizedTensor):
        node = reader.builder.add_call(torch.ops.aten.slice.Tensor, operand.node, *rest)
        reader.uses_quantized_kernels = True
        return operand.with_node(node)
    return reader.builder.add_call(torch.ops.aten.slice.Tensor, operand, *rest)


def _dtype_number(reader: Interpreter, operand: Any) -> int:
    return DTYPE_NUMBERS[
        operand.kind
        if isinstance(operand, QuantizedTensor)
        else _fake_tensor(reader, operand).dtype
    ]


def _quantize(reader: Interpreter, x: Any, scale: Any, zero: Any, kind: int) -> Any:
    reader.quantizes = True
    scale, zero = (
        _stored_number(reader, number) if is_tensor(number) else number for number in (scale, zero)
    )
    if isinstance(x, (list, tuple)) or isinstance(scale, (list, tuple)):
        raise reader.error("quantizes lists of tensors, which are not read")
    quantized = quantized_tensors.quantize(reader.builder, x, scale, zero, DTYPES[kind])
    # A quantize of an input is the entry of a quantized network; one of a computed float is a call
    # of its own, which no kernel does as its last step.
    quantized.node.meta[IS_EXPLICIT_QUANTIZE] = isinstance(x, fx.Node) and x.op != "placeholder"
    return quantized


def _quantize_channels(reader: Interpreter, x: Any, *rest: Any) -> Any:
    reader.quantizes = True
    scales, zeros, axis, kind = rest
    return quantized_tensors.quantize_channels(reader.builder, x, scales, zeros, axis, DTYPES[kind])


def _dequantize(reader: Interpreter, operand: Any) -> Any:
    if isinstance(operand, (list, tuple)):
        return [quantized_tensors.dequantize(reader.builder, item) for item in operand]
    return quantized_tensors.dequantize(reader.builder, operand)


def _int_repr(reader: Interpreter, tensor: QuantizedTensor) -> fx.Node:
    return tensor.node


def _dynamic_recurrent(layer: str) -> Callable[..., Any]:
    """Returns the function that reads a dynamic recurrent layer."""

    def read(reader: Interpreter, x: Any, states: Any, cells: Any, *rest: Any) -> Any:
        reader.uses_quantized_kernels = True
        return quantized.recurrent(reader.builder, layer, x, states, cells, rest[:6])

    return read


def _add_or_join(reader: Interpreter, a: Any, b: Any, *rest: Any) -> Any:
    """Concatenates lists, or adds tensors."""
    if isinstance(a, list) and isinstance(b, list):
        return a + b
    # `aten::add` has one name for lists, numbers and tensors: its overload follows from the
    # operands.
    numbers = [operand for operand in (a, b) if isinstance(operand, (int, float))]
    if any(isinstance(operand, QuantizedTensor) for operand in (a, b)):
        raise reader.error("adds quantized tensors as if they were not; dequantize first")
    target = torch.ops.aten.add.Scalar if numbers else torch.ops.aten.add.Tensor
    return reader.builder.add_call(target, a, b, **({"alpha": rest[0]} if rest else {}))


ANSWERS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::len": _length,
    "aten::dim": lambda reader, x: _fake_tensor(reader, x).dim(),
    "aten::numel": lambda reader, x: int(_fake_tensor(reader, x).numel()),
    "aten::is_floating_point": lambda reader, x: _fake_tensor(reader, x).is_floating_point(),
    "aten::is_complex": lambda reader, x: False,
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
    "aten::q_scale": lambda reader, x: x.scale,
    "aten::q_zero_point": lambda reader, x: x.zero,
    "prim::dtype": _dtype_number,
    "prim::device": lambda reader, x: torch.device("cpu"),
    "prim::layout": lambda reader, x: 0,
    "prim::is_cuda": lambda reader, x: False,
    "prim::is_quantized": lambda reader, x: isinstance(x, QuantizedTensor),
    "prim::requires_grad": lambda reader, x: False,
    "prim::shape": _size,
}
"""Functions by operator; they take precedence over a call of the same operator."""
