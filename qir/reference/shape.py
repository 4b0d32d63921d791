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
    target = [int(size) for size in shape]
    for i, size in enumerate(target):
        if size == 0 and not allow_zero:
            if i >= x.ndim:
                raise OpError(f"reshape: shape {target} copies axis {i}, x has {x.ndim} axes")
            target[i] = x.shape[i]
    if min(target, default=0) < -1 or target.count(-1) > 1:
        raise OpError(f"reshape: shape {target} may leave one size open, as -1")
    known_product = math.prod(size for size in target if size != -1)
    if -1 in target and not known_product:
        raise OpError(f"reshape: shape {target} leaves a size open next to one of 0")
    if -1 in target:
        target[target.index(-1)] = x.size // known_product
    if math.prod(target) != x.size:
        raise OpError(f"reshape: x {list(x.shape)} does not hold as many elements as {target}")
    return x.reshape(target)


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
    # Negative pads crop first; what is added then copies from the elements that are left.
    x = x[tuple(_cropped_slice(i, x.shape[i], before[i], after[i]) for i in range(x.ndim))]
    added = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        return _pad_with_value(x, added, value)
    # NumPy's own message names no axis.
    for i, (size, sides) in enumerate(zip(x.shape, added, strict=True)):
        if max(sides) and not size:
            raise OpError(f"pad: axis {i} of {size} is too short for {mode} pads {sides}")
    return np.pad(x, added, mode) if added else x  # type: ignore[call-overload]


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _cropped_slice(axis: int, size: int, before: int, after: int) -> slice:
    start, stop = max(-before, 0), size - max(-after, 0)
    if start > stop:
        raise OpError(f"pad: pads {before}, {after} take away more than axis {axis} has, {size}")
    return slice(start, stop)


def _pad_with_value(x: Array, added: list[tuple[int, int]], value: float) -> Array:
    shape = [b + size + a for size, (b, a) in zip(x.shape, added, strict=True)]
    out = np.full(shape, _fill_value(x, value), x.dtype)
    out[tuple(slice(b, b + size) for size, (b, _) in zip(x.shape, added, strict=True))] = x
    return out


def _fill_value(x: Array, value: float) -> Array:
    kind = dtype_of(x)
    if kind.is_float:
        return round_to_dtype(np.array(value, np.float64), x.dtype)
    low, high = (0, 1) if kind.name == "bool" else kind.bounds
    if not (low <= value <= high and value == int(value)):
        raise OpError(f"pad: value {value} is no {kind}")
    return np.array(int(value)).astype(x.dtype)
