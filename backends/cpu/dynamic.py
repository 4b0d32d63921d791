"""Products of integers whose zero and scale a run finds, as dynamic quantization makes them.

A product of 8-bit integers by a constant matrix, its conversion to float32 and the multiplication
by a scale are one step of the int8 kernels: the sum is exact, then rounded to float32, then
multiplied, as the three nodes do it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from . import tensors
from .builder import Buffer, ProgramBuilder, sizes
from .codes import Job

ONE = np.ones(1, np.float32)


@dataclass(frozen=True, slots=True)
class ScaledSums:
    """The value that a step makes of integer sums, and the scale that it multiplies them by."""

    result: Value
    nodes: tuple[str, ...]
    scale: Value | None = None


def product(b: ProgramBuilder, job: Job) -> bool:
    """Lowers a matmul_integer with what follows it; False where the int8 kernels do not take it."""
    value, zero = job.operands["a"], job.operands.get("a.zero")
    columns, kind = _columns(job), tensors.kind_of(value)
    if b.watched or columns is None or kind not in ("u8", "i8") or value.type.rank < 2:
        return False
    if zero is not None and (math.prod(sizes(zero)) != 1 or zero.type.dtype != value.type.dtype):
        return False
    found = _scaled(b, job.result, len(columns))
    if found is None or columns.shape[1] != sizes(value)[-1]:
        return False
    source = b.need(value)
    scale = Buffer(4, data=ONE) if found.scale is None else b.need(found.scale)
    zeros = None if zero is None else b.need(zero)
    made = b.make(found.result)
    b.fused.update(found.nodes)
    rows, scales = math.prod(sizes(value)[:-1]), scale.size // 4
    b.add(
        job.name,
        "dynamic_linear",
        [source, scale] if zeros is None else [source, scale, zeros],
        [made],
        sizes(found.result),
        lambda plan, at: plan.dynamic_linear(
            job.name,
            at(source),
            at(made),
            columns,
            rows=rows,
            scale=at(scale),
            scales=scales,
            x_type=kind,
            zero=None if zeros is None else at(zeros),
        ),
    )
    return True


def _columns(job: Job) -> NDArray[np.int8] | None:
    """The columns of a constant matrix less their zeros, where these fit 8 bits."""
    matrix, zero = job.operands["b"], job.operands.get("b.zero")
    if matrix.constant is None or matrix.type.rank != 2 or 0 in sizes(matrix):
        return None
    data = np.asarray(matrix.constant.data).astype(np.int32)
    if zero is not None:
        if zero.constant is None or math.prod(sizes(zero)) not in (1, sizes(matrix)[1]):
            return None
        data = data - np.asarray(zero.constant.data).astype(np.int32).reshape(-1)
    if data.min() < -128 or data.max() > 127:
        return None
    return np.ascontiguousarray(data.T.astype(np.int8))


def _scaled(b: ProgramBuilder, value: Value, columns: int) -> ScaledSums | None:
    """The conversion to float32 that alone uses integer sums, and a product that alone uses it."""
    cast = _only(value)
    if cast is None or cast.op != "cast" or cast.result.type.dtype != F32:
        return None
    found = ScaledSums(cast.result, (cast.name,))
    node = _only(cast.result)
    if node is None or node.op != "mul" or sizes(node.result) != sizes(cast.result):
        return found
    (scale,) = (v for v in node.operands.values() if v is not cast.result)
    if scale.type.element != F32 or node.result.type.element != F32:
        return found
    there = scale.constant is not None or b.holds(scale, last=False)
    shape = sizes(scale)
    one, row = math.prod(shape) == 1, shape[-1:] == (columns,) and math.prod(shape) == columns
    if not there or not (one or row):
        return found
    return replace(found, result=node.result, nodes=(*found.nodes, node.name), scale=scale)


def _only(value: Value) -> Node | None:
    if len(value.uses) != 1:
        return None
    (node,) = value.users
    plain = node.op != "output" and not node.stages and len(node.results) == 1
    return node if plain else None
