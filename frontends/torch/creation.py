"""Operators that create tensors: zeros, full, arange, linspace, eye, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qir.ir.node import Value
from qir.ir.types import Array, TensorType

from .call import OverloadCall, known_dtype
from .elements import array_of
from .reader import KeepCall
from .shape_operands import exact_shape_operand


def _filled(number: float | None, like: bool = False) -> Callable[[OverloadCall], Value]:
    """Returns the converter of an op that fills a tensor with `number`, or with its fill value."""

    def read(call: OverloadCall) -> Value:
        fill = number
        if fill is None:
            fill = call["fill_value" if "fill_value" in call.arguments else "value"]
        if not isinstance(fill, (bool, int, float)):
            raise KeepCall
        dtype = known_dtype(call.result.dtype)
        # A number such as -inf may not fit the type: it is cast as PyTorch casts it.
        with np.errstate(all="ignore"):
            filled = np.asarray([fill]).astype(dtype.carrier)
        shape = call.result.shape
        if all(isinstance(size, int) for size in shape):
            data = np.broadcast_to(filled[0], tuple(shape)).copy()
            array = Array(data, TensorType(data.shape, dtype))
            return call.reader.graph.constant(array, name=call.reader.names(call.node, "filled"))
        if like:
            shape_value = call.add("shape", {"x": call.value("self")})
        else:
            shape_value = exact_shape_operand(call.reader, call.node, call["size"])
        value = Array(filled, TensorType((1,), dtype))
        return call.add("constant_of_shape", {"shape": shape_value}, {"value": value})

    return read


def _range(call: OverloadCall) -> Value:
    start = call.arguments.get("start", 0)
    step = call.arguments.get("step", 1)
    end = call["end"]
    if all(isinstance(v, (int, float)) for v in (start, end, step)):
        return _constant(call, torch.arange(start, end, step, dtype=call.result.dtype))
    # Symbolic bounds are sizes, which are i64 tensors.
    if call.result.dtype != torch.int64:
        raise KeepCall
    operands = {}
    for slot, number in (("start", start), ("limit", end), ("step", step)):
        size = call.reader.size_value(number)
        operands[slot] = call.add("squeeze", {"x": size}, {"axes": (0,)})
    return call.add("range", operands)


def _linear_space(call: OverloadCall) -> Value:
    start, end, steps = call.number("start"), call.number("end"), call.integer("steps")
    return _constant(call, torch.linspace(start, end, steps, dtype=call.result.dtype))


def _constant(call: OverloadCall, data: torch.Tensor) -> Value:
    """Returns a constant of a tensor that PyTorch computed while reading."""
    array = Array(array_of(data), TensorType(tuple(data.shape), known_dtype(call.result.dtype)))
    return call.reader.graph.constant(array, name=call.reader.names(call.node, "range"))


def _evaluate(call: OverloadCall) -> Value:
    """Evaluates an operator without tensor operands, such as a window function."""
    target: Any = call.node.target
    # The device is left out: constants are evaluated on the CPU.
    arguments = {name: argument for name, argument in call.arguments.items() if name != "device"}
    parameters = [
        parameter for parameter in target._schema.arguments if parameter.name in arguments
    ]
    positional = [arguments[parameter.name] for parameter in parameters if not parameter.kwarg_only]
    if not all(isinstance(argument, (int, float, bool)) for argument in positional):
        raise KeepCall
    keywords = {
        parameter.name: arguments[parameter.name]
        for parameter in parameters
        if parameter.kwarg_only and arguments[parameter.name] is not None
    }
    return _constant(call, target(*positional, **keywords))


def _fill_by_tensor(call: OverloadCall) -> Value:
    """Fills a tensor with a tensor of one element."""
    number = call.promote("value", kind=call.result.dtype)[0]
    shape = call.add("shape", {"x": call.value("self")})
    return call.add("expand", {"x": number, "shape": shape})


def _scalar_tensor(call: OverloadCall) -> Value:
    return call.promote("s", kind=call.result.dtype)[0]


OPS = {
    "zeros.default": _filled(0.0),
    "ones.default": _filled(1.0),
    "full.default": _filled(None),
    "zeros_like.default": _filled(0.0, like=True),
    "ones_like.default": _filled(1.0, like=True),
    "full_like.default": _filled(None, like=True),
    "fill.Scalar": _filled(None, like=True),
    "fill.Tensor": _fill_by_tensor,
    "zero.default": _filled(0.0, like=True),
    "new_zeros.default": _filled(0.0),
    "new_ones.default": _filled(1.0),
    "new_full.default": _filled(None),
    "arange.default": _range,
    "arange.start": _range,
    "arange.start_step": _range,
    "linspace.default": _linear_space,
    "scalar_tensor.default": _scalar_tensor,
    **{
        f"{name}.default": _evaluate
        for name in "eye tril_indices triu_indices hann_window hamming_window".split()
    },
    "eye.m": _evaluate,
}
