"""Ops that move values: quantize, dequantize, reshape, transpose, slice, concat, pad."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from .builder import (
    TO_NCHW,
    TO_NHWC,
    Buffer,
    CannotLower,
    ProgramBuilder,
    StridedElements,
    is_noop_transpose,
    itemsize,
    permuted,
    sizes,
    strides,
)
from .elementwise import add_lookup_step
from .kernel_types import ByteParameters, Job, byte_parameters, quantized_floats, requantize_table
from .sizes import Sizes


def quantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers a quantize of float32 to NHWC if the consumers prefer that."""
    value = job.operands["x"]
    if value.type.element != F32:
        raise CannotLower(f"x is {value.type.element}, the kernels quantize f32")
    if job.attrs["round"] == "away":
        raise CannotLower("it rounds halves away from zero")
    y = byte_parameters(job.result, "the result")
    low, high = job.clamp_bounds(y)
    nhwc = b.prefers_nhwc(job.result)
    shape = sizes(value)
    source, target = b.buffer(value), b.allocate(job.result, nhwc=nhwc)
    b.add(
        job.name,
        "quantize",
        [source],
        [target],
        permuted(shape, TO_NHWC) if nhwc else shape,
        lambda plan, at: plan.quantize(
            job.name,
            at(source),
            at(target),
            shape=shape,
            scale=float(y.scale),
            zero=y.zero,
            y_type=y.kind,
            low=low,
            high=high,
            nhwc=nhwc,
        ),
    )


def dequantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers a dequantize to float32, in the layout of its type."""
    value = job.operands["x"]
    if job.result.type.element != F32:
        raise CannotLower(f"the result is {job.result.type.element}, the kernels give f32")
    x = byte_parameters(value, "x")
    nhwc = value.type.rank == 4 and not b.has_buffer(value, nhwc=False) and value.constant is None
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result)
    shape = permuted(sizes(value), TO_NHWC) if nhwc else sizes(value)
    b.add(
        job.name,
        "dequantize",
        [source],
        [target],
        sizes(value),
        lambda plan, at: plan.dequantize(
            job.name,
            at(source),
            at(target),
            shape=shape,
            scale=float(x.scale),
            zero=x.zero,
            x_type=x.kind,
            nchw=nhwc,
        ),
    )


def _requantized_types(x: Value, y: Value) -> tuple[ByteParameters, ByteParameters] | None:
    """Returns both quantized types where they differ; None where elements are only moved."""
    x_type, y_type = x.type.quant, y.type.quant
    if x.type.element == y.type.element or (x_type and y_type and x_type.has_same_mapping(y_type)):
        return None
    if x_type is not None and y_type is not None and x_type.storage == y_type.storage:
        if x_type.granularity is not None and y_type.granularity is not None:
            # The same parameters along an axis that moved.
            if (x_type.scale, x_type.zero) == (y_type.scale, y_type.zero):
                return None
    return byte_parameters(x, "x"), byte_parameters(y, "the result")


def keeps_elements(x: Value, y: Value) -> bool:
    """Returns whether elements move from one value to another unchanged."""
    return _requantized_types(x, y) is None


def reshape(b: ProgramBuilder, job: Job) -> None:
    """Lowers reshape and flatten to no step, unless the result has to be requantized."""
    value = job.operands["x"]
    types = _requantized_types(value, job.result)
    if itemsize(value) != itemsize(job.result):
        raise CannotLower("the result has other elements")
    # A view of a view stays a view: no bytes are copied until a step needs them contiguous.
    if types is None and (view := _reshaped_view(b, value, job.result)) is not None:
        b.defer_copy(job.result, view)
        return
    source = b.buffer(value)
    if types is None:
        b.set_buffer(job.result, source)
        return
    entries = requantize_table(*types)
    assert entries is not None
    add_lookup_step(b, job.name, source, b.allocate(job.result), sizes(job.result), entries)


def _reshaped_view(b: ProgramBuilder, value: Value, result: Value) -> StridedElements | None:
    """Returns a strided view in another shape, if only axes of size 1 come or go; else None."""
    view = b.strided(value)
    long_axes = [i for i, size in enumerate(sizes(value)) if size != 1]
    if view.source is value or [sizes(value)[i] for i in long_axes] != [
        size for size in sizes(result) if size != 1
    ]:
        return None
    steps = iter(view.strides[i] for i in long_axes)
    return replace(view, strides=tuple(0 if size == 1 else next(steps) for size in sizes(result)))


def transpose(b: ProgramBuilder, job: Job) -> None:
    """Lowers a transpose to no step where the bytes are in that order already, else to a view."""
    value = job.operands["x"]
    if b.has_buffer(job.result, nhwc=False):
        # A product may have written this value: see `products.fused_transpose`.
        return
    if _requantized_types(value, job.result) is not None:
        raise CannotLower("the result has another map")
    perm, rank = job.int_tuple("perm"), value.type.rank
    identity = tuple(range(rank))
    layouts = [(identity, False)] + ([(TO_NHWC, True)] if rank == 4 else [])
    # Compares each layout of x with each layout of the result: NCHW to NHWC is often both.
    for order, nhwc in layouts:
        if not b.has_buffer(value, nhwc=nhwc):
            continue
        for target, target_nhwc in layouts:
            to_type_order = TO_NCHW if nhwc else identity
            # Composes: from the held order back to the type's, the perm, then to the target's
            # order.
            perm_of_bytes = tuple(to_type_order[perm[axis]] for axis in target)
            if is_noop_transpose(permuted(sizes(value), order), perm_of_bytes):
                b.set_buffer(job.result, b.buffer(value, nhwc=nhwc), nhwc=target_nhwc)
                return
    itemsize(value)  # refuses what has no fixed size
    elements = b.strided(value)
    b.defer_copy(job.result, replace(elements, strides=permuted(elements.strides, perm)))


def slice_axes(b: ProgramBuilder, job: Job) -> None:
    """Lowers a slice with positive steps to a strided view."""
    names = ("starts", "ends", "axes", "steps")
    slices = zip(*(job.int_tuple(name) for name in names), strict=True)
    rank = job.operands["x"].type.rank
    ranges: dict[int, range] = {}
    for start, end, axis, step in slices:
        size = sizes(job.operands["x"])[axis % rank]
        if step < 1:
            raise CannotLower("no kernel takes elements backwards")
        ranges[axis % rank] = range(*slice(start, end, step).indices(size))
    _take_ranges(b, job.operands["x"], job.result, ranges)


def split(b: ProgramBuilder, node: Node) -> None:
    """Lowers each part of a split to a strided view."""
    value, axis_attr = node.operands["x"], node.attrs["axis"]
    assert isinstance(axis_attr, int)
    # All results are checked before any step is added: CannotLower promises that none was.
    axis, start = axis_attr % value.type.rank, 0
    for result in node.results:
        if _requantized_types(value, result) is not None:
            raise CannotLower("a result has another map")
    for result in node.results:
        size = sizes(result)[axis]
        _take_ranges(b, value, result, {axis: range(start, start + size)})
        start += size


def gather(b: ProgramBuilder, job: Job) -> None:
    """Lowers a gather by one constant index to a view: the axis is removed, or stays with size
    1."""
    value, indices = job.operands["x"], job.operands["indices"].constant
    if indices is None or indices.data.size != 1:
        raise CannotLower("indices are no single constant")
    axis = job.int_attr("axis") % value.type.rank
    size, index = sizes(value)[axis], int(indices.data.reshape(-1)[0])
    if not -size <= index < size:
        raise CannotLower(f"index {index} is outside of axis {axis}, which has {size}")
    if _requantized_types(value, job.result) is not None:
        raise CannotLower("the result has another map")
    elements = b.strided(value)
    index_strides = (0,) * indices.data.ndim
    b.defer_copy(
        job.result,
        replace(
            elements,
            strides=(*elements.strides[:axis], *index_strides, *elements.strides[axis + 1 :]),
            offset=elements.offset + index % size * elements.strides[axis],
        ),
    )


def expand(b: ProgramBuilder, job: Job) -> None:
    """Lowers broadcasting to a view with stride 0 along the repeated axes."""
    value = job.operands["x"]
    if _requantized_types(value, job.result) is not None:
        raise CannotLower("the result has another map")
    elements, missing = b.strided(value), job.result.type.rank - value.type.rank
    pairs = zip(elements.strides, sizes(value), strict=True)
    steps = tuple(0 if size == 1 else step for step, size in pairs)
    b.defer_copy(job.result, replace(elements, strides=(0,) * missing + steps))


def _take_ranges(
    b: ProgramBuilder, value: Value, result: Value, ranges: Mapping[int, range]
) -> None:
    """Defines a result as a range of indices along some axes; NHWC where the operand is."""
    if _requantized_types(value, result) is not None:
        raise CannotLower("the result has another map")
    nhwc = (
        value.type.rank == 4
        and b.has_buffer(value, nhwc=True)
        and not b.has_buffer(value, nhwc=False)
    )
    if not nhwc:
        b.defer_copy(result, _subrange(b.strided(value), ranges))
        return
    nhwc_sizes = permuted(sizes(value), TO_NHWC)
    nhwc_ranges = {TO_NHWC.index(axis): indices for axis, indices in ranges.items()}
    elements = _subrange(StridedElements(value, strides(nhwc_sizes)), nhwc_ranges)
    x, y = b.buffer(value, nhwc=True), b.allocate(result, nhwc=True)
    b.add_strided_copy(result, x, y, permuted(sizes(result), TO_NHWC), elements)


def _subrange(elements: StridedElements, ranges: Mapping[int, range]) -> StridedElements:
    """Returns a view of a range of indices along some axes."""
    steps, offset = list(elements.strides), elements.offset
    for axis, indices in ranges.items():
        offset += indices.start * steps[axis]
        steps[axis] *= indices.step
    return replace(elements, strides=tuple(steps), offset=offset)


def concat(b: ProgramBuilder, job: Job) -> None:
    """Lowers a concat: one copy per operand, through a table where that has another type."""
    parts = [job.operands[s] for s in sorted(job.operands, key=lambda s: int(s.split(".")[1]))]
    types = [_requantized_types(part, job.result) for part in parts]
    if job.epilogue:
        raise CannotLower(f"no kernel computes concat |> {job.epilogue[0].op} as one")
    width = itemsize(job.result)
    nhwc = job.result.type.rank == 4 and any(
        b.has_buffer(p, nhwc=True) and not b.has_buffer(p, nhwc=False) for p in parts
    )
    order = TO_NHWC if nhwc else tuple(range(job.result.type.rank))
    # Rows are the axes before the concatenated one; each row takes a span of every operand.
    axis = order.index(job.int_attr("axis") % len(order))
    result_sizes = permuted(sizes(job.result), order)
    rows, stride = math.prod(result_sizes[:axis]), math.prod(result_sizes[axis:]) * width
    sources = [b.buffer(part, nhwc=nhwc) for part in parts]
    target = b.allocate(job.result, nhwc=nhwc)
    widths = [math.prod(permuted(sizes(p), order)[axis:]) * width for p in parts]
    offsets = itertools.accumulate(widths, initial=0)
    for source, span, offset, pair in zip(sources, widths, offsets, types, strict=False):
        _copy(
            b,
            job.name,
            source,
            target,
            result_sizes,
            rows=rows,
            width=span,
            y_stride=stride,
            y_offset=offset,
            types=pair,
        )


def join(b: ProgramBuilder, job: Job, parts: Sequence[Value], sources: Sequence[Buffer]) -> None:
    """Joins bytes that are in the result's type already, one copy per operand."""
    whole, axis = sizes(job.result), job.int_attr("axis") % job.result.type.rank
    rows, stride = math.prod(whole[:axis]), math.prod(whole[axis:])
    made = b.allocate(job.result)
    widths = [math.prod(sizes(part)[axis:]) for part in parts]
    offsets = itertools.accumulate(widths, initial=0)
    for source, width, offset in zip(sources, widths, offsets, strict=False):
        _copy(
            b, job.name, source, made, whole, rows=rows, width=width, y_stride=stride,
            y_offset=offset,
        )  # fmt: skip


