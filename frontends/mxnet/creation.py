"""Tensors of numbers that are known, and the shapes of others."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from qir.ir.dtype import DType
from qir.ir.node import Value

from . import sizes
from .call import Made, SymbolCall, Unset, Unsupported

_MOST = 1 << 24
"""Elements that a constant may have which a file does not hold."""


def _filled(call: SymbolCall, number: float) -> Made:
    call.skip("ctx")
    shape, kind = call.attrs.wholes("shape"), call.kind()
    if number == 0 and (not shape or 0 in shape or -1 in shape):
        return Unset(shape)
    if not shape or min(shape) < 1 or prod(shape) > _MOST:
        raise Unsupported(f"its shape is {shape}")
    return call.constant(np.full(shape, number, kind.carrier), "filled")


def _like(number: float) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        x = call.value(0)
        kind: DType = x.type.dtype
        return call.add(
            "expand", {"x": call.number(number, kind), "shape": sizes.whole_shape(call, x)}
        )

    return read


def _arange(call: SymbolCall) -> Value:
    call.skip("ctx", "infer_range")
    start, step = call.attrs.real("start", 0.0), call.attrs.real("step", 1.0)
    kind, repeat = call.kind(), call.attrs.whole("repeat", 1)
    if not call.attrs.given("stop"):
        call.skip("stop")
        start, stop = 0.0, start
    else:
        stop = call.attrs.real("stop")
    if not step or not 0 <= (stop - start) / step <= _MOST or not 1 <= repeat < _MOST:
        raise Unsupported(f"it counts from {start} to {stop} by {step}")
    found = np.repeat(np.arange(start, stop, step), repeat)
    return call.constant(found.astype(kind.carrier), "range")


def _shape(call: SymbolCall) -> Value:
    return call.add("shape", {"x": call.value(0)})


OPS: dict[str, Callable[[SymbolCall], Made]] = {
    "_zeros": lambda call: _filled(call, 0.0),
    "_ones": lambda call: _filled(call, 1.0),
    "_full": lambda call: _filled(call, call.attrs.real("value")),
    "_arange": _arange,
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "shape_array": _shape,
}
