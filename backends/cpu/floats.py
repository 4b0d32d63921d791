"""Ops of float32 alone: products and convolutions, functions of each element, pools and means.

Sums are made in the order of `qir/_kernels/floats/sgemm.h`. Values are held as they are typed, and
images channels first. A relu or clip that is the only user of a product bounds its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import Plan
from qir.ir.dtype import F32
from qir.ir.node import Value

from . import images
from .activations import Bounds, bounds, function_of, number
from .builder import FIRST, LAST, Buffer, CannotLower, ProgramBuilder, moved, sizes, strides
from .codes import Job
from .products import crossed, matrices, offsets, ordered, target
from .sizes import Sizes

FLOAT = 4
"""Bytes of an element."""


def takes(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an op is lowered here: all that it reads and makes is float32.

    Where the graph has quantized values too, these have to be those of the reference, which adds
    and computes in float64: then only those ops are lowered here that give its bytes.
    """
    known = LOWERINGS if b.real else EXACT
    values = (*job.operands.values(), job.result)
    return job.op in known and all(value.type.element == F32 for value in values)


# -- products -------------------------------------------------------------------------------------


def _ending(b: ProgramBuilder, job: Job) -> tuple[Value, Bounds]:
    """Returns the value that a product makes, and its bounds: those of an only user are taken
    along."""
    if len(job.tail) > 1:
        raise CannotLower("no kernel bounds a float result twice")
    if job.tail:
        return job.result, bounds(job.tail[0].op, job.tail[0].attrs)
    if len(job.result.uses) == 1 and job.result.name not in b.watched:
        (user,) = job.result.users
        if user.op in ("relu", "clip") and user.result.type.element == F32:
            try:
                return user.result, bounds(user.op, user.attrs)
            except CannotLower:
                pass
    return job.result, (None, None)


def _row(value: Value | None, count: int, slot: str) -> NDArray[np.float32] | None:
    """Returns a constant with one number for each of the last axis, or one for all."""
    if value is None:
        return None
    if value.constant is None:
        raise CannotLower(f"{slot} is no constant")
    data = np.asarray(value.constant.data, np.float32)
    if data.size not in (1, count) or data.shape[-1:] not in ((), (1,), (count,)):
        raise CannotLower(f"{slot} has another value for each row")
    return np.ascontiguousarray(np.broadcast_to(data.reshape(-1), count))


def conv2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution; an image that is typed channels last is put in order first."""
    if images.taken_last(b, job):
        images.convolution(b, job)
        return
    x, w = job.operands["x"], job.operands["w"]
    made, (low, high) = _ending(b, job)
    oc, depth, kh, kw = sizes(w)
    if not depth:
        raise CannotLower("w has no channels")
    bias = job.operands.get("bias")
    shift = None
    if bias is not None:
        if bias.constant is None:
            raise CannotLower("bias is no constant")
        shift = np.ascontiguousarray(bias.constant.data, np.float32).reshape(-1)
    known = None
    if w.constant is not None:
        known = np.ascontiguousarray(w.constant.data, np.float32).reshape(-1)
    source, weights = _first(b, x, job.nchw), b.need(w)
    shape = sizes(x) if job.nchw else moved(sizes(x), FIRST)
    stride, pad, dilation = job.pair("stride"), job.pads(), job.pair("dilation")
    groups = job.number("groups")

    def step(result: Buffer, held: Sizes) -> None:
        b.add(
            job.name,
            "float_conv2d",
            [source, weights],
            [result],
            held,
            lambda plan, at: plan.float_conv2d(
                job.name,
                at(source),
                at(weights),
                at(result),
                shift,
                shape=shape,
                kernel=(oc, kh, kw),
                stride=stride,
                pad=pad,
                dilation=dilation,
                groups=groups,
                low=low,
                high=high,
                constant=known,
            ),
        )

    _give_first(b, made, job.nchw, step)


def _first(b: ProgramBuilder, value: Value, nchw: bool) -> Buffer:
    """Returns an image channels first."""
    held = b.need(value)
    if nchw:
        return held
    turned = b.scratch(held.size)
    b.transpose(f"{value.name} to NCHW", held, turned, sizes(value), FIRST, FLOAT)
    return turned


def _give_first(
    b: ProgramBuilder, value: Value, nchw: bool, step: Callable[[Buffer, Sizes], None]
) -> None:
    """Lets a step make an image channels first, and puts it in the order in which it is typed."""
    if nchw:
        step(b.make(value), sizes(value))
        return
    shape = moved(sizes(value), FIRST)
    turned = b.scratch(math.prod(shape) * FLOAT)
    step(turned, shape)
    b.transpose(f"{value.name} to NHWC", turned, b.make(value), shape, LAST, FLOAT)


def linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"), turned=True)


def gemm(b: ProgramBuilder, job: Job) -> None:
    """Lowers alpha = beta = 1; a transposed a is put in order first."""
    added = job.operands.get("c")
    if job.attrs["alpha"] != 1.0 or (added is not None and job.attrs["beta"] != 1.0):
        raise CannotLower("alpha or beta is not 1")
    _product(b, job, "a", "b", added, turned=job.attrs["trans_b"] is True)


def matmul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product by one constant matrix, or of matrices that are both computed."""
    right = job.operands["b"]
    if right.constant is not None and right.type.rank == 2:
        turned = job.attrs["trans_b"] is True
        _product(b, job, "a", "b", job.operands.get("bias"), turned=turned)
    else:
        computed_product(b, job)


