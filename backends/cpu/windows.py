"""Pools."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir._kernels._checks import LARGEST_MEAN
from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from .builder import LAST, CannotLower, MeanSource, ProgramBuilder, moved, sizes
from .codes import Job, codes, job, requantized
from .elementwise import look_up
from .sizes import Sizes
from .tables import Image


def _geometry(job: Job) -> tuple[tuple[int, int, int, int], tuple[int, int], Sizes]:
    """x as (n, h, w, c), the result's (h, w), and the result as it is held."""
    x, y = sizes(job.operands["x"]), sizes(job.result)
    if job.nchw:
        x, y = moved(x, LAST), moved(y, LAST)
    n, h, w, c = x
    return (n, h, w, c), (y[1], y[2]), y


def max_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a maximum of quantized values; a result of another type goes through a table."""
    value = job.operands["x"]
    x, y = codes(value, "x"), codes(job.result, "the result")
    if job.tail:
        raise CannotLower(f"no kernel computes max_pool2d |> {job.tail[0].op} as one")
    entries = requantized(x, y)
    shape, out, held = _geometry(job)
    kernel, stride, pad, dilation = (
        job.pair("kernel"),
        job.pair("stride"),
        job.pads(),
        job.pair("dilation"),
    )
    source, made = b.need(value, last=job.nchw), b.make(job.result, last=job.nchw)
    pooled = made if entries is None else b.scratch(made.size)
    b.add(
        job.name,
        "max_pool2d",
        [source],
        [pooled],
        held,
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
        look_up(b, job.name, pooled, made, held, entries)


def avg_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean of windows; one window that is the whole image is the global pool's."""
    shape, out, held = _geometry(job)
    kernel, stride, pad = job.pair("kernel"), job.pair("stride"), job.pads()
    if kernel == shape[1:3] and not any(pad):
        global_avg_pool(b, job)
        return
    value = job.operands["x"]
    x, y = codes(value, "x"), codes(job.result, "the result")
    job.full(y)
    count_pad = job.attrs["count_pad"] is True
    source, made = b.need(value, last=job.nchw), b.make(job.result, last=job.nchw)
    b.add(
        job.name,
        "avg_pool2d",
        [source],
        [made],
        held,
        lambda plan, at: plan.avg_pool2d(
            job.name,
            at(source),
            at(made),
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
    x, y = codes(value, "x"), codes(job.result, "the result")
    job.full(y)
    if value.type.rank != 4:
        raise CannotLower(f"no kernel computes global_avg_pool of {value.type.rank} axes")
    shape, _, held = _geometry(job)
    source, made = b.need(value, last=job.nchw), b.make(job.result, last=job.nchw)
    b.add(
        job.name,
        "global_avg_pool",
        [source],
        [made],
        held,
        lambda plan, at: plan.global_avg_pool(
            job.name,
            at(source),
            at(made),
            shape=shape,
            x_scale=float(x.scale),
            x_zero=x.zero,
            y_scale=float(y.scale),
            y_zero=y.zero,
            x_type=x.kind,
            y_type=y.kind,
        ),
    )


def mean_of(node: Node, images: Mapping[Value, Image]) -> MeanSource | None:
    """Returns what a node takes the mean of, where a kernel reads that as integers."""
    if node.op != "reduce_mean" or node.operands["x"].type.element != F32:
        return None
    value = node.operands["x"]
    try:
        _, (_, rows, _) = _split(sizes(value), job(node).ints("axes"))
        if value.node.op == "dequantize" and len(value.node.operands) == 1:
            codes(value.node.operands["x"])
            return MeanSource(value.node.operands["x"])
    except CannotLower:
        return None
    image = images.get(value)
    if image is None or sizes(image.root) != sizes(value) or not _exact(image.table, rows):
        return None
    return MeanSource(image.root, image.table)


def _exact(table: NDArray[np.generic], count: int) -> bool:
    """Returns whether float64 adds that many numbers of a float32 table without rounding."""
    size = np.abs(table.astype(np.float64))
    if not np.isfinite(size).all():
        return False
    least = np.min(size[size > 0], initial=1.0)
    unit = max(math.ldexp(1, math.frexp(least)[1] - 24), 2.0**-149)  # all are multiples of it
    return bool(size.max() * count <= 2.0**53 * unit)


def _split(shape: Sizes, axes: tuple[int, ...]) -> tuple[bool, tuple[int, int, int]]:
    """Returns whether values are best read channels last, and (outer, rows, inner) of a mean over
    rows."""
    over = sorted({axis % len(shape) for axis in axes} or range(len(shape)))
    last = len(shape) == 4 and over == [2, 3]
    held = moved(shape, LAST) if last else shape
    first, end = (1, 3) if last else (over[0], over[-1] + 1)
    if over != list(range(over[0], over[-1] + 1)):
        raise CannotLower("no kernel takes a mean over axes that are not adjacent")
    rows = math.prod(held[first:end])
    if rows > LARGEST_MEAN:
        raise CannotLower(f"no kernel takes a mean of {rows} numbers")
    return last, (math.prod(held[:first]), rows, math.prod(held[end:]))


def reduce_mean(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean of dequantized values, whose sum in float64 is exact."""
    mean = b.means.get(job.result)
    if mean is None:
        raise CannotLower("x is not dequantized from 8 bits, or its axes are not adjacent")
    x, table = codes(mean.source, "x"), mean.table
    last, shape = _split(sizes(mean.source), job.ints("axes"))
    source, made = b.need(mean.source, last=last), b.make(job.result)
    b.add(
        job.name,
        "mean",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.mean(
            job.name,
            at(source),
            at(made),
            shape=shape,
            x_scale=float(x.scale),
            x_zero=x.zero,
            x_type=x.kind,
            table=table,
        ),
    )
