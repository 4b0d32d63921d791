"""Ops that move pixels: depth_to_space, space_to_depth and nearest resizing by whole factors."""

from __future__ import annotations

import math

import numpy as np

from qir.reference.table import compute

from .builder import (
    TO_NHWC,
    CannotLower,
    ProgramBuilder,
    StridedElements,
    itemsize,
    permuted,
    sizes,
    strides,
)
from .data_movement import keeps_elements
from .kernel_types import Job


def _is_held_nhwc(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an NCHW image is held in NHWC alone."""
    value = job.operands["x"]
    return (
        value.type.rank == 4
        and b.has_buffer(value, nhwc=True)
        and not b.has_buffer(value, nhwc=False)
    )


def _require_kept_elements(job: Job) -> None:
    if not keeps_elements(job.operands["x"], job.result):
        raise CannotLower("the result has another map")


def depth_to_space(b: ProgramBuilder, job: Job) -> None:
    """Lowers depth_to_space as one transpose of six axes."""
    _require_kept_elements(job)
    nhwc = job.nchw and _is_held_nhwc(b, job)
    n, c, h, w = permuted(sizes(job.operands["x"]), (0, 1, 2, 3) if job.nchw else (0, 3, 1, 2))
    block, is_depth_first = job.int_attr("block"), job.attrs["mode"] == "DCR"
    rest = c // block**2
    # DCR: channels are [block, block, rest]; CRD: [rest, block, block].
    channels = (block, block, rest) if is_depth_first else (rest, block, block)
    if job.nchw and not nhwc:
        order = (0, 3, 4, 1, 5, 2) if is_depth_first else (0, 1, 4, 2, 5, 3)
        _add_transpose(b, job, (n, *channels, h, w), order, nhwc)
    else:
        order = (0, 1, 3, 2, 4, 5) if is_depth_first else (0, 1, 4, 2, 5, 3)
        _add_transpose(b, job, (n, h, w, *channels), order, nhwc)


def space_to_depth(b: ProgramBuilder, job: Job) -> None:
    """Lowers space_to_depth as one transpose of six axes."""
    _require_kept_elements(job)
    nhwc = job.nchw and _is_held_nhwc(b, job)
    n, c, h, w = permuted(sizes(job.operands["x"]), (0, 1, 2, 3) if job.nchw else (0, 3, 1, 2))
    block = job.int_attr("block")
    if job.nchw and not nhwc:
        _add_transpose(
            b, job, (n, c, h // block, block, w // block, block), (0, 3, 5, 1, 2, 4), nhwc
        )
    else:
        _add_transpose(
            b, job, (n, h // block, block, w // block, block, c), (0, 1, 3, 2, 4, 5), nhwc
        )


def _add_transpose(
    b: ProgramBuilder, job: Job, shape: tuple[int, ...], order: tuple[int, ...], nhwc: bool
) -> None:
    value = job.operands["x"]
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=nhwc)
    b.transpose(job.name, source, target, shape, order, itemsize(value))


def resize_nearest(b: ProgramBuilder, job: Job) -> None:
    """Lowers nearest resizing in which each pixel is repeated: a strided view with strides of 0."""
    _require_kept_elements(job)
    value, result = job.operands["x"], job.result
    nhwc = _is_held_nhwc(b, job)
    order = TO_NHWC if nhwc else tuple(range(value.type.rank))
    shape = permuted(sizes(value), order)
    counts = [_repeat_count(job, axis) for axis in order]
    steps = strides(shape)
    # Each axis is followed by one of stride 0, along which its elements repeat.
    elements = StridedElements(value, tuple(stride for step in steps for stride in (step, 0)))
    repeated_sizes = tuple(size for pair in zip(shape, counts, strict=True) for size in pair)
    assert math.prod(repeated_sizes) == math.prod(sizes(result))
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(result, nhwc=nhwc)
    b.add_strided_copy(result, source, target, repeated_sizes, elements)


def _repeat_count(job: Job, axis: int) -> int:
    """Returns how often each element is repeated along an axis; raises CannotLower where that
    varies."""
    if job.attrs["policy"] != "stretch" or job.attrs["coordinates"] == "tf_crop_and_resize":
        raise CannotLower("no kernel resizes but by a stretch")
    size, result_size = sizes(job.operands["x"])[axis], sizes(job.result)[axis]
    if size == result_size:
        return 1
    size_operands = {slot: v.constant for slot, v in job.operands.items() if slot != "x"}
    constants = {slot: data.data for slot, data in size_operands.items() if data is not None}
    if len(constants) < len(size_operands):
        raise CannotLower("sizes are no constant")
    # The reference itself says which pixel is nearest: the rounding depends on many attributes.
    shape = sizes(job.operands["x"])  # scales may leave nothing of axes of one element
    axis_shape = [1] * len(shape)
    axis_shape[axis] = size
    indices = np.broadcast_to(np.arange(size, dtype=np.int32).reshape(axis_shape), shape)
    picked_rows = np.moveaxis(
        np.asarray(compute("resize_nearest", {"x": indices, **constants}, job.attrs)), axis, 0
    )
    if not picked_rows.size:
        raise CannotLower("an empty result")
    # One column of indices is enough: along an axis, all rows pick alike.
    source_indices = picked_rows.reshape(len(picked_rows), -1)[:, 0]
    if result_size % size or not np.array_equal(
        source_indices, np.arange(result_size) // (result_size // size)
    ):
        raise CannotLower("pixels are not all repeated as often")
    return result_size // size
