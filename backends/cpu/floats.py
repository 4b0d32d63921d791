"""Float32 ops: products and convolutions, elementwise functions, pools and means.

Sums are in the order of `qir/_kernels/floats/sgemm.h`. Values are held as their types say, images
in NCHW unless `float_nhwc` computes them. A relu or clip that is a product's only consumer is
fused.
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

from . import float_nhwc
from .activations import Bounds, clamp_bounds, float_attr, kernel_function
from .builder import TO_NCHW, TO_NHWC, Buffer, CannotLower, ProgramBuilder, permuted, sizes, strides
from .kernel_types import Job, gemm_addend, per_column, transposed_copy
from .normalizations import softmax
from .products import fused_transpose, matrices, offsets, row_major, transposed_matrix
from .sizes import Sizes

FLOAT_BYTES = 4
"""Bytes of a float32 element."""


def has_float_kernel(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an op is lowered by this module: all its operands and its result are float32.

    In a graph with quantized values, floats have to equal those of the reference, which sums in
    float64: else an integer moves by a step. Only the ops of `BIT_EXACT_OPS` guarantee that.
    """
    known = LOWERINGS if b.is_float else BIT_EXACT_OPS
    values = (*job.operands.values(), job.result)
    return job.op in known and all(value.type.element == F32 for value in values)


# -- products -------------------------------------------------------------------------------------


def _fused_clamp(b: ProgramBuilder, job: Job) -> tuple[Value, Bounds]:
    """Returns the value that a product computes, and the bounds of the relu or clip fused to it."""
    if len(job.epilogue) > 1:
        raise CannotLower("no kernel bounds a float result twice")
    if job.epilogue:
        return job.result, clamp_bounds(job.epilogue[0].op, job.epilogue[0].attrs)
    # A relu or clip that is the only consumer needs no step of its own.
    if len(job.result.uses) == 1 and job.result.name not in b.watched:
        (user,) = job.result.users
        if user.op in ("relu", "clip") and user.result.type.element == F32:
            try:
                return user.result, clamp_bounds(user.op, user.attrs)
            # A bound that is NaN: the clip is lowered on its own, and refused there.
            except CannotLower:
                pass
    return job.result, (None, None)


def _per_column_constant(value: Value | None, count: int, slot: str) -> NDArray[np.float32] | None:
    """Returns a constant with one value for each column, or one for all."""
    if value is None:
        return None
    if value.constant is None:
        raise CannotLower(f"{slot} is no constant")
    return per_column(np.asarray(value.constant.data, np.float32), count, slot)


def conv2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution; NHWC images that the NHWC kernel refuses are transposed first."""
    if float_nhwc.can_convolve_nhwc(b, job):
        float_nhwc.convolution(b, job)
        return
    x, w = job.operands["x"], job.operands["w"]
    target_value, (low, high) = _fused_clamp(b, job)
    oc, depth, kh, kw = sizes(w)
    if not depth:
        raise CannotLower("w has no channels")
    bias = job.operands.get("bias")
    bias_data = None
    if bias is not None:
        if bias.constant is None:
            raise CannotLower("bias is no constant")
        bias_data = np.ascontiguousarray(bias.constant.data, np.float32).reshape(-1)
    constant_weights = None
    if w.constant is not None:
        constant_weights = np.ascontiguousarray(w.constant.data, np.float32).reshape(-1)
    source, weights = _nchw_buffer(b, x, job.nchw), b.buffer(w)
    shape = sizes(x) if job.nchw else permuted(sizes(x), TO_NCHW)
    stride, pad, dilation = job.int_pair("stride"), job.pads(), job.int_pair("dilation")
    groups = job.int_attr("groups")

    def step(result: Buffer, result_sizes: Sizes) -> None:
        b.add(
            job.name,
            "float_conv2d",
            [source, weights],
            [result],
            result_sizes,
            lambda plan, at: plan.float_conv2d(
                job.name,
                at(source),
                at(weights),
                at(result),
                bias_data,
                shape=shape,
                kernel=(oc, kh, kw),
                stride=stride,
                pad=pad,
                dilation=dilation,
                groups=groups,
                low=low,
                high=high,
                constant=constant_weights,
            ),
        )

    _add_nchw_step(b, target_value, job.nchw, step)


def _nchw_buffer(b: ProgramBuilder, value: Value, nchw: bool) -> Buffer:
    """Returns an image in NCHW."""
    source = b.buffer(value)
    if nchw:
        return source
    transposed = b.scratch(source.size)
    b.transpose(f"{value.name} to NCHW", source, transposed, sizes(value), TO_NCHW, FLOAT_BYTES)
    return transposed


def _add_nchw_step(
    b: ProgramBuilder, value: Value, nchw: bool, step: Callable[[Buffer, Sizes], None]
) -> None:
    """Adds a step that writes an image in NCHW, and transposes the result if its type is NHWC."""
    if nchw:
        step(b.allocate(value), sizes(value))
        return
    shape = permuted(sizes(value), TO_NCHW)
    transposed = b.scratch(math.prod(shape) * FLOAT_BYTES)
    step(transposed, shape)
    b.transpose(f"{value.name} to NHWC", transposed, b.allocate(value), shape, TO_NHWC, FLOAT_BYTES)


def linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"), transposed=True)


def gemm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a Gemm with alpha = beta = 1; a transposed operand a is transposed first."""
    _product(b, job, "a", "b", gemm_addend(job), transposed=job.attrs["trans_b"] is True)


