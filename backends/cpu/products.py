"""Convolutions and matrix products: accumulate in int32, round once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Value

from .builder import LAST, Buffer, CannotLower, ProgramBuilder, itemsize, moved, sizes, strides
from .codes import ByteParameters, Job, Weight, bias, codes, multiplier, weight
from .sizes import Sizes


@dataclass(frozen=True, slots=True)
class Rounding:
    """What becomes of the accumulators: one multiplier a channel, a storage type, bounds."""

    bias: NDArray[np.int32] | None
    multiplier: NDArray[np.float32]
    kind: Literal["u8", "i8", "f32"]
    zero: int = 0
    low: int | None = None
    high: int | None = None


def _rounding(
    job: Job, x: ByteParameters, w: Weight, added: Value | None, channels: int
) -> Rounding:
    sums = bias(added, channels, x, w.scale, "bias")
    if job.result.type.element == F32:
        if job.tail:
            raise CannotLower(f"no kernel bounds a float result by {job.tail[0].op}")
        return Rounding(sums, multiplier(x, w.scale, None), "f32")
    y = codes(job.result, "the result")
    low, high = job.bounds(y)
    return Rounding(sums, multiplier(x, w.scale, y), y.kind, y.zero, low, high)


def conv2d(b: ProgramBuilder, job: Job) -> None:
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


def conv1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution of rows: images of one line, whose channels are put last and back."""
    value = job.operands["x"]
    x, w = codes(value, "x"), weight(job.operands["w"], 0, "w")
    rounding = _rounding(job, x, w, job.operands.get("bias"), w.data.shape[0])
    (n, channels, wide), out = sizes(value), sizes(job.result)
    (stride,), (front, back), (dilation,) = (job.ints(a) for a in ("stride", "pad", "dilation"))
    groups, width = job.number("groups"), itemsize(job.result)
    given, made = b.need(value), b.make(job.result)
    source, result = b.scratch(given.size), b.scratch(made.size)
    b.transpose(f"{value.name} to NWC", given, source, sizes(value), (0, 2, 1), 1)
    b.add(
        job.name,
        "conv2d",
        [source],
        [result],
        (out[0], out[2], out[1]),
        lambda plan, at: plan.conv2d(
            job.name,
            at(source),
            at(result),
            w.data[:, :, None],
            rounding.bias,
            rounding.multiplier,
            shape=(n, 1, wide, channels),
            stride=(1, stride),
            pad=(0, front, 0, back),
            dilation=(1, dilation),
            groups=groups,
            x_type=x.kind,
            x_zero=x.zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
        ),
    )
    b.transpose(f"{job.name} to NCW", result, made, (out[0], out[2], out[1]), (0, 2, 1), width)


def _stored(value: Value, last: bool) -> tuple[int, ...]:
    return moved(sizes(value), LAST) if last else sizes(value)


def gemm(b: ProgramBuilder, job: Job) -> None:
    """Lowers alpha = beta = 1; a transposed a is put in order first."""
    added = job.operands.get("c")
    if job.attrs["alpha"] != 1.0 or (added is not None and job.attrs["beta"] != 1.0):
        raise CannotLower("alpha or beta is not 1")
    _product(b, job, "a", "b", added)


