"""Dynamically quantized products and convolutions, whose zero point and scale a run computes.

ONNX writes them as MatMulInteger or ConvInteger, Cast and Mul, often with an Add of a bias. All of
them are one step of the int8 kernels: the sum is exact, then rounded to float32, then multiplied,
then added to, just as the nodes do it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, I8, U8
from qir.ir.node import Node, Value
from qir.records import record

from . import plain_elements
from .builder import TO_NHWC, Buffer, ProgramBuilder, permuted, sizes
from .kernel_types import CenteredWeights, Job, centered_weights
from .sizes import Sizes

FLOAT_BYTES = 4
"""Bytes of a float32 element."""
ONE = np.ones(1, np.float32)
"""The scale of sums that nothing multiplies."""


@record
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
    value, matrix = job.operands["a"], job.operands["b"]
    if value.type.rank < 2 or matrix.type.rank != 2 or not _takes(b, job, "a"):
        return False
    weights = _constant_weights(job, "b", 1)
    if weights is None or weights.data.shape[0] != sizes(value)[-1]:
        return False
    columns = np.ascontiguousarray(weights.data.T)
    fused = _fused_scaling(b, job.result, len(columns), sizes(job.result)[-1:])
    if fused is None:
        return False
    source, found = b.buffer(value), _found_numbers(b, job, "a", fused)
    target = b.allocate(fused.result)
    b.fused.update(fused.nodes)
    rows = math.prod(sizes(value)[:-1])
    b.add(
        job.name,
        "dynamic_linear",
        [source, *found.buffers],
        [target],
        sizes(fused.result),
        lambda plan, at: plan.dynamic_linear(
            job.name, at(source), at(target), columns, fused.bias, rows=rows,
            offset=weights.offset, **found.options(at),
        ),
    )  # fmt: skip
    return True


def scaled_convolution(b: ProgramBuilder, job: Job) -> bool:
    """Lowers a conv_integer of images with the cast and product after it; returns False where no
    int8 kernel does."""
    value, kernel = job.operands["x"], job.operands["w"]
    groups = job.int_attr("groups")
    if value.type.rank != 4 or kernel.type.rank != 4 or not _takes(b, job, "x"):
        return False
    weights = _constant_weights(job, "w", 0)
    if weights is None:
        return False
    channels = len(weights.data)
    fused = _fused_scaling(b, job.result, channels, (channels, 1, 1))
    if fused is None:
        return False
    stride, dilation = (job.int_tuple(name) or (1, 1) for name in ("stride", "dilation"))
    source, found = b.buffer(value, nhwc=True), _found_numbers(b, job, "x", fused)
    target = b.allocate(fused.result, nhwc=True)
    b.fused.update(fused.nodes)
    n, h, w, c = permuted(sizes(value), TO_NHWC)
    pad = job.int_tuple("pad") or (0, 0, 0, 0)
    b.add(
        job.name,
        "dynamic_conv2d",
        [source, *found.buffers],
        [target],
        permuted(sizes(fused.result), TO_NHWC),
        lambda plan, at: plan.dynamic_conv2d(
            job.name, at(source), at(target), weights.data, fused.bias, shape=(n, h, w, c),
            stride=(stride[0], stride[1]), pad=(pad[0], pad[1], pad[2], pad[3]),
            dilation=(dilation[0], dilation[1]), groups=groups, offset=weights.offset,
            **found.options(at),
        ),
    )  # fmt: skip
    return True


@record
class _FoundNumbers:
    """The scale and zero point that a run finds, as buffers of a step."""

    kind: str
    scale: Buffer
    zero: Buffer | None

    @property
    def buffers(self) -> list[Buffer]:
        return [self.scale] if self.zero is None else [self.scale, self.zero]

    def options(self, at: Callable[[Buffer], int]) -> dict[str, Any]:
        """Returns the options of a step once buffers have numbers."""
        zero = None if self.zero is None else at(self.zero)
        scales = self.scale.size // FLOAT_BYTES
        return {"x_type": self.kind, "scale": at(self.scale), "scales": scales, "zero": zero}


def _found_numbers(b: ProgramBuilder, job: Job, slot: str, fused: ScaledSums) -> _FoundNumbers:
    zero = job.operands.get(f"{slot}.zero")
    return _FoundNumbers(
        plain_elements.kind_of(job.operands[slot]),
        Buffer(FLOAT_BYTES, data=ONE) if fused.scale is None else b.buffer(fused.scale),
        None if zero is None else b.buffer(zero),
    )


def _takes(b: ProgramBuilder, job: Job, slot: str) -> bool:
    """Returns whether the kernels read an operand: 8 bits with one zero point."""
    value, zero = job.operands[slot], job.operands.get(f"{slot}.zero")
    # Values that calibration watches must be computed as they are, so nothing is fused.
    if b.watched or plain_elements.kind_of(value) not in ("u8", "i8"):
        return False
    return zero is None or (math.prod(sizes(zero)) == 1 and zero.type.dtype == value.type.dtype)


def _constant_weights(job: Job, slot: str, axis: int) -> CenteredWeights | None:
    """Returns constant weights less their zero points, one for all or one for each channel of an
    axis; None for others."""
    value, zero = job.operands[slot], job.operands.get(f"{slot}.zero")
    if value.constant is None or 0 in sizes(value) or value.type.dtype not in (U8, I8):
        return None
    zeros: NDArray[np.generic] = np.zeros(1, np.int16)
    if zero is not None:
        if zero.constant is None or math.prod(sizes(zero)) not in (1, sizes(value)[axis]):
            return None
        zeros = np.asarray(zero.constant.data).reshape(-1)
    return centered_weights(np.asarray(value.constant.data), zeros, axis)


def _fused_scaling(b: ProgramBuilder, value: Value, columns: int, each: Sizes) -> ScaledSums | None:
    """Returns the cast to float32 that is the sums' only consumer, with the product and the sum
    after it if possible; `each` is the last sizes of one number for each column."""
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
        shape[-len(each) :] == each and math.prod(shape) == columns,
    )
    if not available or not (per_tensor or per_column):
        return sums
    scaled = replace(sums, result=node.result, nodes=(*sums.nodes, node.name), scale=scale)
    return _with_bias(scaled, columns, each)


def _with_bias(sums: ScaledSums, columns: int, each: Sizes) -> ScaledSums:
    """Returns scaled sums with the bias that their only consumer adds, if one does."""
    node = _sole_user(sums.result)
    if node is None or node.op != "add" or node.result.type.element != F32:
        return sums
    others = [v for v in node.operands.values() if v is not sums.result]
    if len(others) != 1 or others[0].type.element != F32:
        return sums
    shape, elements = sizes(others[0]), _constant_elements(others[0])
    if elements is None or math.prod(shape) != columns or shape[-len(each) :] != each:
        return sums
    # A bias of more axes than the sums would add axes to the result.
    if sizes(node.result) != sizes(sums.result):
        return sums
    bias = np.ascontiguousarray(elements, np.float32).reshape(-1)
    return replace(sums, result=node.result, nodes=(*sums.nodes, node.name), bias=bias)


def _constant_elements(value: Value) -> NDArray[np.generic] | None:
    """Returns the elements of a constant, or of one that another shape is given to."""
    if value.constant is None and value.node.op in ("reshape", "unsqueeze"):
        value = value.node.operands["x"]
    return None if value.constant is None else np.asarray(value.constant.data)


def _sole_user(value: Value) -> Node | None:
    if len(value.uses) != 1:
        return None
    (node,) = value.users
    is_plain = node.op != "output" and not node.stages and len(node.results) == 1
    return node if is_plain else None
