"""Dynamically quantized products: a run computes the zero point and scale of an operand.

ONNX writes them as MatMulInteger, Cast and Mul, often with an Add of a bias. All of them are one
step of the int8 kernels: the sum is exact, then rounded to float32, then multiplied, then added to,
just as the nodes do it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from . import plain_elements
from .builder import Buffer, ProgramBuilder, sizes
from .kernel_types import Job

ONE = np.ones(1, np.float32)
"""The scale of sums that nothing multiplies."""


@dataclass(frozen=True, slots=True)
class ScaledSums:
    """The value that a step computes from integer sums, the scale it multiplies them by, and the
    bias it adds."""

    result: Value
    nodes: tuple[str, ...]
    scale: Value | None = None
    bias: NDArray[np.float32] | None = None


def scaled_product(b: ProgramBuilder, job: Job) -> bool:
    """Lowers a matmul_integer with the cast and product after it; returns False where no int8
    kernel does."""
    value, zero = job.operands["a"], job.operands.get("a.zero")
    columns, kind = _constant_columns(job), plain_elements.kind_of(value)
    # Values that calibration watches must be computed as they are, so nothing is fused.
    if b.watched or columns is None or kind not in ("u8", "i8") or value.type.rank < 2:
        return False
    if zero is not None and (math.prod(sizes(zero)) != 1 or zero.type.dtype != value.type.dtype):
        return False
    fused = _fused_scaling(b, job.result, len(columns))
    if fused is None or columns.shape[1] != sizes(value)[-1]:
        return False
    source = b.buffer(value)
    scale = Buffer(4, data=ONE) if fused.scale is None else b.buffer(fused.scale)
    zeros = None if zero is None else b.buffer(zero)
    target = b.allocate(fused.result)
    b.fused.update(fused.nodes)
    rows, scales = math.prod(sizes(value)[:-1]), scale.size // 4
    b.add(
        job.name,
        "dynamic_linear",
        [source, scale] if zeros is None else [source, scale, zeros],
        [target],
        sizes(fused.result),
        lambda plan, at: plan.dynamic_linear(
            job.name,
            at(source),
            at(target),
            columns,
            fused.bias,
            rows=rows,
            scale=at(scale),
            scales=scales,
            x_type=kind,
            zero=None if zeros is None else at(zeros),
        ),
    )
    return True


def _constant_columns(job: Job) -> NDArray[np.int8] | None:
    """Returns the columns of a constant matrix minus zero points; None where these do not fit 8
    bits."""
    matrix, zero = job.operands["b"], job.operands.get("b.zero")
    if matrix.constant is None or matrix.type.rank != 2 or 0 in sizes(matrix):
        return None
    data = np.asarray(matrix.constant.data).astype(np.int32)
    if zero is not None:
        if zero.constant is None or math.prod(sizes(zero)) not in (1, sizes(matrix)[1]):
            return None
        # The kernel multiplies i8 weights: the zero point is subtracted ahead of time where that
        # fits.
        data = data - np.asarray(zero.constant.data).astype(np.int32).reshape(-1)
    if data.min() < -128 or data.max() > 127:
        return None
    return np.ascontiguousarray(data.T.astype(np.int8))


def _fused_scaling(b: ProgramBuilder, value: Value, columns: int) -> ScaledSums | None:
    """Returns the cast to float32 that is the sums' only consumer, with the product after it if
    possible."""
    cast = _sole_user(value)
    if cast is None or cast.op != "cast" or cast.result.type.dtype != F32:
        return None
    sums = ScaledSums(cast.result, (cast.name,))
    node = _sole_user(cast.result)
    if node is None or node.op != "mul" or sizes(node.result) != sizes(cast.result):
        return sums
    (scale,) = (v for v in node.operands.values() if v is not cast.result)
    if scale.type.element != F32 or node.result.type.element != F32:
        return sums
    # The scale must have been computed by an earlier step.
    available = scale.constant is not None or b.has_buffer(scale, nhwc=False)
    shape = sizes(scale)
    per_tensor, per_column = (
        math.prod(shape) == 1,
        shape[-1:] == (columns,) and math.prod(shape) == columns,
    )
    if not available or not (per_tensor or per_column):
        return sums
    return _with_bias(
        replace(sums, result=node.result, nodes=(*sums.nodes, node.name), scale=scale), columns
    )


def _with_bias(sums: ScaledSums, columns: int) -> ScaledSums:
    """Returns scaled sums with the bias that their only consumer adds, if one does."""
    node = _sole_user(sums.result)
    if node is None or node.op != "add" or node.result.type.element != F32:
        return sums
    others = [v for v in node.operands.values() if v is not sums.result]
    if len(others) != 1 or others[0].constant is None or others[0].type.element != F32:
        return sums
    shape = sizes(others[0])
    if math.prod(shape) != columns or shape[-1:] != (columns,):
        return sums
    # A bias of more axes than the sums would add axes to the result.
    if sizes(node.result) != sizes(sums.result):
        return sums
    bias = np.ascontiguousarray(others[0].constant.data, np.float32).reshape(-1)
    return replace(sums, result=node.result, nodes=(*sums.nodes, node.name), bias=bias)


def _sole_user(value: Value) -> Node | None:
    if len(value.uses) != 1:
        return None
    (node,) = value.users
    is_plain = node.op != "output" and not node.stages and len(node.results) == 1
    return node if is_plain else None
