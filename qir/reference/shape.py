"""Ops that move elements and compute none; a result may be a view of an operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qir.errors import OpError
from qir.ir.dtype import dtype_of
from qir.ir.ops.shape import PADS
from qir.reference.operands import Array, int_tuple, normalize_axis, round_to_dtype


def reshape(x: Array, shape: Array, *, allow_zero: bool = False) -> Array:
    """x in ONNX's target shape: 0 copies a size, -1 is what remains; OpError for misfits."""
    if shape.ndim != 1 or shape.dtype.kind not in "iu":
        raise OpError(f"reshape: shape is {shape.dtype}{list(shape.shape)}, it takes one i64 row")
    wanted = [int(size) for size in shape]
    for i, size in enumerate(wanted):
        if size == 0 and not allow_zero:
            if i >= x.ndim:
                raise OpError(f"reshape: shape {wanted} copies axis {i}, x has {x.ndim} axes")
            wanted[i] = x.shape[i]
    if min(wanted, default=0) < -1 or wanted.count(-1) > 1:
        raise OpError(f"reshape: shape {wanted} may leave one size open, as -1")
    known = math.prod(size for size in wanted if size != -1)
    if -1 in wanted and not known:
        raise OpError(f"reshape: shape {wanted} leaves a size open next to one of 0")
    if -1 in wanted:
        wanted[wanted.index(-1)] = x.size // known
    if math.prod(wanted) != x.size:
        raise OpError(f"reshape: x {list(x.shape)} does not hold as many elements as {wanted}")
    return x.reshape(wanted)


def flatten(x: Array, *, axis: int = 1) -> Array:
    """x as a matrix, the axes before `axis` its rows; OpError if there is no such axis."""
    if not -x.ndim <= axis <= x.ndim:
        raise OpError(f"flatten: axis {axis}, but x has {x.ndim} axes")
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def transpose(x: Array, *, perm: Sequence[int]) -> Array:
    """x with its axes in the order of `perm`; OpError if that is no order of them."""
    if sorted(perm) != list(range(x.ndim)):
        raise OpError(f"transpose: perm {tuple(perm)} does not order the {x.ndim} axes of x")
    return x.transpose(tuple(perm))


def concat(xs: Sequence[Array], *, axis: int) -> Array:
    """Returns the parts one after the other along the axis; raises OpError if they do not fit."""
    if not xs:
        raise OpError("concat: nothing to join")
    first = xs[0]
    axis = normalize_axis("concat", axis, first.ndim)
    for i, x in enumerate(xs):
        if x.dtype != first.dtype:
            raise OpError(f"concat: xs.0 is {dtype_of(first)}, xs.{i} is {dtype_of(x)}")
        if _without(x.shape, axis) != _without(first.shape, axis) or x.ndim != first.ndim:
            shapes = f"xs.0 {list(first.shape)} and xs.{i} {list(x.shape)}"
            raise OpError(f"concat: {shapes} differ on more than axis {axis}")
    return np.concatenate(xs, axis=axis)


def pad(x: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Array:
    """x with `pads` more elements before and after each axis, less where negative, as `numpy.pad`
    has the modes; OpError where nothing is left to cut from or to copy."""
    if mode not in PADS:
        raise OpError(f"pad: mode {mode!r} is not one of {', '.join(PADS)}")
    counts = int_tuple("pad", "pads", pads, 2 * x.ndim, -(1 << 62))
    before, after = counts[: x.ndim], counts[x.ndim :]
    x = x[tuple(_kept(i, x.shape[i], before[i], after[i]) for i in range(x.ndim))]
    more = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        return _framed(x, more, value)
    for i, (size, sides) in enumerate(zip(x.shape, more, strict=True)):
        if max(sides) and not size:
            raise OpError(f"pad: axis {i} of {size} is too short for {mode} pads {sides}")
    return np.pad(x, more, mode) if more else x  # type: ignore[call-overload]


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _kept(axis: int, size: int, before: int, after: int) -> slice:
    start, stop = max(-before, 0), size - max(-after, 0)
    if start > stop:
        raise OpError(f"pad: pads {before}, {after} take away more than axis {axis} has, {size}")
    return slice(start, stop)


def _framed(x: Array, more: list[tuple[int, int]], value: float) -> Array:
    shape = [b + size + a for size, (b, a) in zip(x.shape, more, strict=True)]
    out = np.full(shape, _filling(x, value), x.dtype)
    out[tuple(slice(b, b + size) for size, (b, _) in zip(x.shape, more, strict=True))] = x
    return out


def _filling(x: Array, value: float) -> Array:
    kind = dtype_of(x)
    if kind.is_float:
        return round_to_dtype(np.array(value, np.float64), x.dtype)
    low, high = (0, 1) if kind.name == "bool" else kind.bounds
    if not (low <= value <= high and value == int(value)):
        raise OpError(f"pad: value {value} is no {kind}")
    return np.array(int(value)).astype(x.dtype)
