"""Ops that pick rows by indices: gather, and pads, flips and tiles as gathers by constant
indices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I32, I64

from . import data_movement
from .builder import Buffer, CannotLower, ProgramBuilder, itemsize, sizes
from .kernel_types import Job
from .sizes import Sizes

Indices: TypeAlias = NDArray[np.int64]
INDEX_BYTES = {I32: 4, I64: 8}
"""Bytes of the index types that the kernel reads."""


def gather(b: ProgramBuilder, job: Job) -> None:
    """Lowers a gather; by one constant index it is a slice, other indices are read in the run."""
    value, indices = job.operands["x"], job.operands["indices"]
    if (constant := indices.constant) is not None and constant.data.size == 1:
        data_movement.gather(b, job)
        return
    width = INDEX_BYTES.get(indices.type.dtype)
    if width is None:
        raise CannotLower(f"indices are {indices.type.dtype}, the kernel takes i32 and i64")
    if not data_movement.keeps_elements(value, job.result):
        raise CannotLower("the result has another map")
    shape, axis = sizes(value), job.int_attr("axis") % value.type.rank
    # The run checks computed indices. Constant ones are checked once, so that the reference
    # reports them.
    if constant is not None and not _are_in_range(constant.data, shape[axis]):
        raise CannotLower(f"an index is outside of axis {axis}, which has {shape[axis]}")
    item = itemsize(value)
    source, index_buffer, target = b.buffer(value), b.buffer(indices), b.allocate(job.result)
    _add_gather_step(b, job.name, source, index_buffer, target, sizes(job.result), shape, axis,
                     item, math.prod(sizes(indices)), width)  # fmt: skip


def _are_in_range(indices: NDArray[np.generic], size: int) -> bool:
    integers = indices.astype(np.int64)
    return bool(((integers >= -size) & (integers < size)).all())


def _add_gather_step(
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
    """Lowers constant padding, or other modes as gathers along one axis at a time."""
    mode = job.attrs["mode"]
    if mode == "constant":
        data_movement.pad(b, job)
        return
    value = job.operands["x"]
    if not data_movement.keeps_elements(value, job.result):
        raise CannotLower("the result has another map")
    assert isinstance(mode, str)
    rank, pads, item = value.type.rank, job.int_tuple("pads"), itemsize(value)
    padded_axes = [axis for axis in range(rank) if pads[axis] or pads[axis + rank]]
    source, shape = b.buffer(value), sizes(value)
    if not padded_axes:
        b.set_buffer(job.result, source)
    # One gather for each padded axis; constant indices name the element that each position repeats.
    for axis in padded_axes:
        indices = _padded_indices(shape[axis], pads[axis], pads[axis + rank], mode)
        new_sizes = (*shape[:axis], indices.size, *shape[axis + 1 :])
        target = (
            b.allocate(job.result)
            if axis == padded_axes[-1]
            else b.scratch(math.prod(new_sizes) * item)
        )
        index_buffer = Buffer(indices.nbytes, data=indices)
        _add_gather_step(
            b, job.name, source, index_buffer, target, new_sizes, shape, axis, item, indices.size, 8
        )
        source, shape = target, new_sizes


def rearranged(b: ProgramBuilder, job: Job) -> None:
    """Lowers flip, tile and slices with negative steps as gathers along one axis at a time."""
    value = job.operands["x"]
    if job.epilogue or not data_movement.keeps_elements(value, job.result):
        raise CannotLower("the result has another map")
    add_gathers(b, job, _axis_indices(job, sizes(value)))


def add_gathers(b: ProgramBuilder, job: Job, indices_of_axes: Mapping[int, Indices]) -> None:
    """Adds steps that pick elements by constant indices along one axis after another."""
    value = job.operands["x"]
    source, shape, item = b.buffer(value), sizes(value), itemsize(value)
    changed_axes = [
        (axis, index_buffer)
        for axis, index_buffer in indices_of_axes.items()
        if not _is_identity(index_buffer, shape[axis])
    ]
    if not changed_axes:
        b.set_buffer(job.result, source)
    for axis, indices in changed_axes:
        new_sizes = (*shape[:axis], indices.size, *shape[axis + 1 :])
        # Gathers before the last one write to scratch memory.
        last = axis == changed_axes[-1][0]
        target = b.allocate(job.result) if last else b.scratch(math.prod(new_sizes) * item)
        index_buffer = Buffer(indices.nbytes, data=indices)
        _add_gather_step(
            b, job.name, source, index_buffer, target, new_sizes, shape, axis, item, indices.size, 8
        )
        source, shape = target, new_sizes


def _axis_indices(job: Job, shape: Sizes) -> dict[int, NDArray[np.int64]]:
    """Returns the index of each result element along the axes that an op rearranges."""
    all_indices = {axis: np.arange(size, dtype=np.int64) for axis, size in enumerate(shape)}
    if job.op == "tile":
        return {
            a: np.tile(all_indices[a], count) for a, count in enumerate(job.int_tuple("repeats"))
        }
    if job.op == "flip":
        axes = {axis % len(shape) for axis in job.int_tuple("axes")}
        return {axis: np.ascontiguousarray(all_indices[axis][::-1]) for axis in axes}
    slices = zip(
        *(job.int_tuple(name) for name in ("starts", "ends", "axes", "steps")), strict=True
    )
    return {
        axis % len(shape): np.ascontiguousarray(all_indices[axis % len(shape)][start:end:step])
        for start, end, axis, step in slices
    }


def _is_identity(indices: NDArray[np.int64], size: int) -> bool:
    return indices.size == size and bool((indices == np.arange(size)).all())


def _padded_indices(size: int, before: int, after: int, mode: str) -> NDArray[np.int64]:
    """Returns the index of each element of a padded axis; negative padding crops first."""
    kept = np.arange(max(-before, 0), size - max(-after, 0), dtype=np.int64)
    if not kept.size:
        raise CannotLower(f"nothing of an axis of {size} is left to repeat")
    # NumPy's modes reflect, edge, wrap and symmetric are ONNX's, on the indices themselves.
    repeated = (max(before, 0), max(after, 0))
    return np.ascontiguousarray(np.pad(kept, repeated, mode))  # type: ignore[call-overload]
