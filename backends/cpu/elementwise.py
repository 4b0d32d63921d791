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
    left, right = job.operands["a"], job.operands["b"]
    if _is_float_job(job):
        float_binary(b, job)
        return
    if runs_of_one(sizes(left), sizes(right)):
        # onnxruntime's QLinearAdd swaps the operands where the first is a scalar, which changes
        # the fma.
        left, right = right, left
    a_params, b_params, y_params = (
        byte_parameters(left, "a"),
        byte_parameters(right, "b"),
        byte_parameters(job.result, "the result"),
    )
    low, high = job.clamp_bounds(y_params)
    with np.errstate(all="ignore"):  # extreme scales give infinity, which the kernel takes
        # q_y = a_gain * q_a + b_gain * q_b + offset, where gains are ratios of the scales.
        a_gain, b_gain = a_params.scale / y_params.scale, b_params.scale / y_params.scale
        offset = np.float32(y_params.zero) - fma(
            a_gain, np.float32(a_params.zero), b_gain * np.float32(b_params.zero)
        )
    first_buffer, second_buffer, target, result_sizes, shape, broadcast = _aligned_operands(
        b, job, left, right
    )
    b.add(
        job.name,
        "add",
        [first_buffer, second_buffer],
        [target],
        result_sizes,
        lambda plan, at: plan.add(
            job.name,
            at(first_buffer),
            at(second_buffer),
            at(target),
            shape=shape,
            a_gain=float(a_gain),
            b_gain=float(b_gain),
            offset=float(offset),
            a_type=a_params.kind,
            b_type=b_params.kind,
            y_type=y_params.kind,
            low=low,
            high=high,
            broadcast=broadcast,
        ),
    )


def mul(b: ProgramBuilder, job: Job) -> None:
    """Lowers an int8 product."""
    left, right = job.operands["a"], job.operands["b"]
    if _is_float_job(job):
        float_binary(b, job)
        return
    a_params, b_params, y_params = (
        byte_parameters(left, "a"),
        byte_parameters(right, "b"),
        byte_parameters(job.result, "the result"),
    )
    low, high = job.clamp_bounds(y_params)
    with np.errstate(all="ignore"):
        multiplier = a_params.scale * b_params.scale / y_params.scale
    first_buffer, second_buffer, target, result_sizes, shape, broadcast = _aligned_operands(
        b, job, left, right
    )
    b.add(
        job.name,
        "mul",
        [first_buffer, second_buffer],
        [target],
        result_sizes,
        lambda plan, at: plan.mul(
            job.name,
            at(first_buffer),
            at(second_buffer),
            at(target),
            shape=shape,
            a_zero=a_params.zero,
            b_zero=b_params.zero,
            multiplier=float(multiplier),
            y_zero=y_params.zero,
            a_type=a_params.kind,
            b_type=b_params.kind,
            y_type=y_params.kind,
            low=low,
            high=high,
            broadcast=broadcast,
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
    first_buffer, second_buffer, target, result_sizes, shape, broadcast = _aligned_operands(
        b, job, job.operands["a"], job.operands["b"]
    )
    b.add(
        job.name,
        "real",
        [first_buffer, second_buffer],
        [target],
        result_sizes,
        lambda plan, at: plan.real(
            job.name,
            at(first_buffer),
            at(second_buffer),
            at(target),
            op=op,
            shape=shape,
            broadcast=broadcast,
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
        shape, broadcast = broadcast_sizes(first, second, rank, nhwc)
    # The other layout may make the repeated axes adjacent: one value a channel is innermost in
    # NHWC.
    except CannotLower:
        nhwc = not nhwc and rank == 4
        shape, broadcast = broadcast_sizes(first, second, rank, nhwc)
    first_buffer, second_buffer = (_in_layout(b, v, nhwc) for v in (first, second))
    result_sizes = permuted(sizes(job.result), TO_NHWC) if nhwc else sizes(job.result)
    return (
        first_buffer,
        second_buffer,
        b.allocate(job.result, nhwc=nhwc),
        result_sizes,
        shape,
        broadcast,
    )


def _in_layout(b: ProgramBuilder, value: Value, nhwc: bool) -> Buffer:
    """Returns an operand in a layout; one of fewer than four axes is transposed as if it had
    four."""
    if value.type.rank == 4 or not nhwc:
        return b.buffer(value, nhwc=nhwc)
    source, shape = b.buffer(value), _with_rank(sizes(value), 4)
    # With one axis longer than 1, a transpose moves no byte.
    if sum(size != 1 for size in shape) < 2:
        return source
    transposed = b.scratch(source.size)
    b.transpose(f"{value.name} to NHWC", source, transposed, shape, TO_NHWC, itemsize(value))
    return transposed


def _with_rank(shape: Sizes, rank: int) -> Sizes:
    return (1,) * (rank - len(shape)) + shape


def broadcast_sizes(
    first: Value, second: Value, rank: int, nhwc: bool
) -> tuple[tuple[int, int, int], Broadcast]:
    """Returns (outer, rows, inner), and which operand repeats along the rows."""
    a, b = (_with_rank(sizes(v), rank) for v in (first, second))
    if nhwc:
        a, b = permuted(a, TO_NHWC), permuted(b, TO_NHWC)
    if a == b:
        return (1, 1, math.prod(a)), None
    if all(m in (n, 1) for m, n in zip(b, a, strict=True)):
        return _repeated_rows(b, a), "b"
    if all(m in (n, 1) for m, n in zip(a, b, strict=True)):
        return _repeated_rows(a, b), "a"
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