def _copy(
    b: ProgramBuilder,
    name: str,
    x: Buffer,
    y: Buffer,
    shape: Sizes,
    *,
    rows: int,
    width: int,
    x_stride: int | None = None,
    y_stride: int | None = None,
    x_offset: int = 0,
    y_offset: int = 0,
    types: tuple[ByteParameters, ByteParameters] | None = None,
) -> None:
    entries = None if types is None else requantize_table(*types)
    b.add(
        name,
        "copy",
        [x],
        [y],
        shape,
        lambda plan, at: plan.copy(
            name,
            at(x),
            at(y),
            rows=rows,
            width=width,
            x_stride=x_stride,
            y_stride=y_stride,
            x_offset=x_offset,
            y_offset=y_offset,
            table=entries,
        ),
    )


def copy(b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes) -> None:
    """Adds a step that copies a whole buffer."""
    _copy(b, name, x, y, shape, rows=1, width=x.size)


def pad(b: ProgramBuilder, job: Job) -> None:
    """Lowers padding with a constant, one axis at a time."""
    value = job.operands["x"]
    if job.attrs["mode"] != "constant":
        raise CannotLower(f"no kernel pads by {job.attrs['mode']!r}")
    if _requantized_types(value, job.result) is not None:
        raise CannotLower("the result has another map")
    fill = _fill_byte(job)
    rank = value.type.rank
    nhwc = rank == 4 and b.has_buffer(value, nhwc=True) and not b.has_buffer(value, nhwc=False)
    order = TO_NHWC if nhwc else tuple(range(rank))
    pads = job.int_tuple("pads")
    # Bytes, with the element's size as the last axis: one kernel for every element type.
    byte_sizes = (*permuted(sizes(value), order), itemsize(value))
    source = b.buffer(value, nhwc=nhwc)
    padded_axes = [
        (i, pads[axis], pads[axis + rank])
        for i, axis in enumerate(order)
        if pads[axis] or pads[axis + rank]
    ]
    if not padded_axes:
        b.set_buffer(job.result, source, nhwc=nhwc)
    # One pass for each padded axis, from the first one on; the last pass writes the result.
    for i, before, after in padded_axes:
        new_sizes = (*byte_sizes[:i], byte_sizes[i] + before + after, *byte_sizes[i + 1 :])
        final = i == padded_axes[-1][0]
        target = b.allocate(job.result, nhwc=nhwc) if final else b.scratch(math.prod(new_sizes))
        pad_axis(b, job.name, source, target, byte_sizes, new_sizes, i, before, after, fill)
        source, byte_sizes = target, new_sizes