def matmul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product with a constant matrix, or of two computed ones."""
    right = job.operands["b"]
    if right.constant is not None and right.type.rank == 2:
        transposed = job.attrs["trans_b"] is True
        _product(b, job, "a", "b", job.operands.get("bias"), transposed=transposed)
    else:
        computed_product(b, job)


def _product(
    b: ProgramBuilder,
    job: Job,
    left: str,
    right: str,
    bias_value: Value | None,
    *,
    transposed: bool,
) -> None:
    value, matrix = job.operands[left], job.operands[right]
    if matrix.constant is None or matrix.type.rank != 2:
        raise CannotLower(f"{right} is no constant matrix")
    data = np.asarray(matrix.constant.data, np.float32)
    # Packed once: a column of the matrix is a row of the packed weights.
    columns = np.ascontiguousarray(data) if transposed else transposed_copy(data)
    if not columns.size:
        raise CannotLower(f"{right} is empty")
    bias = _per_column_constant(bias_value, len(columns), "bias")
    a_transposed = job.op != "linear" and job.attrs["trans_a"] is True
    if a_transposed and value.type.rank != 2:
        raise CannotLower(f"a transposed {left} has {value.type.rank} axes, the kernels take 2")
    target_value, (low, high) = _fused_clamp(b, job)
    source = transposed_matrix(b, value) if a_transposed else b.buffer(value)
    rows = math.prod(sizes(value)) // columns.shape[1]
    result = b.allocate(target_value)
    b.add(
        job.name,
        "float_linear",
        [source],
        [result],
        sizes(target_value),
        lambda plan, at: plan.float_linear(
            job.name, at(source), at(result), columns, bias, rows=rows, low=low, high=high
        ),
    )


def computed_product(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product of two computed matrices: the right one is packed at run time."""
    left, right = job.operands["a"], job.operands["b"]
    if "bias" in job.operands or job.epilogue:
        raise CannotLower("no kernel adds to a product of two computed matrices, or bounds it")
    if left.type.rank < 2 or right.type.rank < 2:
        raise CannotLower("an operand is a vector, the kernels take matrices")
    left_matrices, right_matrices = (
        matrices(b, job, left, "trans_a"),
        matrices(b, job, right, "trans_b"),
    )
    # A transpose after the product is written by the product itself, through its result strides.
    target_value, order = fused_transpose(b, job)
    result = b.allocate(target_value)
    result_strides = permuted(strides(sizes(target_value)), order)
    batch = sizes(job.result)[:-2]
    m, n, k = *sizes(job.result)[-2:], left_matrices.sizes[-1]
    if (
        left_matrices.strides[-1] != 1 and k > 1
    ):  # rows of a are read as they are: put them in order
        left_matrices = row_major(b, job, left, left_matrices)
    b.add(
        job.name,
        "float_matmul",
        [left_matrices.buffer, right_matrices.buffer],
        [result],
        sizes(job.result),
        lambda plan, at: plan.float_matmul(
            job.name,
            at(left_matrices.buffer),
            at(right_matrices.buffer),
            at(result),
            sizes=(m, k, n),
            a_at=left_matrices.offsets(batch),
            b_at=right_matrices.offsets(batch),
            y_at=offsets(result_strides[:-2], batch, 0),
            a_row=left_matrices.strides[-2],
            b_steps=right_matrices.strides[-2:],
            y_row=result_strides[-2],
        ),
    )


# -- functions of each element --------------------------------------------------------------------


