"""Float ops in quantized models: float64 sums of float32, as the reference computes them.

A float32 sum in another order would move some quantized values by a step. The module also has
products with block-quantized weights of 4 or 8 bits, 1-D and 3-D convolutions, and transposed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import Plan
from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from qir.ir.types import QuantType
from qir.records import record

from .activations import clamp_bounds
from .builder import TO_NCHW, TO_NHWC, Buffer, CannotLower, ProgramBuilder, permuted, sizes, strides
from .kernel_types import Job, gemm_addend, per_column
from .products import Matrices
from .sizes import Sizes

FLOAT_BYTES = 4
"""Bytes of a float32 element."""
BLOCK_BITS = (4, 8)
"""Bits of the block-quantized weights that the kernel unpacks."""


def _require_floats(job: Job) -> None:
    """Raises CannotLower unless operands and result are float32."""
    for slot, value in (*job.operands.items(), ("the result", job.result)):
        if value.type.element != F32:
            raise CannotLower(f"{slot} is {value.type.element}, the kernel takes f32")


def _result_and_clamps(b: ProgramBuilder, job: Job) -> tuple[Buffer, list[tuple[float, float]]]:
    """Allocates the result, and returns the bounds of fused activations, which apply after
    rounding."""
    bounds = [clamp_bounds(stage.op, stage.attrs) for stage in job.epilogue]
    return b.allocate(job.result), [
        (-math.inf if low is None else low, math.inf if high is None else high)
        for low, high in bounds
    ]


def _add_clamps(
    b: ProgramBuilder, job: Job, target: Buffer, bounds: list[tuple[float, float]]
) -> None:
    """Adds a step for each fused activation."""
    for low, high in bounds:
        b.add(
            job.name,
            "float_bound",
            [target],
            [target],
            sizes(job.result),
            partial(_add_clamp, job.name, target, low, high),
        )


def _add_clamp(
    name: str, target: Buffer, low: float, high: float, plan: Plan, at: Callable[[Buffer], int]
) -> None:
    size = target.size // FLOAT_BYTES
    plan.float_unary(name, at(target), at(target), op="bound", size=size, a=low, b=high)


# -- matrices -------------------------------------------------------------------------------------


@record
class BlockWeights:
    """A constant matrix of 4 or 8 bits: a row of integers for each column of the product."""

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero: NDArray[np.int32]
    bits: int
    block: int


def block_weights(b: ProgramBuilder, value: Value, *, transposed: bool) -> BlockWeights | None:
    """Returns the integers of a matrix that is a dequantized constant; None for any other
    matrix."""
    source = b.folded_source(value)
    if source is None or source.type.rank != 2:
        return None
    quant = source.type.quant
    assert quant is not None
    assert source.constant is not None
    columns, depth = sizes(source) if transposed else sizes(source)[::-1]
    depth_axis = 1 if transposed else 0
    if quant.storage.bits not in BLOCK_BITS or not _is_plain_uniform(quant):
        return None
    depth_per_scale = (
        dict(quant.granularity.blocks).get(depth_axis, depth) if quant.granularity else depth
    )
    columns_per_scale = (
        dict(quant.granularity.blocks).get(1 - depth_axis, columns)
        if quant.granularity
        else columns
    )
    # Integers are counted from the lowest one: the kernel reads unsigned values and zero points.
    low = quant.storage.bounds[0]
    integers = np.asarray(source.constant.data, np.int64) - low
    rows = np.ascontiguousarray((integers if transposed else integers.T).astype(np.uint8))
    count = -(-depth // depth_per_scale)
    parameters: list[NDArray[Any]] = []
    # A scale and a zero point for each column and each block of the depth.
    for values in (np.asarray(quant.scales(), np.float32), quant.zeros().astype(np.int32) - low):
        shape = (
            (-(-columns // columns_per_scale), count)
            if transposed
            else (count, -(-columns // columns_per_scale))
        )
        table = np.asarray(values).reshape(shape)
        table = table if transposed else table.T
        parameters.append(
            np.ascontiguousarray(np.repeat(table, columns_per_scale, axis=0)[:columns])
        )
    if quant.storage.bits == 4:
        # Two 4-bit integers share a byte, the first in the low bits.
        padded = np.pad(rows, ((0, 0), (0, depth % 2)))
        rows = np.ascontiguousarray(padded[:, ::2] | padded[:, 1::2] << 4)
    return BlockWeights(rows, parameters[0], parameters[1], quant.storage.bits, depth_per_scale)


def _is_plain_uniform(quant: QuantType) -> bool:
    return (
        quant.kind == "uniform"
        and quant.plus is None
        and not quant.dynamic
        and not quant.has_float_zero
        and quant.express == F32
        and quant.scale_dtype is None
        and quant.storage.is_integer
        and (quant.granularity is None or quant.granularity.by is None)
    )


def matmul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product of matrices, constant or computed."""
    _product(b, job, "a", "b", job.operands.get("bias"))


