"""Convolutions and matrix products: accumulate in int32, round once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Value

from .builder import LAST, Buffer, Builder, CannotLower, itemsize, moved, sizes
from .codes import Job, Map, Weight, bias, codes, multiplier, weight


@dataclass(frozen=True, slots=True)
class Rounding:
    """What becomes of the accumulators: one multiplier a channel, a storage type, bounds."""

    bias: NDArray[np.int32] | None
    multiplier: NDArray[np.float32]
    kind: Literal["u8", "i8", "f32"]
    zero: int = 0
    low: int | None = None
    high: int | None = None


def _rounding(job: Job, x: Map, w: Weight, added: Value | None, channels: int) -> Rounding:
    sums = bias(added, channels, x, w.scale, "bias")
    if job.result.type.element == F32:
        if job.tail:
            raise CannotLower(f"no kernel bounds a float result by {job.tail[0].op}")
        return Rounding(sums, multiplier(x, w.scale, None), "f32")
    y = codes(job.result, "the result")
    low, high = job.bounds(y)
    return Rounding(sums, multiplier(x, w.scale, y), y.kind, y.zero, low, high)


def conv2d(b: Builder, job: Job) -> None:
    """Lowers a convolution; x and y are held channels last."""
    x, w = codes(job.operands["x"], "x"), weight(job.operands["w"], 0, "w")
    rounding = _rounding(job, x, w, job.operands.get("bias"), w.data.shape[0])
    last = job.nchw
    if not last and rounding.kind == "f32":
        raise CannotLower("no kernel gives a float result NHWC")
    source = b.need(job.operands["x"], last=last)
    shape = sizes(job.operands["x"])
    n, h, wide, c = moved(shape, LAST) if last else shape
    stride, pad, dilation = job.pair("stride"), job.pads(), job.pair("dilation")
    groups = job.number("groups")
    made = b.make(job.result, last=last)
    b.add(
        job.name,
        "conv2d",
        [source],
        [made],
        _stored(job.result, last),
        lambda plan, at: plan.conv2d(
            job.name,
            at(source),
            at(made),
            w.data,
            rounding.bias,
            rounding.multiplier,
            shape=(n, h, wide, c),
            stride=stride,
            pad=pad,
            dilation=dilation,
            groups=groups,
            x_type=x.kind,
            x_zero=x.zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
        ),
    )


def _stored(value: Value, last: bool) -> tuple[int, ...]:
    return moved(sizes(value), LAST) if last else sizes(value)


def gemm(b: Builder, job: Job) -> None:
    """Lowers alpha = beta = 1; a transposed a is put in order first."""
    added = job.operands.get("c")
    if job.attrs["alpha"] != 1.0 or (added is not None and job.attrs["beta"] != 1.0):
        raise CannotLower("alpha or beta is not 1")
    _product(b, job, "a", "b", added)


def matmul(b: Builder, job: Job) -> None:
    """Lowers a product with one constant matrix."""
    _product(b, job, "a", "b", job.operands.get("bias"))


def linear(b: Builder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"))


def _product(b: Builder, job: Job, left: str, right: str, added: Value | None) -> None:
    value, matrix = job.operands[left], job.operands[right]
    if matrix.type.rank != 2:
        raise CannotLower(f"{right} has {matrix.type.rank} axes, the kernels take 2")
    turned = job.op == "linear" or job.attrs["trans_b"] is True
    x, w = codes(value, left), weight(matrix, 0 if turned else 1, right)
    columns = np.ascontiguousarray(w.data if turned else w.data.T)
    rounding = _rounding(job, x, w, added, len(columns))
    crossed = job.op != "linear" and job.attrs["trans_a"] is True
    if crossed and value.type.rank != 2:
        raise CannotLower(f"a transposed {left} has {value.type.rank} axes, the kernels take 2")
    source = _crossed(b, job, value) if crossed else b.need(value)
    made = b.make(job.result)
    rows = math.prod(sizes(value)) // columns.shape[1]
    b.add(
        job.name,
        "linear",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.linear(
            job.name,
            at(source),
            at(made),
            columns,
            rounding.bias,
            rounding.multiplier,
            rows=rows,
            x_type=x.kind,
            x_zero=x.zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
        ),
    )


def _crossed(b: Builder, job: Job, value: Value) -> Buffer:
    held, turned = b.need(value), b.scratch(math.prod(sizes(value)) * itemsize(value))
    b.transpose(f"{value.name} transposed", held, turned, sizes(value), (1, 0), itemsize(value))
    return turned
