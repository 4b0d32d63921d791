"""Pools and means of quantized values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir._kernels._checks import LARGEST_MEAN
from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from .builder import TO_NHWC, CannotLower, MeanSource, ProgramBuilder, permuted, sizes
from .elementwise import add_lookup_step
from .kernel_types import Job, byte_parameters, job_of, requantize_table
from .lookup_tables import ByteTable
from .sizes import Sizes


def sizes_nhwc(job: Job) -> tuple[tuple[int, int, int, int], tuple[int, int], Sizes]:
    """Returns x as (n, h, w, c), the result's (h, w), and the shape in which the result is held."""
    x, y = sizes(job.operands["x"]), sizes(job.result)
    if job.nchw:
        x, y = permuted(x, TO_NHWC), permuted(y, TO_NHWC)
    n, h, w, c = x
    return (n, h, w, c), (y[1], y[2]), y


def max_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a max pool of integers; a result of another type is requantized by a table."""
    value = job.operands["x"]
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    if job.epilogue:
        raise CannotLower(f"no kernel computes max_pool2d |> {job.epilogue[0].op} as one")
    entries = requantize_table(x, y)
    shape, out, result_sizes = sizes_nhwc(job)
    kernel, stride, pad, dilation = (
        job.int_pair("kernel"),
        job.int_pair("stride"),
        job.pads(),
        job.int_pair("dilation"),
    )
    source, target = b.buffer(value, nhwc=job.nchw), b.allocate(job.result, nhwc=job.nchw)
    # A result of another type is requantized in a second step: max and rounding both keep order.
    pooled = target if entries is None else b.scratch(target.size)
    b.add(
        job.name,
        "max_pool2d",
        [source],
        [pooled],
        result_sizes,
        lambda plan, at: plan.max_pool2d(
            job.name,
            at(source),
            at(pooled),
            shape=shape,
            kernel=kernel,
            stride=stride,
            pad=pad,
            dilation=dilation,
            out=out,
            x_type=x.kind,
        ),
    )
    if entries is not None:
        add_lookup_step(b, job.name, pooled, target, result_sizes, entries)


def reduce_max(b: ProgramBuilder, job: Job) -> None:
    """Lowers the greatest integers along adjacent axes, or of whole images, as a max pool."""
    value = job.operands["x"]
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    if job.epilogue or not x.same(y):
        raise CannotLower(f"no kernel computes {job.op} in another type than its operand's")
    if job.op == "global_max_pool":
        axes = (
            tuple(range(2, value.type.rank)) if job.nchw else tuple(range(1, value.type.rank - 1))
        )
    else:
        axes = job.int_tuple("axes")
    nhwc, (outer, rows, inner) = mean_sizes(sizes(value), axes)
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result)
    b.add(
        job.name,
        "max_pool2d",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.max_pool2d(
            job.name, at(source), at(target), shape=(outer, rows, 1, inner), kernel=(rows, 1),
            out=(1, 1), x_type=x.kind,
        ),
    )  # fmt: skip


def avg_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers an average pool; one whose window is the whole image is a global pool."""
    shape, out, result_sizes = sizes_nhwc(job)
    kernel, stride, pad = job.int_pair("kernel"), job.int_pair("stride"), job.pads()
    if kernel == shape[1:3] and not any(pad):
        global_avg_pool(b, job)
        return
    value = job.operands["x"]
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    job.require_no_clamp(y)
    count_pad = job.attrs["count_pad"] is True
    source, target = b.buffer(value, nhwc=job.nchw), b.allocate(job.result, nhwc=job.nchw)
    b.add(
        job.name,
        "avg_pool2d",
        [source],
        [target],
        result_sizes,
        lambda plan, at: plan.avg_pool2d(
            job.name,
            at(source),
            at(target),
            shape=shape,
            kernel=kernel,
            stride=stride,
            pad=pad,
            out=out,
            count_pad=count_pad,
            x_scale=float(x.scale),
            x_zero=x.zero,
            y_scale=float(y.scale),
            y_zero=y.zero,
            x_type=x.kind,
            y_type=y.kind,
        ),
    )


