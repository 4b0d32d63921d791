"""Ops, and a method that says how a runtime computes one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I64
from qir.ir.ops import AttrSpec, Call, Elsewhere, OpSpec, PluginOp, Slot, Traits
from qir.ir.types import TensorType
from qir.profiles import PluginMethod
from qir.reference.method import MethodCall as CodesCall


def _like_x(call: Call) -> tuple[TensorType, ...]:
    """The result has the type of x, a float."""
    if not call.express("x").is_float:
        raise call.fail(f"x holds {call.express('x')}, a float is required")
    return (TensorType(call.shape("x"), call.express("x")),)


def hush(x: NDArray[np.generic], loudness: float) -> NDArray[np.generic]:
    """x where it is louder than that, else 0."""
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) > loudness, wide, 0).astype(x.dtype)


HUSH = PluginOp(
    OpSpec(
        "acme_hush",
        (Slot("x"),),
        _like_x,
        (AttrSpec("loudness", "float", 0.5),),
        Traits(elementwise=True),
        doc="x, or 0 where it is no louder than loudness",
    ),
    hush,
    {"onnx": Elsewhere("com.acme", "Hush", attrs={"loudness": "level"})},
)


def _rows(call: Call) -> tuple[TensorType, ...]:
    """The rows of all operands, and how many there are: two results."""
    parts = call.variadic("xs")
    if any(len(part.shape) != 2 for part in parts):
        raise call.fail("every operand has two axes")
    if len({part.shape[1] for part in parts}) > 1 or len({part.express for part in parts}) > 1:
        raise call.fail("all rows are of one size and one type")
    sizes = [part.shape[0] for part in parts]
    total = sum(s for s in sizes if isinstance(s, int)) if all(map(_known, sizes)) else None
    return (
        TensorType((total, parts[0].shape[1]), parts[0].express),
        TensorType((), I64),
    )


def _known(size: object) -> bool:
    return isinstance(size, int)


def rows(xs: list[NDArray[np.generic]]) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """All rows, and how many."""
    made = np.concatenate(xs)
    return made, np.array(len(made), np.int64)


ROWS = PluginOp(
    OpSpec(
        "acme_rows",
        (Slot("xs", variadic=True),),
        _rows,
        results=2,
        doc="the rows of all operands, and how many there are",
    ),
    rows,
    examples=[({"xs.0": np.ones((2, 3), np.float32), "xs.1": np.zeros((1, 3), np.float32)}, {})],
)


def cut(call: CodesCall, arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
    """relu on integers: through floats in float32, halves away from zero."""
    x, out = call.affine("x"), call.out
    assert out is not None
    floats = (arrays["x"].astype(np.float32) - np.float32(x.zero)) * np.float32(x.scale)
    steps = np.maximum(floats, np.float32(0)) / np.float32(out.scale)
    quantized = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + np.float32(out.zero)
    made: NDArray[np.generic] = np.clip(quantized, out.low, out.high).astype(out.carrier)
    return made


CUT = PluginMethod(cut, ("relu",))
