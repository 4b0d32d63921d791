"""Ops that move pixels: between channels and space, and to larger images."""

from __future__ import annotations

import math

import numpy as np

from qir.reference.table import compute

from .builder import LAST, CannotLower, Elements, ProgramBuilder, itemsize, moved, sizes, strides
from .codes import Job
from .moves import same_map


def _held_last(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an image that is typed channels first is held channels last alone."""
    value = job.operands["x"]
    return value.type.rank == 4 and b.holds(value, last=True) and not b.holds(value, last=False)


def _require_moved(job: Job) -> None:
    if not same_map(job.operands["x"], job.result):
        raise CannotLower("the result has another map")


def depth_to_space(b: ProgramBuilder, job: Job) -> None:
    """Lowers channels to blocks of pixels: one transposition."""
    _require_moved(job)
    last = job.nchw and _held_last(b, job)
    n, c, h, w = moved(sizes(job.operands["x"]), (0, 1, 2, 3) if job.nchw else (0, 3, 1, 2))
    block, deep = job.number("block"), job.attrs["mode"] == "DCR"
    left = c // block**2
    channels = (block, block, left) if deep else (left, block, block)
    if job.nchw and not last:
        order = (0, 3, 4, 1, 5, 2) if deep else (0, 1, 4, 2, 5, 3)
        _turn(b, job, (n, *channels, h, w), order, last)
    else:
        order = (0, 1, 3, 2, 4, 5) if deep else (0, 1, 4, 2, 5, 3)
        _turn(b, job, (n, h, w, *channels), order, last)


def space_to_depth(b: ProgramBuilder, job: Job) -> None:
    """Lowers blocks of pixels to channels: one transposition."""
    _require_moved(job)
    last = job.nchw and _held_last(b, job)
    n, c, h, w = moved(sizes(job.operands["x"]), (0, 1, 2, 3) if job.nchw else (0, 3, 1, 2))
    block = job.number("block")
    if job.nchw and not last:
        _turn(b, job, (n, c, h // block, block, w // block, block), (0, 3, 5, 1, 2, 4), last)
    else:
        _turn(b, job, (n, h // block, block, w // block, block, c), (0, 1, 3, 2, 4, 5), last)


def _turn(
    b: ProgramBuilder, job: Job, shape: tuple[int, ...], order: tuple[int, ...], last: bool
) -> None:
    value = job.operands["x"]
    source, made = b.need(value, last=last), b.make(job.result, last=last)
    b.transpose(job.name, source, made, shape, order, itemsize(value))


def resize_nearest(b: ProgramBuilder, job: Job) -> None:
    """Lowers the nearest pixel where each is repeated so many times along each axis."""
    _require_moved(job)
    value, result = job.operands["x"], job.result
    last = _held_last(b, job)
    order = LAST if last else tuple(range(value.type.rank))
    shape = moved(sizes(value), order)
    times = [_times(job, axis) for axis in order]
    steps = strides(shape)
    elements = Elements(value, tuple(by for step in steps for by in (step, 0)))
    spread = tuple(size for pair in zip(shape, times, strict=True) for size in pair)
    assert math.prod(spread) == math.prod(sizes(result))
    b.strided(result, b.need(value, last=last), b.make(result, last=last), spread, elements)


def _times(job: Job, axis: int) -> int:
    """Returns how often each element along an axis is in the result; CannotLower where that
    differs."""
    if job.attrs["policy"] != "stretch" or job.attrs["coordinates"] == "tf_crop_and_resize":
        raise CannotLower("no kernel resizes but by a stretch")
    old, new = sizes(job.operands["x"])[axis], sizes(job.result)[axis]
    if old == new:
        return 1
    given = {slot: v.constant for slot, v in job.operands.items() if slot != "x"}
    constants = {slot: data.data for slot, data in given.items() if data is not None}
    if len(constants) < len(given):
        raise CannotLower("sizes are no constant")
    whole = sizes(job.operands["x"])  # scales may leave nothing of axes of one element
    line = [1] * len(whole)
    line[axis] = old
    places = np.broadcast_to(np.arange(old, dtype=np.int32).reshape(line), whole)
    found = np.moveaxis(
        np.asarray(compute("resize_nearest", {"x": places, **constants}, job.attrs)), axis, 0
    )
    if not found.size:
        raise CannotLower("an empty result")
    row = found.reshape(len(found), -1)[:, 0]
    if new % old or not np.array_equal(row, np.arange(new) // (new // old)):
        raise CannotLower("pixels are not all repeated as often")
    return new // old