def global_avg_pool(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean over height and width."""
    value = job.operands["x"]
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    job.require_no_clamp(y)
    if value.type.rank != 4:
        raise CannotLower(f"no kernel computes global_avg_pool of {value.type.rank} axes")
    shape, _, result_sizes = sizes_nhwc(job)
    source, target = b.buffer(value, nhwc=job.nchw), b.allocate(job.result, nhwc=job.nchw)
    b.add(
        job.name,
        "global_avg_pool",
        [source],
        [target],
        result_sizes,
        lambda plan, at: plan.global_avg_pool(
            job.name,
            at(source),
            at(target),
            shape=shape,
            x_scale=float(x.scale),
            x_zero=x.zero,
            y_scale=float(y.scale),
            y_zero=y.zero,
            x_type=x.kind,
            y_type=y.kind,
        ),
    )


def quantized_mean_source(node: Node, images: Mapping[Value, ByteTable]) -> MeanSource | None:
    """Returns the quantized tensor from which a kernel computes the mean of dequantized values."""
    if node.op != "reduce_mean" or node.operands["x"].type.element != F32:
        return None
    value = node.operands["x"]
    try:
        _, (_, rows, _) = mean_sizes(sizes(value), job_of(node).int_tuple("axes"))
        if value.node.op == "dequantize" and len(value.node.operands) == 1:
            byte_parameters(value.node.operands["x"])
            return MeanSource(value.node.operands["x"])
    except CannotLower:
        return None
    table = images.get(value)
    # A table of floats, such as that of GELU, is summed exactly or not at all: the order is then
    # free.
    if table is None or sizes(table.root) != sizes(value) or not _sums_exactly(table.table, rows):
        return None
    return MeanSource(table.root, table.table)


def _sums_exactly(table: NDArray[np.generic], count: int) -> bool:
    """Returns whether float64 adds `count` entries of a float32 table without rounding."""
    magnitudes = np.abs(table.astype(np.float64))
    if not np.isfinite(magnitudes).all():
        return False
    # Entries are multiples of the unit in the last place of the smallest one.
    smallest = np.min(magnitudes[magnitudes > 0], initial=1.0)
    unit = max(math.ldexp(1, math.frexp(smallest)[1] - 24), 2.0**-149)  # all are multiples of it
    return bool(magnitudes.max() * count <= 2.0**53 * unit)


def mean_sizes(shape: Sizes, axes: tuple[int, ...]) -> tuple[bool, tuple[int, int, int]]:
    """Returns whether to read NHWC, and the (outer, rows, inner) sizes of a mean over rows."""
    reduced_axes = sorted({axis % len(shape) for axis in axes} or range(len(shape)))
    nhwc = len(shape) == 4 and reduced_axes == [2, 3]
    held_sizes = permuted(shape, TO_NHWC) if nhwc else shape
    first, end = (1, 3) if nhwc else (reduced_axes[0], reduced_axes[-1] + 1)
    if reduced_axes != list(range(reduced_axes[0], reduced_axes[-1] + 1)):
        raise CannotLower("no kernel takes a mean over axes that are not adjacent")
    rows = math.prod(held_sizes[first:end])
    if rows > LARGEST_MEAN:
        raise CannotLower(f"no kernel takes a mean of {rows} numbers")
    return nhwc, (math.prod(held_sizes[:first]), rows, math.prod(held_sizes[end:]))


def reduce_mean(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean of dequantized values, whose float64 sum is exact."""
    mean = b.means.get(job.result)
    if mean is None:
        raise CannotLower("x is not dequantized from 8 bits, or its axes are not adjacent")
    x, table = byte_parameters(mean.source, "x"), mean.table
    nhwc, shape = mean_sizes(sizes(mean.source), job.int_tuple("axes"))
    source, target = b.buffer(mean.source, nhwc=nhwc), b.allocate(job.result)
    b.add(
        job.name,
        "mean",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.mean(
            job.name,
            at(source),
            at(target),
            shape=shape,
            x_scale=float(x.scale),
            x_zero=x.zero,
            x_type=x.kind,
            table=table,
        ),
    )