def gemm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a Gemm with alpha = beta = 1."""
    _product(b, job, "a", "b", gemm_addend(job))


def linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"))


def per_column_constant(
    b: ProgramBuilder, value: Value | None, count: int, slot: str
) -> NDArray[np.float32] | None:
    """Returns a constant with one value for each column, or one for all."""
    if value is None:
        return None
    elements = b.constant_elements(value)
    if elements is None:
        raise CannotLower(f"{slot} is no constant")
    return per_column(np.asarray(elements, np.float32), count, slot)


def _product(b: ProgramBuilder, job: Job, left: str, right: str, bias_value: Value | None) -> None:
    _require_floats(job)
    left_value, right_value = job.operands[left], job.operands[right]
    if left_value.type.rank < 2 or right_value.type.rank < 2:
        raise CannotLower("an operand is a vector, the kernels take matrices")
    b_transposed = job.op == "linear" or job.attrs["trans_b"] is True
    left_matrices = _left_matrices(
        b, left_value, transposed=job.op != "linear" and job.attrs["trans_a"] is True
    )
    n = sizes(right_value)[-2 if b_transposed else -1]
    # The kernel unpacks block-quantized weights itself; no float matrix of them is made.
    bias, packed = (
        per_column_constant(b, bias_value, n, "bias"),
        block_weights(b, right_value, transposed=b_transposed),
    )
    right_matrices = (
        _right_matrices(b, right_value, transposed=b_transposed) if packed is None else packed
    )
    target, bounds = _result_and_clamps(b, job)
    multiply(b, job.name, left_matrices, right_matrices, target, sizes(job.result), bias)
    _add_clamps(b, job, target, bounds)


def multiply(
    b: ProgramBuilder,
    name: str,
    left_operand: Matrices,
    right_operand: Matrices | BlockWeights,
    target: Buffer,
    result: Sizes,
    bias: NDArray[np.float32] | None = None,
    *,
    to_whole: bool = False,
) -> None:
    """Adds a product of matrices."""
    *batch, m, n = result
    k = left_operand.sizes[-1]
    if (
        isinstance(right_operand, BlockWeights) or len(right_operand.sizes) == 2
    ) and left_operand.is_contiguous:  # all rows are one matrix
        batch, m = [], math.prod(result[:-1])
        left_operand = Matrices(left_operand.buffer, (m, k), (k, 1))
    count = math.prod(batch)
    right_arguments: dict[str, Any] = {"b_steps": (0, 0), "b_at": np.zeros(count, np.uint64)}
    if isinstance(right_operand, BlockWeights):
        for slot in ("codes", "scale", "zero", "bits", "block"):
            right_arguments[slot] = getattr(right_operand, slot)
    else:
        right_arguments.update(
            b_steps=right_operand.strides[-2:], b_at=right_operand.offsets(tuple(batch))
        )
    right = left_operand.buffer if isinstance(right_operand, BlockWeights) else right_operand.buffer
    b.add(
        name,
        "wide_product",
        list(dict.fromkeys((left_operand.buffer, right))),
        [target],
        result,
        lambda plan, at: plan.wide_product(
            name,
            at(left_operand.buffer),
            at(right),
            at(target),
            bias,
            sizes=(m, k, n),
            a_at=left_operand.offsets(tuple(batch)),
            y_at=np.arange(count, dtype=np.uint64) * np.uint64(m * n),
            a_row=left_operand.strides[-2],
            y_row=n,
            to_whole=to_whole,
            **right_arguments,
        ),
    )


def _left_matrices(b: ProgramBuilder, value: Value, *, transposed: bool) -> Matrices:
    """Returns the left matrices with contiguous rows."""
    shape = sizes(value)
    if not transposed:
        return Matrices(b.buffer(value), shape, strides(shape))
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    source, transposed_buffer = b.buffer(value), b.scratch(math.prod(shape) * FLOAT_BYTES)
    b.transpose(f"{value.name} transposed", source, transposed_buffer, shape, perm, FLOAT_BYTES)
    return Matrices(transposed_buffer, permuted(shape, perm), strides(permuted(shape, perm)))


def _right_matrices(b: ProgramBuilder, value: Value, *, transposed: bool) -> Matrices:
    """Returns the right matrices; the kernel reads any strides."""
    view, shape = b.view(value), sizes(value)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    if transposed:
        return Matrices(
            view.buffer, permuted(shape, order), permuted(view.strides, order), view.offset
        )
    return Matrices(view.buffer, shape, view.strides, view.offset)


# -- convolutions ---------------------------------------------------------------------------------


def conv(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution of one to three axes; an NHWC image is transposed first."""
    _conv(b, job, transposed=False)