def _product(
    b: ProgramBuilder, job: Job, left: str, right: str, added: Value | None, *, turned: bool
) -> None:
    value, matrix = job.operands[left], job.operands[right]
    if matrix.constant is None or matrix.type.rank != 2:
        raise CannotLower(f"{right} is no constant matrix")
    data = np.asarray(matrix.constant.data, np.float32)
    columns = np.ascontiguousarray(data if turned else data.T)
    if not columns.size:
        raise CannotLower(f"{right} is empty")
    bias = _row(added, len(columns), "bias")
    across = job.op != "linear" and job.attrs["trans_a"] is True
    if across and value.type.rank != 2:
        raise CannotLower(f"a transposed {left} has {value.type.rank} axes, the kernels take 2")
    made, (low, high) = _ending(b, job)
    source = crossed(b, value) if across else b.need(value)
    rows = math.prod(sizes(value)) // columns.shape[1]
    result = b.make(made)
    b.add(
        job.name,
        "float_linear",
        [source],
        [result],
        sizes(made),
        lambda plan, at: plan.float_linear(
            job.name, at(source), at(result), columns, bias, rows=rows, low=low, high=high
        ),
    )


def computed_product(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product whose right operand is packed while it runs."""
    left, right = job.operands["a"], job.operands["b"]
    if "bias" in job.operands or job.tail:
        raise CannotLower("no kernel adds to a product of two computed matrices, or bounds it")
    if left.type.rank < 2 or right.type.rank < 2:
        raise CannotLower("an operand is a vector, the kernels take matrices")
    a, c = matrices(b, job, left, "trans_a"), matrices(b, job, right, "trans_b")
    made, order = target(b, job)
    result = b.make(made)
    out = moved(strides(sizes(made)), order)
    batch = sizes(job.result)[:-2]
    m, n, k = *sizes(job.result)[-2:], a.sizes[-1]
    if a.steps[-1] != 1 and k > 1:  # rows of a are read as they are: put them in order
        a = ordered(b, job, left, a)
    b.add(
        job.name,
        "float_matmul",
        [a.buffer, c.buffer],
        [result],
        sizes(job.result),
        lambda plan, at: plan.float_matmul(
            job.name,
            at(a.buffer),
            at(c.buffer),
            at(result),
            sizes=(m, k, n),
            a_at=a.offsets(batch),
            b_at=c.offsets(batch),
            y_at=offsets(out[:-2], batch, 0),
            a_row=a.steps[-2],
            b_steps=c.steps[-2:],
            y_row=out[-2],
        ),
    )


# -- functions of each element --------------------------------------------------------------------


def unary(b: ProgramBuilder, job: Job) -> None:
    """Lowers a function of each element; one that bounds may be done already, by a product."""
    if b.holds(job.result, last=False) or b.holds(job.result, last=True):
        return
    if job.tail:
        raise CannotLower(f"no kernel computes {job.op} |> {job.tail[0].op} as one")
    op, low, high = function_of(job.op, job.attrs)
    value = job.operands["x"]
    last = b.holds(value, last=True) and not b.holds(value, last=False)
    source, made = b.need(value, last=last), b.make(job.result, last=last)
    size = math.prod(sizes(value))
    b.add(
        job.name,
        f"float_{op}",
        [source],
        [made],
        sizes(value),
        lambda plan, at: plan.float_unary(
            job.name, at(source), at(made), op=op, size=size, a=low, b=high
        ),
    )


def power(b: ProgramBuilder, job: Job) -> None:
    """Lowers squares."""
    exponent = job.operands["b"].constant
    if exponent is None or exponent.data.size != 1 or sizes(job.result) != sizes(job.operands["a"]):
        raise CannotLower("b is no single constant")
    if (found := float(np.asarray(exponent.data, np.float64).reshape(-1)[0])) != 2:
        raise CannotLower(f"no kernel raises to the power {found}")
    unary(b, replace(job, op="square", operands={"x": job.operands["a"]}))


# -- pools and means ------------------------------------------------------------------------------


def max_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers the greatest of each window."""
    if job.tail:
        raise CannotLower(f"no kernel computes max_pool2d |> {job.tail[0].op} as one")
    if images.held_last(b, job):
        images.pool(b, job, average=False)
        return
    value = job.operands["x"]
    x, y = sizes(value), sizes(job.result)
    shape, out = (x, y[2:]) if job.nchw else (moved(x, FIRST), y[1:3])
    kernel, stride, pad = job.pair("kernel"), job.pair("stride"), job.pads()
    dilation = job.pair("dilation")
    source = _first(b, value, job.nchw)

    def step(result: Buffer, held: Sizes) -> None:
        b.add(
            job.name,
            "float_max_pool2d",
            [source],
            [result],
            held,
            lambda plan, at: plan.float_max_pool2d(
                job.name,
                at(source),
                at(result),
                shape=shape,
                kernel=kernel,
                stride=stride,
                pad=pad,
                dilation=dilation,
                out=out,
            ),
        )

    _give_first(b, job.result, job.nchw, step)


def avg_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean of windows; one window that is the whole image is a mean of lines."""
    if job.tail:
        raise CannotLower(f"no kernel computes avg_pool2d |> {job.tail[0].op} as one")
    value = job.operands["x"]
    x, y = sizes(value), sizes(job.result)
    shape, out = (x, y[2:]) if job.nchw else (moved(x, FIRST), y[1:3])
    kernel, stride, pad = job.pair("kernel"), job.pair("stride"), job.pads()
    if kernel == shape[2:] and not any(pad):
        global_avg_pool(b, job)
        return
    if images.held_last(b, job):
        images.pool(b, job, average=True)
        return
    count_pad = job.attrs["count_pad"] is True
    source = _first(b, value, job.nchw)

    def step(result: Buffer, held: Sizes) -> None:
        b.add(
            job.name,
            "float_avg_pool2d",
            [source],
            [result],
            held,
            lambda plan, at: plan.float_avg_pool2d(
                job.name,
                at(source),
                at(result),
                shape=shape,
                kernel=kernel,
                stride=stride,
                pad=pad,
                out=out,
                count_pad=count_pad,
            ),
        )

    _give_first(b, job.result, job.nchw, step)


def batch_norm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a batch norm by constants."""
    if job.tail:
        raise CannotLower(f"no kernel bounds a float result by {job.tail[0].op}")
    rows = []
    for slot in ("gamma", "beta", "mean", "var"):
        held = job.operands[slot].constant
        if held is None:
            raise CannotLower(f"{slot} is no constant")
        rows.append(np.asarray(held.data, np.float64).reshape(-1))
    gamma, beta, mean, var = rows
    with np.errstate(all="ignore"):
        slope = gamma / np.sqrt(var + number(job.attrs, "eps"))
    numbers = np.stack([mean, slope, beta], axis=1)
    value = job.operands["x"]
    shape = sizes(value)
    axis = job.number("axis") % len(shape)
    source, made = b.need(value), b.make(job.result)
    b.add(
        job.name,
        "float_batch_norm",
        [source],
        [made],
        shape,
        lambda plan, at: plan.float_batch_norm(
            job.name,
            at(source),
            at(made),
            outer=math.prod(shape[:axis]),
            inner=math.prod(shape[axis + 1 :]),
            numbers=numbers,
        ),
    )


def global_avg_pool(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean over all but batch and channels."""
    rank = job.operands["x"].type.rank
    _mean(b, job, tuple(range(2, rank) if job.nchw else range(1, rank - 1)))


def reduce_mean(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean over axes that stand together."""
    rank = job.operands["x"].type.rank
    _mean(b, job, tuple(sorted({axis % rank for axis in job.ints("axes")})) or tuple(range(rank)))


def _mean(b: ProgramBuilder, job: Job, over: Sizes) -> None:
    if job.tail:
        raise CannotLower(f"no kernel bounds a float result by {job.tail[0].op}")
    value = job.operands["x"]
    shape = sizes(value)
    if len(shape) == 4 and over in ((1, 2), (2, 3)) and not b.watched:
        typed_first = over == (2, 3)
        if not typed_first or b.holds(value, last=True):
            images.mean(b, job, typed_first)
            return
    kept = tuple(axis for axis in range(len(shape)) if axis not in over)
    order = (*kept, *over)
    source = b.need(value)
    if order != tuple(range(len(shape))):
        turned = b.scratch(source.size)
        b.transpose(f"{value.name} for the mean", source, turned, shape, order, FLOAT)
        source = turned
    made = b.make(job.result)
    rows, width = (math.prod(shape[axis] for axis in axes) for axes in (kept, over))
    b.add(
        job.name,
        "float_mean",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.float_mean(job.name, at(source), at(made), rows=rows, width=width),
    )


# -- one axis -------------------------------------------------------------------------------------


def conv1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution of rows: images of one line."""
    x, w = job.operands["x"], job.operands["w"]
    made, (low, high) = _ending(b, job)
    (n, channels, width), (oc, depth, size) = sizes(x), sizes(w)
    if not depth:
        raise CannotLower("w has no channels")
    shift = _row(job.operands.get("bias"), oc, "bias")
    (stride,), (front, back), (dilation,) = (job.ints(a) for a in ("stride", "pad", "dilation"))
    groups = job.number("groups")
    source, weights, result = b.need(x), b.need(w), b.make(made)
    b.add(
        job.name,
        "float_conv2d",
        [source, weights],
        [result],
        sizes(made),
        lambda plan, at: plan.float_conv2d(
            job.name,
            at(source),
            at(weights),
            at(result),
            shift,
            shape=(n, channels, 1, width),
            kernel=(oc, 1, size),
            stride=(1, stride),
            pad=(0, front, 0, back),
            dilation=(1, dilation),
            groups=groups,
            low=low,
            high=high,
        ),
    )


def pool1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers the greatest or the mean of the windows of rows: images of one line."""
    value = job.operands["x"]
    if job.tail or any(v.type.element != F32 for v in (value, job.result)):
        raise CannotLower("the kernel pools f32 alone")
    n, channels, width = sizes(value)
    (size,), (stride,), (front, back) = (job.ints(a) for a in ("kernel", "stride", "pad"))
    (dilation,) = job.ints("dilation") if job.op == "max_pool1d" else (1,)
    count_pad = job.attrs.get("count_pad") is True
    shape, kernel, by = (n, channels, 1, width), (1, size), (1, stride)
    pad, out = (0, front, 0, back), (1, sizes(job.result)[-1])
    source, made = b.need(value), b.make(job.result)

    def add(plan: Plan, at: Callable[[Buffer], int]) -> None:
        x, y = at(source), at(made)
        if job.op == "max_pool1d":
            plan.float_max_pool2d(job.name, x, y, shape=shape, kernel=kernel, stride=by, pad=pad,
                                  dilation=(1, dilation), out=out)  # fmt: skip
        else:
            plan.float_avg_pool2d(job.name, x, y, shape=shape, kernel=kernel, stride=by, pad=pad,
                                  out=out, count_pad=count_pad)  # fmt: skip

    kind = "float_max_pool2d" if job.op == "max_pool1d" else "float_avg_pool2d"
    b.add(job.name, kind, [source], [made], sizes(job.result), add)


EXACT = frozenset(
    {
        "max_pool2d",
        "relu",
        "clip",
        "sqrt",
        "square",
        "hard_sigmoid",
        "hard_swish",
        "leaky_relu",
        "abs",
        "batch_norm",
    }
)
"""Ops whose kernels give the bytes of the reference."""

LOWERINGS: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    "conv2d": conv2d,
    "conv1d": conv1d,
    "gemm": gemm,
    "linear": linear,
    "matmul": matmul,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "batch_norm": batch_norm,
    "leaky_relu": unary,
    "abs": unary,
    "global_avg_pool": global_avg_pool,
    "reduce_mean": reduce_mean,
    "pow": power,
    "relu": unary,
    "clip": unary,
    "sigmoid": unary,
    "tanh": unary,
    "erf": unary,
    "gelu": unary,
    "silu": unary,
    "sqrt": unary,
    "square": unary,
    "hard_sigmoid": unary,
    "hard_swish": unary,
}
