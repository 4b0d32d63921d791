"""zeros, ones, full, arange, zeros_like, ones_like and shape_array."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from qir.ir.dtype import DType
from qir.ir.node import Value

from . import sizes
from .call import SymbolCall
from .results import Result, ShapelessZeros, Unsupported

_MAX_ELEMENTS = 1 << 24
"""Elements of a constant that is not stored in the file, at most."""


def _filled(call: SymbolCall, number: float) -> Result:
    call.ignore("ctx")
    shape, dtype = call.attrs.integers("shape"), call.dtype()
    if number == 0 and (not shape or 0 in shape or -1 in shape):
        return ShapelessZeros(shape)
    if not shape or min(shape) < 1 or prod(shape) > _MAX_ELEMENTS:
        raise Unsupported(f"its shape is {shape}")
    return call.constant(np.full(shape, number, dtype.carrier), "filled")


def _like(number: float) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        x = call.value(0)
        dtype: DType = x.type.dtype
        return call.add(
            "expand", {"x": call.number(number, dtype), "shape": sizes.shape_of_value(call, x)}
        )

    return read


def _arange(call: SymbolCall) -> Value:
    call.ignore("ctx", "infer_range")
    start, step = call.attrs.number("start", 0.0), call.attrs.number("step", 1.0)
    dtype, repeat = call.dtype(), call.attrs.integer("repeat", 1)
    if not call.attrs.is_given("stop"):
        call.ignore("stop")
        # As in NumPy, one number alone is the end.
        start, stop = 0.0, start
    else:
        stop = call.attrs.number("stop")
    if (
        not step
        or not 0 <= (stop - start) / step <= _MAX_ELEMENTS
        or not 1 <= repeat < _MAX_ELEMENTS
    ):
        raise Unsupported(f"it counts from {start} to {stop} by {step}")
    numbers = np.repeat(np.arange(start, stop, step), repeat)
    return call.constant(numbers.astype(dtype.carrier), "range")


def _shape(call: SymbolCall) -> Value:
    return call.add("shape", {"x": call.value(0)})


OPS: dict[str, Callable[[SymbolCall], Result]] = {
    "_zeros": lambda call: _filled(call, 0.0),
    "_ones": lambda call: _filled(call, 1.0),
    "_full": lambda call: _filled(call, call.attrs.number("value")),
    "_arange": _arange,
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "shape_array": _shape,
}
