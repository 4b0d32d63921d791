"""Operators that TorchScript applies to tensors and that are answered while a program is read.

Sizes, ranks and element types are known from the shapes that PyTorch infers. Quantize, dequantize
and a few others need more than a call of the operator of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ..attempts import DATA_DEPENDENT_CONTROL_FLOW
from ..quantization import IS_EXPLICIT_QUANTIZE
from . import quantized, quantized_tensors
from .builder import is_tensor
from .quantized_tensors import QuantizedTensor
from .scalars import DTYPE_NUMBERS, DTYPES, SCALARS

if TYPE_CHECKING:
    from .interpreter import Interpreter


def _fake_tensor(reader: Interpreter, held: Any) -> Any:
    held = held.node if isinstance(held, QuantizedTensor) else reader.builder.as_node(held)
    return held.meta["val"]


def _size(reader: Interpreter, held: Any, axis: int | None = None) -> Any:
    node = held.node if isinstance(held, QuantizedTensor) else reader.builder.as_node(held)
    if axis is not None:
        return reader.builder.size(node, axis)
    return [reader.builder.size(node, i) for i in range(node.meta["val"].dim())]


def _length(reader: Interpreter, held: Any) -> Any:
    return len(held) if isinstance(held, (list, tuple, dict)) else _size(reader, held, 0)


def _stored_number(reader: Interpreter, held: Any, *rest: Any) -> Any:
    """Returns the number in a stored tensor of one element; a computed one is data-dependent."""
    data = reader.builder.stored_data(held)
    if isinstance(data, torch.Tensor) and data.numel() == 1:
        return data.item()
    raise reader.error(
        f"takes a number out of a tensor that is computed: it {DATA_DEPENDENT_CONTROL_FLOW}"
    )


def _list_item(reader: Interpreter, held: Any, at: Any) -> Any:
    if isinstance(held, (list, tuple, dict)):
        return held[at]
    raise reader.error("indexes a tensor by a number that is computed")


def _slice(reader: Interpreter, held: Any, *rest: Any) -> Any:
    """Slices a list, or a tensor."""
    if isinstance(held, (list, tuple)):
        return SCALARS["aten::slice"](held, *rest)
    if isinstance(held, QuantizedTensor):
        made = reader.builder.add_call(torch.ops.aten.slice.Tensor, held.node, *rest)
        reader.uses_quantized_kernels = True
        return held.with_node(made)
    return reader.builder.add_call(torch.ops.aten.slice.Tensor, held, *rest)


def _dtype_number(reader: Interpreter, held: Any) -> int:
    return DTYPE_NUMBERS[
        held.kind if isinstance(held, QuantizedTensor) else _fake_tensor(reader, held).dtype
    ]


def _quantize(reader: Interpreter, x: Any, scale: Any, zero: Any, kind: int) -> Any:
    reader.quantizes = True
    scale, zero = (_stored_number(reader, h) if is_tensor(h) else h for h in (scale, zero))
    if isinstance(x, (list, tuple)) or isinstance(scale, (list, tuple)):
        raise reader.error("quantizes lists of tensors, which are not read")
    made = quantized_tensors.quantize(reader.builder, x, scale, zero, DTYPES[kind])
    made.node.meta[IS_EXPLICIT_QUANTIZE] = isinstance(x, fx.Node) and x.op != "placeholder"
    return made


def _quantize_channels(reader: Interpreter, x: Any, *rest: Any) -> Any:
    reader.quantizes = True
    scales, zeros, axis, kind = rest
    return quantized_tensors.quantize_channels(reader.builder, x, scales, zeros, axis, DTYPES[kind])


def _dequantize(reader: Interpreter, held: Any) -> Any:
    if isinstance(held, (list, tuple)):
        return [quantized_tensors.dequantize(reader.builder, item) for item in held]
    return quantized_tensors.dequantize(reader.builder, held)


def _int_repr(reader: Interpreter, held: QuantizedTensor) -> fx.Node:
    return held.node


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
    numbers = [held for held in (a, b) if isinstance(held, (int, float))]
    if any(isinstance(held, QuantizedTensor) for held in (a, b)):
        raise reader.error("adds quantized tensors as if they were not; dequantize first")
    target = torch.ops.aten.add.Scalar if numbers else torch.ops.aten.add.Tensor
    return reader.builder.add_call(target, a, b, **({"alpha": rest[0]} if rest else {}))


ANSWERS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::len": _length,
    "aten::dim": lambda reader, held: _fake_tensor(reader, held).dim(),
    "aten::numel": lambda reader, held: int(_fake_tensor(reader, held).numel()),
    "aten::is_floating_point": lambda reader, held: _fake_tensor(reader, held).is_floating_point(),
    "aten::is_complex": lambda reader, held: False,
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
    "aten::q_scale": lambda reader, held: held.scale,
    "aten::q_zero_point": lambda reader, held: held.zero,
    "prim::dtype": _dtype_number,
    "prim::device": lambda reader, held: torch.device("cpu"),
    "prim::layout": lambda reader, held: 0,
    "prim::is_cuda": lambda reader, held: False,
    "prim::is_quantized": lambda reader, held: isinstance(held, QuantizedTensor),
    "prim::requires_grad": lambda reader, held: False,
    "prim::shape": _size,
}
"""Functions by operator; they take precedence over a call of the same operator."""
