"""Elementwise ops: int8 sums and products with broadcasting, float32 arithmetic, and lookup
tables."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Node, Value
from qir.reference.methods import runs_of_one

from .builder import (
    TO_NHWC,
    Buffer,
    CannotLower,
    ProgramBuilder,
    is_noop_transpose,
    itemsize,
    permuted,
    sizes,
)
from .kernel_types import Job, byte_parameters
from .lookup_tables import ByteTable
from .sizes import Sizes

Broadcast = Literal["a", "b"] | None


def lower_by_table(b: ProgramBuilder, node: Node, table: ByteTable) -> None:
    """Lowers a value to lookups in a table of 256 entries, in the layout in which its root is
    held."""
    root, result = table.root, node.result
    nhwc = root.type.rank == result.type.rank == 4 and b.has_buffer(root, nhwc=True)
    # Wider entries are written as their type says: bytes are the cheapest to transpose.
    nhwc = nhwc and itemsize(result) == 1
    shape = permuted(sizes(result), TO_NHWC) if nhwc else sizes(result)
    source, made = b.buffer(root, nhwc=nhwc), b.allocate(result, nhwc=nhwc)
    add_lookup_step(b, node.name, source, made, shape, table.table)


def add_lookup_step(
    b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes, entries: NDArray[np.generic]
) -> None:
    """Adds a step that looks up each byte in a table."""
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
    """Lowers an int8 sum."""
    first, second = job.operands["a"], job.operands["b"]
    if _is_float_job(job):
        float_binary(b, job)
        return
    if runs_of_one(sizes(first), sizes(second)):
        # onnxruntime's QLinearAdd swaps the operands where the first is a scalar, which changes
        # the fma.
        first, second = second, first
    a, c, y = (
        byte_parameters(first, "a"),
        byte_parameters(second, "b"),
        byte_parameters(job.result, "the result"),
    )
    low, high = job.clamp_bounds(y)
    with np.errstate(all="ignore"):  # extreme scales give infinity, which the kernel takes
        a_gain, b_gain = a.scale / y.scale, c.scale / y.scale
        offset = np.float32(y.zero) - fma(a_gain, np.float32(a.zero), b_gain * np.float32(c.zero))
    x, z, made, held, shape, wide = _aligned_operands(b, job, first, second)
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
    """Lowers an int8 product."""
    first, second = job.operands["a"], job.operands["b"]
    if _is_float_job(job):
        float_binary(b, job)
        return
    a, c, y = (
        byte_parameters(first, "a"),
        byte_parameters(second, "b"),
        byte_parameters(job.result, "the result"),
    )
    low, high = job.clamp_bounds(y)
    with np.errstate(all="ignore"):
        multiplier = a.scale * c.scale / y.scale
    x, z, made, held, shape, wide = _aligned_operands(b, job, first, second)
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


def _is_float_job(job: Job) -> bool:
    return all(value.type.element == F32 for value in (*job.operands.values(), job.result))


def float_binary(b: ProgramBuilder, job: Job) -> None:
    """Lowers a float32 sum, difference, product or quotient, each rounded once."""
    if not _is_float_job(job):
        raise CannotLower(f"no kernel computes {job.op} but of float32")
    if job.epilogue:
        raise CannotLower(f"no kernel bounds a float result by {job.epilogue[0].op}")
    op: Any = job.op
    x, z, made, held, shape, wide = _aligned_operands(b, job, job.operands["a"], job.operands["b"])
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


def _aligned_operands(
    b: ProgramBuilder, job: Job, first: Value, second: Value
) -> tuple[Buffer, Buffer, Buffer, Sizes, tuple[int, int, int], Broadcast]:
    """Returns operands and result in one layout, its sizes, and how the operands broadcast."""
    rank = job.result.type.rank
    images = [v for v in (first, second) if v.type.rank == 4]
    images = [v for v in images if v.constant is None and not is_noop_transpose(sizes(v), TO_NHWC)]
    nhwc = rank == 4 and any(b.has_buffer(v, nhwc=True) for v in images)
    try:
        shape, wide = broadcast_sizes(first, second, rank, nhwc)
    # The other layout may make the repeated axes adjacent: one value a channel is innermost in
    # NHWC.
    except CannotLower:
        nhwc = not nhwc and rank == 4
        shape, wide = broadcast_sizes(first, second, rank, nhwc)
    x, z = (_in_layout(b, v, nhwc) for v in (first, second))
    held = permuted(sizes(job.result), TO_NHWC) if nhwc else sizes(job.result)
    return x, z, b.allocate(job.result, nhwc=nhwc), held, shape, wide


def _in_layout(b: ProgramBuilder, value: Value, nhwc: bool) -> Buffer:
    """Returns an operand in a layout; one of fewer than four axes is transposed as if it had
    four."""
    if value.type.rank == 4 or not nhwc:
        return b.buffer(value, nhwc=nhwc)
    held, shape = b.buffer(value), _with_rank(sizes(value), 4)
    # With one axis longer than 1, a transpose moves no byte.
    if sum(size != 1 for size in shape) < 2:
        return held
    transposed = b.scratch(held.size)
    b.transpose(f"{value.name} to NHWC", held, transposed, shape, TO_NHWC, itemsize(value))
    return transposed


def _with_rank(shape: Sizes, rank: int) -> Sizes:
    return (1,) * (rank - len(shape)) + shape


def broadcast_sizes(
    first: Value, second: Value, rank: int, nhwc: bool
) -> tuple[tuple[int, int, int], Broadcast]:
    """Returns (outer, rows, inner), and which operand repeats along the rows."""
    a, c = (_with_rank(sizes(v), rank) for v in (first, second))
    if nhwc:
        a, c = permuted(a, TO_NHWC), permuted(c, TO_NHWC)
    if a == c:
        return (1, 1, math.prod(a)), None
    if all(m in (n, 1) for m, n in zip(c, a, strict=True)):
        return _repeated_rows(c, a), "b"
    if all(m in (n, 1) for m, n in zip(a, c, strict=True)):
        return _repeated_rows(a, c), "a"
    raise CannotLower("each operand repeats along an axis of the other")


def _repeated_rows(narrow: Sizes, wide: Sizes) -> tuple[int, int, int]:
    """Returns (outer, rows, inner) for the axes where the narrow shape is 1 and the wide one is
    not.

    Raises CannotLower where those axes are not adjacent.
    """
    repeated = [i for i, (m, n) in enumerate(zip(narrow, wide, strict=True)) if m != n]
    start, end = repeated[0], repeated[-1] + 1
    if any(narrow[i] != 1 for i in range(start, end)):
        raise CannotLower("an operand repeats along axes that are not adjacent")
    return math.prod(wide[:start]), math.prod(wide[start:end]), math.prod(wide[end:])


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Computes a * b + c with one rounding: the float64 sum is rounded to odd, then to float32."""
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    # Rounding to odd keeps a sticky bit, so that the second rounding has no false ties.
    if error and not int(np.float64(total).view(np.int64)) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return np.float32(total)