def unary(b: ProgramBuilder, job: Job) -> None:
    """Lowers an elementwise function; a relu or clip may have been fused to a product already."""
    if b.has_buffer(job.result, nhwc=False) or b.has_buffer(job.result, nhwc=True):
        return
    if job.epilogue:
        raise CannotLower(f"no kernel computes {job.op} |> {job.epilogue[0].op} as one")
    op, low, high = kernel_function(job.op, job.attrs)
    value = job.operands["x"]
    # An elementwise op keeps the layout that its operand has.
    nhwc = b.is_nhwc(value)
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=nhwc)
    size = math.prod(sizes(value))
    b.add(
        job.name,
        f"float_{op}",
        [source],
        [target],
        sizes(value),
        lambda plan, at: plan.float_unary(
            job.name, at(source), at(target), op=op, size=size, a=low, b=high
        ),
    )


def power(b: ProgramBuilder, job: Job) -> None:
    """Lowers x ** 2; other exponents have no kernel."""
    exponent = job.operands["b"].constant
    if exponent is None or exponent.data.size != 1 or sizes(job.result) != sizes(job.operands["a"]):
        raise CannotLower("b is no single constant")
    if (exponent_value := float(np.asarray(exponent.data, np.float64).reshape(-1)[0])) != 2:
        raise CannotLower(f"no kernel raises to the power {exponent_value}")
    unary(b, replace(job, op="square", operands={"x": job.operands["a"]}))


# -- pools and means ------------------------------------------------------------------------------


