"""Rows picked by indices: gather by any of them, and padding that repeats elements."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I32, I64

from . import moves
from .builder import Buffer, CannotLower, ProgramBuilder, itemsize, sizes
from .codes import Job
from .sizes import Sizes

WIDTHS = {I32: 4, I64: 8}
"""Bytes of the indices that the kernel reads."""


def gather(b: ProgramBuilder, job: Job) -> None:
    """Lowers gather: one constant index is a slice, others are read as the program runs."""
    value, indices = job.operands["x"], job.operands["indices"]
    if (held := indices.constant) is not None and held.data.size == 1:
        moves.gather(b, job)
        return
    width = WIDTHS.get(indices.type.dtype)
    if width is None:
        raise CannotLower(f"indices are {indices.type.dtype}, the kernel takes i32 and i64")
    if not moves.same_map(value, job.result):
        raise CannotLower("the result has another map")
    shape, axis = sizes(value), job.number("axis") % value.type.rank
    if held is not None and not _inside(held.data, shape[axis]):
        raise CannotLower(f"an index is outside of axis {axis}, which has {shape[axis]}")
    item = itemsize(value)
    source, by, made = b.need(value), b.need(indices), b.make(job.result)
    _pick(b, job.name, source, by, made, sizes(job.result), shape, axis, item,
          math.prod(sizes(indices)), width)  # fmt: skip


def _inside(indices: NDArray[np.generic], size: int) -> bool:
    wide = indices.astype(np.int64)
    return bool(((wide >= -size) & (wide < size)).all())


def _pick(
    b: ProgramBuilder,
    name: str,
    x: Buffer,
    indices: Buffer,
    y: Buffer,
    out: Sizes,
    shape: Sizes,
    axis: int,
    item: int,
    count: int,
    width: int,
) -> None:
    b.add(
        name,
        "gather",
        [x, indices],
        [y],
        out,
        lambda plan, at: plan.gather(
            name,
            at(x),
            at(indices),
            at(y),
            outer=math.prod(shape[:axis]),
            rows=shape[axis],
            width=math.prod(shape[axis + 1 :]) * item,
            count=count,
            itemsize=width,
        ),
    )


def pad(b: ProgramBuilder, job: Job) -> None:
    """Lowers padding: by one value, or by indices where elements are repeated, axis by axis."""
    mode = job.attrs["mode"]
    if mode == "constant":
        moves.pad(b, job)
        return
    value = job.operands["x"]
    if not moves.same_map(value, job.result):
        raise CannotLower("the result has another map")
    assert isinstance(mode, str)
    rank, pads, item = value.type.rank, job.ints("pads"), itemsize(value)
    todo = [axis for axis in range(rank) if pads[axis] or pads[axis + rank]]
    held, shape = b.need(value), sizes(value)
    if not todo:
        b.hold(job.result, held)
    for axis in todo:
        picked = _repeated(shape[axis], pads[axis], pads[axis + rank], mode)
        wider = (*shape[:axis], picked.size, *shape[axis + 1 :])
        made = b.make(job.result) if axis == todo[-1] else b.scratch(math.prod(wider) * item)
        by = Buffer(picked.nbytes, data=picked)
        _pick(b, job.name, held, by, made, wider, shape, axis, item, picked.size, 8)
        held, shape = made, wider


def arranged(b: ProgramBuilder, job: Job) -> None:
    """Lowers flip, tile and a slice that goes backwards: an axis at a time, by constant indices."""
    value = job.operands["x"]
    if job.tail or not moves.same_map(value, job.result):
        raise CannotLower("the result has another map")
    held, shape, item = b.need(value), sizes(value), itemsize(value)
    todo = [(axis, by) for axis, by in _orders(job, shape).items() if not _still(by, shape[axis])]
    if not todo:
        b.hold(job.result, held)
    for axis, picked in todo:
        wider = (*shape[:axis], picked.size, *shape[axis + 1 :])
        last = axis == todo[-1][0]
        made = b.make(job.result) if last else b.scratch(math.prod(wider) * item)
        by = Buffer(picked.nbytes, data=picked)
        _pick(b, job.name, held, by, made, wider, shape, axis, item, picked.size, 8)
        held, shape = made, wider


def _orders(job: Job, shape: Sizes) -> dict[int, NDArray[np.int64]]:
    """Returns the index of each element along the axes that an op arranges."""
    every = {axis: np.arange(size, dtype=np.int64) for axis, size in enumerate(shape)}
    if job.op == "tile":
        return {a: np.tile(every[a], count) for a, count in enumerate(job.ints("repeats"))}
    if job.op == "flip":
        axes = {axis % len(shape) for axis in job.ints("axes")}
        return {axis: np.ascontiguousarray(every[axis][::-1]) for axis in axes}
    cuts = zip(*(job.ints(name) for name in ("starts", "ends", "axes", "steps")), strict=True)
    return {
        axis % len(shape): np.ascontiguousarray(every[axis % len(shape)][start:end:step])
        for start, end, axis, step in cuts
    }


def _still(picked: NDArray[np.int64], size: int) -> bool:
    return picked.size == size and bool((picked == np.arange(size)).all())


def _repeated(size: int, before: int, after: int, mode: str) -> NDArray[np.int64]:
    """Returns the index of each element of a padded axis; those that are cut off go first."""
    kept = np.arange(max(-before, 0), size - max(-after, 0), dtype=np.int64)
    if not kept.size:
        raise CannotLower(f"nothing of an axis of {size} is left to repeat")
    more = (max(before, 0), max(after, 0))
    return np.ascontiguousarray(np.pad(kept, more, mode))  # type: ignore[call-overload]