def matmul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product with one constant matrix, or of matrices that are both computed."""
    right = job.operands["b"]
    if right.constant is not None and right.type.rank == 2:
        _product(b, job, "a", "b", job.operands.get("bias"))
    else:
        computed_product(b, job)


def linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"))


def _product(b: ProgramBuilder, job: Job, left: str, right: str, added: Value | None) -> None:
    value, matrix = job.operands[left], job.operands[right]
    if matrix.type.rank != 2:
        raise CannotLower(f"{right} has {matrix.type.rank} axes, the kernels take 2")
    turned = job.op == "linear" or job.attrs["trans_b"] is True
    x, w = codes(value, left), weight(matrix, 0 if turned else 1, right)
    columns = np.ascontiguousarray(w.data if turned else w.data.T)
    rounding = _rounding(job, x, w, added, len(columns))
    across = job.op != "linear" and job.attrs["trans_a"] is True
    if across and value.type.rank != 2:
        raise CannotLower(f"a transposed {left} has {value.type.rank} axes, the kernels take 2")
    source = crossed(b, value) if across else b.need(value)
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


def crossed(b: ProgramBuilder, value: Value) -> Buffer:
    """Returns a matrix transposed."""
    held, turned = b.need(value), b.scratch(math.prod(sizes(value)) * itemsize(value))
    b.transpose(f"{value.name} transposed", held, turned, sizes(value), (1, 0), itemsize(value))
    return turned


# -- of two computed operands ---------------------------------------------------------------------


def computed_product(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product whose right operand is packed while it runs."""
    left, right = job.operands["a"], job.operands["b"]
    if "bias" in job.operands:
        raise CannotLower("no kernel adds a bias to a product of two computed matrices")
    if left.type.rank < 2 or right.type.rank < 2:
        raise CannotLower("an operand is a vector, the kernels take matrices")
    x, w = codes(left, "a"), codes(right, "b")
    rounding = _rounding(job, x, Weight(_NONE, np.asarray([w.scale])), None, 1)
    a, c = matrices(b, job, left, "trans_a"), matrices(b, job, right, "trans_b")
    goal, order = target(b, job)
    made = b.make(goal)
    out = moved(strides(sizes(goal)), order)
    batch = sizes(job.result)[:-2]
    m, n, k = *sizes(job.result)[-2:], a.sizes[-1]
    if a.steps[-1] != 1 and k > 1:  # rows of a are read as they are: put them in order
        a = ordered(b, job, left, a)
    b.add(
        job.name,
        "matmul",
        [a.buffer, c.buffer],
        [made],
        sizes(job.result),
        lambda plan, at: plan.matmul(
            job.name,
            at(a.buffer),
            at(c.buffer),
            at(made),
            sizes=(m, k, n),
            a_at=a.offsets(batch),
            b_at=c.offsets(batch),
            y_at=offsets(out[:-2], batch, 0),
            a_row=a.steps[-2],
            b_steps=c.steps[-2:],
            y_row=out[-2],
            multiplier=float(rounding.multiplier[0]),
            a_type=x.kind,
            a_zero=x.zero,
            b_type=w.kind,
            b_zero=w.zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
        ),
    )


_NONE = np.zeros((0, 0), np.int8)


@dataclass(frozen=True, slots=True)
class Matrices:
    """A batch of matrices in a buffer."""

    buffer: Buffer
    sizes: Sizes
    steps: Sizes
    offset: int = 0

    @property
    def whole(self) -> bool:
        """Whether all matrices are rows of one."""
        return not self.offset and self.steps == strides(self.sizes)

    def offsets(self, batch: Sizes) -> NDArray[np.uint64]:
        """Where each matrix of a batch begins, of which this one may repeat some."""
        missing = len(batch) - (len(self.sizes) - 2)
        pairs = zip(self.sizes[:-2], self.steps[:-2], strict=True)
        steps = tuple(0 if size == 1 else step for size, step in pairs)
        return offsets((0,) * missing + steps, batch, self.offset)


def offsets(steps: Sizes, batch: Sizes, start: int) -> NDArray[np.uint64]:
    """Returns where each matrix of a batch begins."""
    total = np.full(batch, start, np.uint64)
    for axis, (step, size) in enumerate(zip(steps, batch, strict=True)):
        along = np.arange(size, dtype=np.uint64) * np.uint64(step)
        total += along.reshape([-1 if i == axis else 1 for i in range(len(batch))])
    return total.reshape(-1)


def matrices(b: ProgramBuilder, job: Job, value: Value, turn: str) -> Matrices:
    """Returns an operand as matrices, transposed where `turn` says so."""
    view, shape = b.view(value), sizes(value)
    steps = view.steps
    if job.attrs[turn] is True:
        shape, steps = _swapped(shape), _swapped(steps)
    return Matrices(view.buffer, shape, steps, view.offset)


def _swapped(axes: Sizes) -> Sizes:
    return (*axes[:-2], axes[-1], axes[-2])


def ordered(b: ProgramBuilder, job: Job, value: Value, a: Matrices) -> Matrices:
    """Returns the left matrices row by row."""
    source = b.need(value)
    if job.attrs["trans_a"] is not True:
        return Matrices(source, a.sizes, strides(a.sizes))
    width = itemsize(value)
    turned = b.scratch(math.prod(a.sizes) * width)
    perm = _swapped(tuple(range(len(a.sizes))))
    b.transpose(f"{value.name} transposed", source, turned, sizes(value), perm, width)
    return Matrices(turned, a.sizes, strides(a.sizes))


def target(b: ProgramBuilder, job: Job) -> tuple[Value, tuple[int, ...]]:
    """Returns the value to write, and which of its axes is each axis of the result.

    Where the only user transposes the result and leaves its last axis, that is done in passing.
    """
    plain = tuple(range(job.result.type.rank))
    if len(job.result.uses) != 1 or job.result.name in b.watched:
        return job.result, plain
    (user,) = job.result.users
    if user.op != "transpose" or user.result.type.element != job.result.type.element:
        return job.result, plain
    perm = user.attrs["perm"]
    assert isinstance(perm, tuple)
    if perm[-1] != plain[-1]:
        return job.result, plain
    return user.result, tuple(perm.index(axis) for axis in plain)