def max_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a max pool."""
    if job.epilogue:
        raise CannotLower(f"no kernel computes max_pool2d |> {job.epilogue[0].op} as one")
    if float_nhwc.is_held_nhwc(b, job):
        float_nhwc.pool(b, job, average=False)
        return
    value = job.operands["x"]
    x, y = sizes(value), sizes(job.result)
    shape, out = (x, y[2:]) if job.nchw else (permuted(x, TO_NCHW), y[1:3])
    kernel, stride, pad = job.int_pair("kernel"), job.int_pair("stride"), job.pads()
    dilation = job.int_pair("dilation")
    source = _nchw_buffer(b, value, job.nchw)

    def step(result: Buffer, result_sizes: Sizes) -> None:
        b.add(
            job.name,
            "float_max_pool2d",
            [source],
            [result],
            result_sizes,
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

    _add_nchw_step(b, job.result, job.nchw, step)


def avg_pool2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers an average pool; one whose window is the whole image is a mean of rows."""
    if job.epilogue:
        raise CannotLower(f"no kernel computes avg_pool2d |> {job.epilogue[0].op} as one")
    value = job.operands["x"]
    x, y = sizes(value), sizes(job.result)
    shape, out = (x, y[2:]) if job.nchw else (permuted(x, TO_NCHW), y[1:3])
    kernel, stride, pad = job.int_pair("kernel"), job.int_pair("stride"), job.pads()
    if kernel == shape[2:] and not any(pad):
        global_avg_pool(b, job)
        return
    if float_nhwc.is_held_nhwc(b, job):
        float_nhwc.pool(b, job, average=True)
        return
    count_pad = job.attrs["count_pad"] is True
    source = _nchw_buffer(b, value, job.nchw)

    def step(result: Buffer, result_sizes: Sizes) -> None:
        b.add(
            job.name,
            "float_avg_pool2d",
            [source],
            [result],
            result_sizes,
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

    _add_nchw_step(b, job.result, job.nchw, step)


def batch_norm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a batch norm with constant parameters."""
    if job.epilogue:
        raise CannotLower(f"no kernel bounds a float result by {job.epilogue[0].op}")
    parameters = []
    # One row (mean, slope, beta) for each channel: y = (x - mean) * slope + beta.
    for slot in ("gamma", "beta", "mean", "var"):
        constant = job.operands[slot].constant
        if constant is None:
            raise CannotLower(f"{slot} is no constant")
        parameters.append(np.asarray(constant.data, np.float64).reshape(-1))
    gamma, beta, mean, var = parameters
    with np.errstate(all="ignore"):
        # In float64, as the reference computes it; the kernel rounds the result once.
        slope = gamma / np.sqrt(var + float_attr(job.attrs, "eps"))
    channel_rows = np.stack([mean, slope, beta], axis=1)
    value = job.operands["x"]
    shape = sizes(value)
    axis = job.int_attr("axis") % len(shape)
    source, target = b.buffer(value), b.allocate(job.result)
    b.add(
        job.name,
        "float_batch_norm",
        [source],
        [target],
        shape,
        lambda plan, at: plan.float_batch_norm(
            job.name,
            at(source),
            at(target),
            outer=math.prod(shape[:axis]),
            inner=math.prod(shape[axis + 1 :]),
            numbers=channel_rows,
        ),
    )


def global_avg_pool(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean over all but batch and channels."""
    rank = job.operands["x"].type.rank
    _mean(b, job, tuple(range(2, rank) if job.nchw else range(1, rank - 1)))


def reduce_mean(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean over any axes; those that are not innermost are transposed first."""
    rank = job.operands["x"].type.rank
    _mean(
        b, job, tuple(sorted({axis % rank for axis in job.int_tuple("axes")})) or tuple(range(rank))
    )


def _mean(b: ProgramBuilder, job: Job, reduced_axes: Sizes) -> None:
    if job.epilogue:
        raise CannotLower(f"no kernel bounds a float result by {job.epilogue[0].op}")
    value = job.operands["x"]
    # The kernel takes means of innermost rows, so that the reduced axes are moved to the end.
    if any(v.type.element != F32 for v in (value, job.result)):
        raise CannotLower("no kernel takes the mean of integers over these axes")
    shape = sizes(value)
    # Means over all pixels of NHWC images have a kernel of their own.
    if len(shape) == 4 and reduced_axes in ((1, 2), (2, 3)) and not b.watched:
        typed_first = reduced_axes == (2, 3)
        if not typed_first or b.has_buffer(value, nhwc=True):
            float_nhwc.mean(b, job, typed_first)
            return
    kept = tuple(axis for axis in range(len(shape)) if axis not in reduced_axes)
    order = (*kept, *reduced_axes)
    source = b.buffer(value)
    if order != tuple(range(len(shape))):
        transposed = b.scratch(source.size)
        b.transpose(f"{value.name} for the mean", source, transposed, shape, order, FLOAT_BYTES)
        source = transposed
    target = b.allocate(job.result)
    rows, width = (math.prod(shape[axis] for axis in axes) for axes in (kept, reduced_axes))
    b.add(
        job.name,
        "float_mean",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.float_mean(job.name, at(source), at(target), rows=rows, width=width),
    )


# -- one axis -------------------------------------------------------------------------------------


def conv1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a 1-D convolution as images of height 1."""
    x, w = job.operands["x"], job.operands["w"]
    target_value, (low, high) = _fused_clamp(b, job)
    (n, channels, width), (oc, depth, size) = sizes(x), sizes(w)
    if not depth:
        raise CannotLower("w has no channels")
    bias_data = _per_column_constant(job.operands.get("bias"), oc, "bias")
    (stride,), (before, after), (dilation,) = (
        job.int_tuple(a) for a in ("stride", "pad", "dilation")
    )
    groups = job.int_attr("groups")
    source, weights, result = b.buffer(x), b.buffer(w), b.allocate(target_value)
    b.add(
        job.name,
        "float_conv2d",
        [source, weights],
        [result],
        sizes(target_value),
        lambda plan, at: plan.float_conv2d(
            job.name,
            at(source),
            at(weights),
            at(result),
            bias_data,
            shape=(n, channels, 1, width),
            kernel=(oc, 1, size),
            stride=(1, stride),
            pad=(0, before, 0, after),
            dilation=(1, dilation),
            groups=groups,
            low=low,
            high=high,
        ),
    )


def pool1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a 1-D pool as images of height 1."""
    value = job.operands["x"]
    if job.epilogue or any(v.type.element != F32 for v in (value, job.result)):
        raise CannotLower("the kernel pools f32 alone")
    n, channels, width = sizes(value)
    (size,), (stride,), (before, after) = (job.int_tuple(a) for a in ("kernel", "stride", "pad"))
    (dilation,) = job.int_tuple("dilation") if job.op == "max_pool1d" else (1,)
    count_pad = job.attrs.get("count_pad") is True
    shape, kernel, steps = (n, channels, 1, width), (1, size), (1, stride)
    pad, out = (0, before, 0, after), (1, sizes(job.result)[-1])
    source, target = b.buffer(value), b.allocate(job.result)

    def add(plan: Plan, at: Callable[[Buffer], int]) -> None:
        x, y = at(source), at(target)
        if job.op == "max_pool1d":
            plan.float_max_pool2d(job.name, x, y, shape=shape, kernel=kernel, stride=steps, pad=pad,
                                  dilation=(1, dilation), out=out)  # fmt: skip
        else:
            plan.float_avg_pool2d(job.name, x, y, shape=shape, kernel=kernel, stride=steps, pad=pad,
                                  out=out, count_pad=count_pad)  # fmt: skip

    kind = "float_max_pool2d" if job.op == "max_pool1d" else "float_avg_pool2d"
    b.add(job.name, kind, [source], [target], sizes(job.result), add)


BIT_EXACT_OPS = frozenset(
    {
        "max_pool2d",
        "relu",
        "clip",
        "sqrt",
        "square",
        "hard_sigmoid",
        "leaky_relu",
        "abs",
        "batch_norm",
    }
)
"""Ops whose float kernels give the same bytes as the reference."""

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
    "softmax": softmax,
}