def transposed(b: ProgramBuilder, job: Job) -> None:
    """Lowers a transposed convolution."""
    _conv(b, job, transposed=True)


def _conv(b: ProgramBuilder, job: Job, *, transposed: bool) -> None:
    _require_floats(job)
    x, w = job.operands["x"], job.operands["w"]
    nchw = job.attrs.get("layout", "NCHW") == "NCHW"
    shape, result = sizes(x), sizes(job.result)
    # The kernel reads NCHW: NHWC images are transposed before and after it.
    if not nchw:
        shape, result = permuted(shape, TO_NCHW), permuted(result, TO_NCHW)
    axes, channels = len(shape) - 2, result[1]
    bias = per_column_constant(b, job.operands.get("bias"), channels, "bias")
    weights, source = b.buffer(w), b.buffer(x)
    if not nchw:
        nhwc_source, source = source, b.scratch(source.size)
        b.transpose(f"{x.name} to NCHW", nhwc_source, source, sizes(x), TO_NCHW, FLOAT_BYTES)
    target, bounds = _result_and_clamps(b, job)
    nchw_target = target if nchw else b.scratch(target.size)
    convolve(
        b,
        job.name,
        source,
        weights,
        nchw_target,
        bias,
        shape=shape,
        kernel=sizes(w)[2:],
        result=result,
        stride=job.int_tuple("stride"),
        pad=job.int_tuple("pad")[:axes],
        dilation=job.int_tuple("dilation"),
        groups=job.int_attr("groups"),
        transposed=transposed,
    )
    if not nchw:
        b.transpose(f"{job.name} to NHWC", nchw_target, target, result, TO_NHWC, FLOAT_BYTES)
    _add_clamps(b, job, target, bounds)


def convolve(
    b: ProgramBuilder,
    name: str,
    x: Buffer,
    w: Buffer,
    y: Buffer,
    bias: NDArray[np.float32] | None,
    *,
    shape: Sizes,
    kernel: Sizes,
    result: Sizes,
    stride: Sizes,
    pad: Sizes,
    dilation: Sizes,
    groups: int,
    transposed: bool = False,
    to_whole: bool = False,
) -> None:
    """Adds a convolution in NCHW. Missing axes become leading axes of size 1."""

    # Missing leading axes have size 1, stride 1 and no padding: a 1-D convolution is a 3-D one.
    def three_axes(values: Sizes, missing: int) -> Sizes:
        return (missing,) * (3 - len(values)) + values

    b.add(
        name,
        "wide_conv",
        [x, w],
        [y],
        result,
        lambda plan, at: plan.wide_conv(
            name,
            at(x),
            at(w),
            at(y),
            bias,
            shape=(*shape[:2], *three_axes(shape[2:], 1)),
            kernel=(result[1], *three_axes(kernel, 1)),
            out=three_axes(result[2:], 1),
            stride=three_axes(stride, 1),
            pad=three_axes(pad, 0),
            dilation=three_axes(dilation, 1),
            groups=groups,
            transposed=transposed,
            to_whole=to_whole,
        ),
    )


LOWERINGS = {
    "matmul": matmul,
    "gemm": gemm,
    "linear": linear,
    **dict.fromkeys(CONVOLUTIONS, conv),
    **dict.fromkeys(TRANSPOSED_CONVOLUTIONS, transposed),
}
