"""Ops element by element: sums and products with broadcasting, and tables for one operand."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Node, Value
from qir.reference.methods import runs_of_one

from .builder import LAST, Buffer, CannotLower, ProgramBuilder, itemsize, moved, sizes, still
from .codes import Job, codes
from .sizes import Sizes
from .tables import Image

Broadcast = Literal["a", "b"] | None


def by_table(b: ProgramBuilder, node: Node, image: Image) -> None:
    """Lowers what a table of 256 entries gives, in the order of axes in which its root is held.

    Wider entries than bytes are given as they are typed: bytes are the cheapest to transpose.
    """
    root, result = image.root, node.result
    last = root.type.rank == result.type.rank == 4 and b.holds(root, last=True)
    last = last and itemsize(result) == 1
    shape = moved(sizes(result), LAST) if last else sizes(result)
    source, made = b.need(root, last=last), b.make(result, last=last)
    look_up(b, node.name, source, made, shape, image.table)


def look_up(
    b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes, entries: NDArray[np.generic]
) -> None:
    """Adds a step that looks up each integer in a table."""
    size = math.prod(shape)
    b.add(
        name,
        "lookup",
        [x],
        [y],
        shape,
        lambda plan, at: plan.lookup(name, at(x), at(y), size=size, table=entries),
    )


def add(b: ProgramBuilder, job: Job) -> None:
    """Lowers a sum; onnxruntime takes the operands in turn where the first is the scalar."""
    first, second = job.operands["a"], job.operands["b"]
    if _real(job):
        real(b, job)
        return
    if runs_of_one(sizes(first), sizes(second)):
        first, second = second, first
    a, c, y = codes(first, "a"), codes(second, "b"), codes(job.result, "the result")
    low, high = job.bounds(y)
    with np.errstate(all="ignore"):  # extreme scales give infinity, which the kernel takes
        a_gain, b_gain = a.scale / y.scale, c.scale / y.scale
        offset = np.float32(y.zero) - fma(a_gain, np.float32(a.zero), b_gain * np.float32(c.zero))
    x, z, made, held, shape, wide = _operands(b, job, first, second)
    b.add(
        job.name,
        "add",
        [x, z],
        [made],
        held,
        lambda plan, at: plan.add(
            job.name,
            at(x),
            at(z),
            at(made),
            shape=shape,
            a_gain=float(a_gain),
            b_gain=float(b_gain),
            offset=float(offset),
            a_type=a.kind,
            b_type=c.kind,
            y_type=y.kind,
            low=low,
            high=high,
            broadcast=wide,
        ),
    )


def mul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product."""
    first, second = job.operands["a"], job.operands["b"]
    if _real(job):
        real(b, job)
        return
    a, c, y = codes(first, "a"), codes(second, "b"), codes(job.result, "the result")
    low, high = job.bounds(y)
    with np.errstate(all="ignore"):
        multiplier = a.scale * c.scale / y.scale
    x, z, made, held, shape, wide = _operands(b, job, first, second)
    b.add(
        job.name,
        "mul",
        [x, z],
        [made],
        held,
        lambda plan, at: plan.mul(
            job.name,
            at(x),
            at(z),
            at(made),
            shape=shape,
            a_zero=a.zero,
            b_zero=c.zero,
            multiplier=float(multiplier),
            y_zero=y.zero,
            a_type=a.kind,
            b_type=c.kind,
            y_type=y.kind,
            low=low,
            high=high,
            broadcast=wide,
        ),
    )


def _real(job: Job) -> bool:
    return all(value.type.element == F32 for value in (*job.operands.values(), job.result))


def real(b: ProgramBuilder, job: Job) -> None:
    """Lowers a sum, difference, product or quotient of float32, each rounded once."""
    if not _real(job):
        raise CannotLower(f"no kernel computes {job.op} but of float32")
    if job.tail:
        raise CannotLower(f"no kernel bounds a float result by {job.tail[0].op}")
    op: Any = job.op
    x, z, made, held, shape, wide = _operands(b, job, job.operands["a"], job.operands["b"])
    b.add(
        job.name,
        "real",
        [x, z],
        [made],
        held,
        lambda plan, at: plan.real(
            job.name, at(x), at(z), at(made), op=op, shape=shape, broadcast=wide
        ),
    )


def _operands(
    b: ProgramBuilder, job: Job, first: Value, second: Value
) -> tuple[Buffer, Buffer, Buffer, Sizes, tuple[int, int, int], Broadcast]:
    """Operands and result in one order of axes, its sizes, and how the operands meet in it."""
    rank = job.result.type.rank
    fours = [v for v in (first, second) if v.type.rank == 4]
    fours = [v for v in fours if v.constant is None and not still(sizes(v), LAST)]
    last = rank == 4 and any(b.holds(v, last=True) for v in fours)
    try:
        shape, wide = _meet(first, second, rank, last)
    except CannotLower:
        last = not last and rank == 4
        shape, wide = _meet(first, second, rank, last)
    x, z = (_ordered(b, v, last) for v in (first, second))
    held = moved(sizes(job.result), LAST) if last else sizes(job.result)
    return x, z, b.make(job.result, last=last), held, shape, wide


def _ordered(b: ProgramBuilder, value: Value, last: bool) -> Buffer:
    """Returns an operand in that order; one of fewer axes can only are on the last of them."""
    if value.type.rank == 4 or not last:
        return b.need(value, last=last)
    held, shape = b.need(value), _padded(sizes(value), 4)
    if sum(size != 1 for size in shape) < 2:
        return held
    turned = b.scratch(held.size)
    b.transpose(f"{value.name} to NHWC", held, turned, shape, LAST, itemsize(value))
    return turned


def _padded(shape: Sizes, rank: int) -> Sizes:
    return (1,) * (rank - len(shape)) + shape


def _meet(
    first: Value, second: Value, rank: int, last: bool
) -> tuple[tuple[int, int, int], Broadcast]:
    """(outer, rows, inner), and which operand repeats along the rows."""
    a, c = (_padded(sizes(v), rank) for v in (first, second))
    if last:
        a, c = moved(a, LAST), moved(c, LAST)
    if a == c:
        return (1, 1, math.prod(a)), None
    if all(m in (n, 1) for m, n in zip(c, a, strict=True)):
        return _rows(c, a), "b"
    if all(m in (n, 1) for m, n in zip(a, c, strict=True)):
        return _rows(a, c), "a"
    raise CannotLower("each operand repeats along an axis of the other")


def _rows(narrow: Sizes, wide: Sizes) -> tuple[int, int, int]:
    """Returns where the narrow shape is 1 and the wide is not must be one stretch of axes."""
    repeated = [i for i, (m, n) in enumerate(zip(narrow, wide, strict=True)) if m != n]
    start, end = repeated[0], repeated[-1] + 1
    if any(narrow[i] != 1 for i in range(start, end)):
        raise CannotLower("an operand repeats along axes that are not adjacent")
    return math.prod(wide[:start]), math.prod(wide[start:end]), math.prod(wide[end:])


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """a * b + c rounded once: the sum is rounded to odd in float64, then to float32."""
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    if error and not int(np.float64(total).view(np.int64)) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return np.float32(total)