def _fill_byte(job: Job) -> int:
    """Returns the byte to pad with: a quantized value, or 0 for any type whose zero has no set
    bit."""
    value = job.attrs["value"]
    assert isinstance(value, float)
    if job.result.type.quant is not None:
        return quantized_floats([value], byte_parameters(job.result, "the result"))[0] & 0xFF
    if value != 0 or math.copysign(1, value) < 0:
        raise CannotLower(f"no kernel pads {job.result.type.element} with {value}")
    return 0


def pad_axis(
    b: ProgramBuilder,
    name: str,
    x: Buffer,
    y: Buffer,
    old: Sizes,
    new: Sizes,
    axis: int,
    before: int,
    after: int,
    byte: int,
) -> None:
    inner, rows = math.prod(new[axis + 1 :]), math.prod(new[:axis])
    size = math.prod(new)
    if before > 0 or after > 0:
        b.add(
            name,
            "fill",
            [],
            [y],
            new[:-1],
            lambda plan, at: plan.fill(name, at(y), size=size, value=byte),
        )
    # Negative pads crop: fewer rows are copied, from further inside.
    copied = old[axis] + min(before, 0) + min(after, 0)
    if copied > 0:
        _copy(
            b,
            name,
            x,
            y,
            new[:-1],
            rows=rows,
            width=copied * inner,
            x_stride=old[axis] * inner,
            y_stride=new[axis] * inner,
            x_offset=max(-before, 0) * inner,
            y_offset=max(before, 0) * inner,
        )
