"""Ops that pick, repeat and rearrange elements and compute none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.errors import OpError
from qir.ir.ops.moves import slice_indices
from qir.reference.operands import Array, normalize_axis, require_rank


def axes_of(op: str, axes: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns the axes counted from the front; raises OpError for one that is not there, or there
    twice."""
    positive_axes = tuple(normalize_axis(op, a, count) for a in axes)
    if len(set(positive_axes)) < len(positive_axes):
        raise OpError(f"{op}: axes {tuple(axes)} name one axis twice")
    return positive_axes


def identity(x: Array) -> Array:
    """x itself."""
    return x


def dropout(x: Array, *, ratio: float = 0.5) -> Array:
    """x itself, as after training; OpError for a ratio outside 0..1."""
    if not 0 <= ratio <= 1:
        raise OpError(f"dropout: ratio is {ratio}, it must be in 0..1")
    return x


def squeeze(x: Array, *, axes: Sequence[int] = ()) -> Array:
    """x without those axes of 1, or without any; OpError for an axis that has not 1."""
    removed = axes_of("squeeze", axes, x.ndim) or tuple(i for i, d in enumerate(x.shape) if d == 1)
    for axis in removed:
        if x.shape[axis] != 1:
            raise OpError(f"squeeze: axis {axis} of x {list(x.shape)} has not 1")
    return np.squeeze(x, removed)


def unsqueeze(x: Array, *, axes: Sequence[int]) -> Array:
    """x with axes of 1 put in; OpError for axes that the result has not."""
    return np.expand_dims(x, axes_of("unsqueeze", axes, x.ndim + len(axes)))


def cut(
    x: Array,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Array:
    """The elements from start to before end; OpError for steps of 0 and misfits."""
    cut_axes = axes_of("slice", axes, x.ndim)
    if not len(starts) == len(ends) == len(cut_axes) == len(steps) or 0 in steps:
        raise OpError(f"slice: {len(cut_axes)} axes, starts {starts}, ends {ends}, steps {steps}")
    parts = [slice(None)] * x.ndim
    for axis, start, end, step in zip(cut_axes, starts, ends, steps, strict=True):
        indices = slice_indices(start, end, step, x.shape[axis])
        # A stop of -1 would mean the last element to Python; None means before the first.
        parts[axis] = (
            slice(indices.start, indices.stop if indices.stop >= 0 else None, step)
            if indices
            else slice(0)
        )
    return x[tuple(parts)]


def cut_at(
    x: Array, starts: Array, ends: Array, *, axes: Sequence[int], steps: Sequence[int] = ()
) -> Array:
    """The elements from start to before end, which are rows; OpError as for `cut`."""
    if starts.ndim != 1 or ends.ndim != 1 or {starts.dtype.kind, ends.dtype.kind} - {*"iu"}:
        said = " and ends ".join(f"{v.dtype} of {list(v.shape)}" for v in (starts, ends))
        raise OpError(f"slice_at: starts {said} are no rows of whole numbers")
    bounds = [[int(v) for v in row] for row in (starts, ends)]
    return cut(x, starts=bounds[0], ends=bounds[1], axes=axes, steps=steps or (1,) * len(axes))


def split(x: Array, *, sizes: Sequence[int], axis: int = 0) -> tuple[Array, ...]:
    """Returns the parts along the axis; raises OpError unless the sizes make up all of it."""
    axis_ = normalize_axis("split", axis, x.ndim)
    if not sizes or min(sizes) < 0 or sum(sizes) != x.shape[axis_]:
        raise OpError(f"split: sizes {tuple(sizes)} do not make up axis {axis_} of {list(x.shape)}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis_))


def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Returns the entries that the indices name; raises OpError for an index that the axis has
    not."""
    axis_ = normalize_axis("gather", axis, x.ndim)
    if indices.dtype.kind not in "iu":
        raise OpError(f"gather: indices are {indices.dtype}, they must be whole numbers")
    picked, size = indices.astype(np.int64), x.shape[axis_]
    if picked.size and (picked.min() < -size or picked.max() >= size):
        worst = int(picked.max()) if picked.max() >= size else int(picked.min())
        raise OpError(f"gather: index {worst}, but axis {axis_} has {size}")
    return np.asarray(np.take(x, picked, axis_))


def expand(x: Array, shape: Array) -> Array:
    """x broadcast against the shape; OpError where they do not fit."""
    if shape.ndim != 1 or shape.dtype.kind not in "iu" or min(shape.tolist(), default=0) < 0:
        raise OpError(f"expand: shape {shape.tolist()} is no row of sizes")
    try:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))
    except ValueError:
        raise OpError(f"expand: x {list(x.shape)} does not fit {shape.tolist()}") from None


def tile(x: Array, *, repeats: Sequence[int]) -> Array:
    """x repeated along each axis; OpError unless there is a count for each."""
    # NumPy adds axes for more counts than x has, which the op does not.
    if len(repeats) != x.ndim or min(repeats, default=0) < 0:
        raise OpError(f"tile: repeats {tuple(repeats)}, x has {x.ndim} axes")
    return np.tile(x, tuple(repeats))


def _channels_first(op: str, layout: str, x: Array) -> Array:
    require_rank(op, "x", x, 4)
    if layout not in ("NCHW", "NHWC"):
        raise OpError(f"{op}: layout {layout!r} is neither NCHW nor NHWC")
    return x if layout == "NCHW" else x.transpose(0, 3, 1, 2)


def _restore_layout(y: Array, layout: str) -> Array:
    return y if layout == "NCHW" else y.transpose(0, 2, 3, 1)


def depth_to_space(x: Array, *, block: int, mode: str = "DCR", layout: str = "NCHW") -> Array:
    """Channels to blocks of pixels; raises OpError where the channels do not split."""
    n, c, h, w = _channels_first("depth_to_space", layout, x).shape
    if block < 1 or c % block**2 or mode not in ("DCR", "CRD"):
        raise OpError(f"depth_to_space: {c} channels, block {block}, mode {mode!r}")
    x, out_channels = _channels_first("depth_to_space", layout, x), c // block**2
    if mode == "DCR":
        # DCR: the channel axis holds [row in block, column in block, channel].
        y = x.reshape(n, block, block, out_channels, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        # CRD: the channel axis holds [channel, row in block, column in block].
        y = x.reshape(n, out_channels, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return _restore_layout(y.reshape(n, out_channels, h * block, w * block), layout)


def space_to_depth(x: Array, *, block: int, layout: str = "NCHW") -> Array:
    """Blocks of pixels to channels; raises OpError where height and width do not split."""
    x = _channels_first("space_to_depth", layout, x)
    n, c, h, w = x.shape
    if block < 1 or h % block or w % block:
        raise OpError(f"space_to_depth: {h} x {w} does not split into blocks of {block}")
    y = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return _restore_layout(y.reshape(n, c * block**2, h // block, w // block), layout)


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "identity": identity,
    "dropout": dropout,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "slice": cut,
    "slice_at": cut_at,
    "split": split,
    "gather": gather,
    "expand": expand,
    "tile": tile,
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
}
