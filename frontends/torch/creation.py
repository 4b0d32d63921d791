"""Operators that create tensors: zeros, full, arange, linspace, eye, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qir.ir.node import Value
from qir.ir.types import Array, TensorType

from . import sizes
from .call import KeepCall, OverloadCall, known_dtype
from .elements import array_of


def _filled(number: float | None, like: bool = False) -> Callable[[OverloadCall], Value]:
    """Returns the converter of an op that fills a tensor with `number`, or with its fill value."""

    def read(call: OverloadCall) -> Value:
        held = number
        if held is None:
            held = call["fill_value" if "fill_value" in call.arguments else "value"]
        if not isinstance(held, (bool, int, float)):
            raise KeepCall
        kind = known_dtype(call.result.dtype)
        with np.errstate(all="ignore"):
            one = np.asarray([held]).astype(kind.carrier)
        shape = call.result.shape
        if all(isinstance(size, int) for size in shape):
            data = np.broadcast_to(one[0], tuple(shape)).copy()
            array = Array(data, TensorType(data.shape, kind))
            return call.reader.graph.constant(array, name=call.reader.names(call.node, "filled"))
        if like:
            wanted = call.add("shape", {"x": call.value("self")})
        else:
            wanted = sizes.exact_shape_operand(call.reader, call.node, call["size"])
        value = Array(one, TensorType((1,), kind))
        return call.add("constant_of_shape", {"shape": wanted}, {"value": value})

    return read


def _range(call: OverloadCall) -> Value:
    start = call.arguments.get("start", 0)
    step = call.arguments.get("step", 1)
    end = call["end"]
    if all(isinstance(v, (int, float)) for v in (start, end, step)):
        return _constant(call, torch.arange(start, end, step, dtype=call.result.dtype))
    if call.result.dtype != torch.int64:
        raise KeepCall
    operands = {}
    for slot, held_one in (("start", start), ("limit", end), ("step", step)):
        row = call.reader.size_value(held_one)
        operands[slot] = call.add("squeeze", {"x": row}, {"axes": (0,)})
    return call.add("range", operands)


def _linear_space(call: OverloadCall) -> Value:
    start, end, steps = call.number("start"), call.number("end"), call.integer("steps")
    return _constant(call, torch.linspace(start, end, steps, dtype=call.result.dtype))


def _constant(call: OverloadCall, data: torch.Tensor) -> Value:
    """Returns a constant of a tensor that PyTorch computed while reading."""
    held = Array(array_of(data), TensorType(tuple(data.shape), known_dtype(call.result.dtype)))
    return call.reader.graph.constant(held, name=call.reader.names(call.node, "range"))


def _evaluate(call: OverloadCall) -> Value:
    """Evaluates an operator without tensor operands, such as a window function."""
    target: Any = call.node.target
    given = {name: held for name, held in call.arguments.items() if name != "device"}
    places = [f for f in target._schema.arguments if f.name in given]
    positional = [given[f.name] for f in places if not f.kwarg_only]
    if not all(isinstance(held, (int, float, bool)) for held in positional):
        raise KeepCall
    named = {f.name: given[f.name] for f in places if f.kwarg_only and given[f.name] is not None}
    return _constant(call, target(*positional, **named))


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
