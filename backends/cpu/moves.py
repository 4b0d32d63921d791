"""Ops that move values: quantize, dequantize, reshape, transpose, concat, pad."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from .builder import (
    FIRST,
    LAST,
    Buffer,
    CannotLower,
    Elements,
    ProgramBuilder,
    itemsize,
    moved,
    sizes,
    still,
    strides,
)
from .codes import ByteParameters, Job, coded, codes, requantized
from .elementwise import look_up
from .sizes import Sizes


def quantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers a quantize of float32, channels last where the users want that."""
    value = job.operands["x"]
    if value.type.element != F32:
        raise CannotLower(f"x is {value.type.element}, the kernels quantize f32")
    y = codes(job.result, "the result")
    low, high = job.bounds(y)
    last = b.prefers_last(job.result)
    shape = sizes(value)
    source, made = b.need(value), b.make(job.result, last=last)
    b.add(
        job.name,
        "quantize",
        [source],
        [made],
        moved(shape, LAST) if last else shape,
        lambda plan, at: plan.quantize(
            job.name,
            at(source),
            at(made),
            shape=shape,
            scale=float(y.scale),
            zero=y.zero,
            y_type=y.kind,
            low=low,
            high=high,
            nhwc=last,
        ),
    )


def dequantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers a dequantize to float32, which is held as it is typed."""
    value = job.operands["x"]
    if job.result.type.element != F32:
        raise CannotLower(f"the result is {job.result.type.element}, the kernels give f32")
    x = codes(value, "x")
    last = value.type.rank == 4 and not b.holds(value, last=False) and value.constant is None
    source, made = b.need(value, last=last), b.make(job.result)
    shape = moved(sizes(value), LAST) if last else sizes(value)
    b.add(
        job.name,
        "dequantize",
        [source],
        [made],
        sizes(value),
        lambda plan, at: plan.dequantize(
            job.name,
            at(source),
            at(made),
            shape=shape,
            scale=float(x.scale),
            zero=x.zero,
            x_type=x.kind,
            nchw=last,
        ),
    )


def _maps(x: Value, y: Value) -> tuple[ByteParameters, ByteParameters] | None:
    """Returns both quantized types where they differ; None where elements are only moved."""
    ours, theirs = x.type.quant, y.type.quant
    if x.type.element == y.type.element or (ours and theirs and ours.has_same_mapping(theirs)):
        return None
    if ours is not None and theirs is not None and ours.storage == theirs.storage:
        if ours.granularity is not None and theirs.granularity is not None:
            if (ours.scale, ours.zero) == (theirs.scale, theirs.zero):
                return None  # the same numbers along an axis that moved
    return codes(x, "x"), codes(y, "the result")


def same_map(x: Value, y: Value) -> bool:
    """Returns whether elements are moved from one value to another as they are."""
    return _maps(x, y) is None


def reshape(b: ProgramBuilder, job: Job) -> None:
    """Lowers reshape and flatten: the same bytes, unless the maps differ."""
    value = job.operands["x"]
    maps = _maps(value, job.result)
    if itemsize(value) != itemsize(job.result):
        raise CannotLower("the result has other elements")
    if maps is None and (apart := _with_ones(b, value, job.result)) is not None:
        b.defer(job.result, apart)
        return
    held = b.need(value)
    if maps is None:
        b.hold(job.result, held)
        return
    entries = requantized(*maps)
    assert entries is not None
    look_up(b, job.name, held, b.make(job.result), sizes(job.result), entries)


def _with_ones(b: ProgramBuilder, value: Value, result: Value) -> Elements | None:
    """Returns a view of a value whose axes of 1 alone change; None where it is no view, or others
    do."""
    given = b.elements(value)
    wide = [i for i, size in enumerate(sizes(value)) if size != 1]
    if given.source is value or [sizes(value)[i] for i in wide] != [
        size for size in sizes(result) if size != 1
    ]:
        return None
    steps = iter(given.steps[i] for i in wide)
    return replace(given, steps=tuple(0 if size == 1 else next(steps) for size in sizes(result)))


def transpose(b: ProgramBuilder, job: Job) -> None:
    """Lowers another order of axes: no step at all where the bytes stand right already."""
    value = job.operands["x"]
    if b.holds(job.result, last=False):
        return  # the step that makes x wrote it in this order
    if _maps(value, job.result) is not None:
        raise CannotLower("the result has another map")
    perm, rank = job.ints("perm"), value.type.rank
    plain = tuple(range(rank))
    stored = [(plain, False)] + ([(LAST, True)] if rank == 4 else [])
    for order, last in stored:
        if not b.holds(value, last=last):
            continue
        for target, wanted in stored:
            back = FIRST if last else plain
            route = tuple(back[perm[axis]] for axis in target)
            if still(moved(sizes(value), order), route):
                b.hold(job.result, b.need(value, last=last), last=wanted)
                return
    itemsize(value)  # refuses what has no fixed size
    given = b.elements(value)
    b.defer(job.result, replace(given, steps=moved(given.steps, perm)))


def part(b: ProgramBuilder, job: Job) -> None:
    """Lowers slice: elements at equal distances along some axes."""
    names = ("starts", "ends", "axes", "steps")
    cuts = zip(*(job.ints(name) for name in names), strict=True)
    rank = job.operands["x"].type.rank
    ranges: dict[int, range] = {}
    for start, end, axis, step in cuts:
        size = sizes(job.operands["x"])[axis % rank]
        if step < 1:
            raise CannotLower("no kernel takes elements backwards")
        ranges[axis % rank] = range(*slice(start, end, step).indices(size))
    _take(b, job.operands["x"], job.result, ranges)


def split(b: ProgramBuilder, node: Node) -> None:
    """Lowers the parts of an axis, each by itself."""
    value, along = node.operands["x"], node.attrs["axis"]
    assert isinstance(along, int)
    axis, start = along % value.type.rank, 0
    for result in node.results:
        if _maps(value, result) is not None:
            raise CannotLower("a result has another map")
    for result in node.results:
        size = sizes(result)[axis]
        _take(b, value, result, {axis: range(start, start + size)})
        start += size


def gather(b: ProgramBuilder, job: Job) -> None:
    """Lowers gather by one constant index: a slice whose axis is taken out, or stays as 1."""
    value, indices = job.operands["x"], job.operands["indices"].constant
    if indices is None or indices.data.size != 1:
        raise CannotLower("indices are no single constant")
    axis = job.number("axis") % value.type.rank
    size, index = sizes(value)[axis], int(indices.data.reshape(-1)[0])
    if not -size <= index < size:
        raise CannotLower(f"index {index} is outside of axis {axis}, which has {size}")
    if _maps(value, job.result) is not None:
        raise CannotLower("the result has another map")
    given = b.elements(value)
    kept = (0,) * indices.data.ndim
    b.defer(
        job.result,
        replace(
            given,
            steps=(*given.steps[:axis], *kept, *given.steps[axis + 1 :]),
            offset=given.offset + index % size * given.steps[axis],
        ),
    )


def expand(b: ProgramBuilder, job: Job) -> None:
    """Lowers broadcasting: a step of nothing along the axes that repeat."""
    value = job.operands["x"]
    if _maps(value, job.result) is not None:
        raise CannotLower("the result has another map")
    given, missing = b.elements(value), job.result.type.rank - value.type.rank
    pairs = zip(given.steps, sizes(value), strict=True)
    steps = tuple(0 if size == 1 else step for step, size in pairs)
    b.defer(job.result, replace(given, steps=(0,) * missing + steps))


def _take(b: ProgramBuilder, value: Value, result: Value, ranges: Mapping[int, range]) -> None:
    """Says which elements along each axis a result has; channels last where the value is."""
    if _maps(value, result) is not None:
        raise CannotLower("the result has another map")
    last = value.type.rank == 4 and b.holds(value, last=True) and not b.holds(value, last=False)
    if not last:
        b.defer(result, _within(b.elements(value), ranges))
        return
    held = moved(sizes(value), LAST)
    inside = {LAST.index(axis): along for axis, along in ranges.items()}
    elements = _within(Elements(value, strides(held)), inside)
    x, y = b.need(value, last=True), b.make(result, last=True)
    b.strided(result, x, y, moved(sizes(result), LAST), elements)


def _within(given: Elements, ranges: Mapping[int, range]) -> Elements:
    steps, offset = list(given.steps), given.offset
    for axis, along in ranges.items():
        offset += along.start * steps[axis]
        steps[axis] *= along.step
    return replace(given, steps=tuple(steps), offset=offset)


def concat(b: ProgramBuilder, job: Job) -> None:
    """Lowers a join: one copy a part, through a table where its quantized type is another."""
    parts = [job.operands[s] for s in sorted(job.operands, key=lambda s: int(s.split(".")[1]))]
    maps = [_maps(part, job.result) for part in parts]
    if job.tail:
        raise CannotLower(f"no kernel computes concat |> {job.tail[0].op} as one")
    width = itemsize(job.result)
    last = job.result.type.rank == 4 and any(
        b.holds(p, last=True) and not b.holds(p, last=False) for p in parts
    )
    order = LAST if last else tuple(range(job.result.type.rank))
    axis = order.index(job.number("axis") % len(order))
    whole = moved(sizes(job.result), order)
    rows, stride = math.prod(whole[:axis]), math.prod(whole[axis:]) * width
    sources = [b.need(part, last=last) for part in parts]
    made = b.make(job.result, last=last)
    widths = [math.prod(moved(sizes(p), order)[axis:]) * width for p in parts]
    offsets = itertools.accumulate(widths, initial=0)
    for source, span, offset, pair in zip(sources, widths, offsets, maps, strict=False):
        _copy(
            b,
            job.name,
            source,
            made,
            whole,
            rows=rows,
            width=span,
            y_stride=stride,
            y_offset=offset,
            maps=pair,
        )


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
    maps: tuple[ByteParameters, ByteParameters] | None = None,
) -> None:
    entries = None if maps is None else requantized(*maps)
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
    """Lowers padding with one value, an axis at a time."""
    value = job.operands["x"]
    if job.attrs["mode"] != "constant":
        raise CannotLower(f"no kernel pads by {job.attrs['mode']!r}")
    if _maps(value, job.result) is not None:
        raise CannotLower("the result has another map")
    byte = _filler(job)
    rank = value.type.rank
    last = rank == 4 and b.holds(value, last=True) and not b.holds(value, last=False)
    order = LAST if last else tuple(range(rank))
    pads = job.ints("pads")
    bytewise = (*moved(sizes(value), order), itemsize(value))
    held = b.need(value, last=last)
    todo = [
        (i, pads[axis], pads[axis + rank])
        for i, axis in enumerate(order)
        if pads[axis] or pads[axis + rank]
    ]
    if not todo:
        b.hold(job.result, held, last=last)
    for i, front, back in todo:
        wider = (*bytewise[:i], bytewise[i] + front + back, *bytewise[i + 1 :])
        final = i == todo[-1][0]
        made = b.make(job.result, last=last) if final else b.scratch(math.prod(wider))
        _pad_axis(b, job.name, held, made, bytewise, wider, i, front, back, byte)
        held, bytewise = made, wider


def _filler(job: Job) -> int:
    """Returns the byte that fills: a quantized value, or 0 where every byte of the value is 0."""
    value = job.attrs["value"]
    assert isinstance(value, float)
    if job.result.type.quant is not None:
        return coded([value], codes(job.result, "the result"))[0] & 0xFF
    if value != 0 or math.copysign(1, value) < 0:
        raise CannotLower(f"no kernel pads {job.result.type.element} with {value}")
    return 0


def _pad_axis(
    b: ProgramBuilder,
    name: str,
    x: Buffer,
    y: Buffer,
    old: Sizes,
    new: Sizes,
    axis: int,
    front: int,
    back: int,
    byte: int,
) -> None:
    inner, rows = math.prod(new[axis + 1 :]), math.prod(new[:axis])
    size = math.prod(new)
    if front > 0 or back > 0:
        b.add(
            name,
            "fill",
            [],
            [y],
            new[:-1],
            lambda plan, at: plan.fill(name, at(y), size=size, value=byte),
        )
    kept = old[axis] + min(front, 0) + min(back, 0)
    if kept > 0:
        _copy(
            b,
            name,
            x,
            y,
            new[:-1],
            rows=rows,
            width=kept * inner,
            x_stride=old[axis] * inner,
            y_stride=new[axis] * inner,
            x_offset=max(-front, 0) * inner,
            y_offset=max(front, 0) * inner,
        )
