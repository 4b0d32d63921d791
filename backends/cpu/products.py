"""Int8 convolutions and matrix products: they accumulate in int32 and round once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.numerics import Rule
from qir.profiles.profile import query_for_op
from qir.records import record

from .builder import (
    TO_NHWC,
    Buffer,
    CannotLower,
    ProgramBuilder,
    itemsize,
    permuted,
    sizes,
    strides,
)
from .data_movement import pad_axis
from .epilogues import Epilogue, bounds_after, epilogue_of
from .kernel_types import (
    KERNEL_RULES,
    ByteParameters,
    Job,
    Weight,
    accumulator_bias,
    byte_parameters,
    constant_weight,
    gemm_addend,
    requantize_multiplier,
    transposed_copy,
)
from .sizes import Sizes

Options: TypeAlias = "tuple[list[Buffer], Callable[[Callable[[Buffer], int]], dict[str, Any]]]"
"""Buffers that a step reads besides its operands, and its options once buffers have numbers."""


@record
class Requantization:
    """How int32 accumulators become results: one multiplier per channel, a storage, and clamps."""

    bias: NDArray[np.int32] | None
    multiplier: NDArray[np.float32]
    kind: Literal["u8", "i8", "f32"]
    zero: int = 0
    low: int | None = None
    high: int | None = None
    epilogue: Epilogue | None = None
    """What another profile than the kernels' own does, in place of one multiplier."""

    def options(self, b: ProgramBuilder, *, nhwc: bool = False) -> Options:
        """Returns the buffers that the epilogue reads, and its options of a step."""
        if self.epilogue is None:
            return [], lambda at: {}
        given, summand = self.epilogue.parameters, self.epilogue.summand
        pairs: dict[str, Any] = {"pairs": True} if self.epilogue.pairs else {}
        if summand is None:
            return [], lambda at: {"epilogue": tuple(given.items()), **pairs}
        held, how = b.buffer(summand.value, nhwc=nhwc), summand.parameters
        return [held], lambda at: {
            "epilogue": (*given.items(), ("summand", at(held)), *how.items()),
            **pairs,
        }


def _requantization(
    job: Job, x: ByteParameters, w: Weight, bias_value: Value | None, channels: int
) -> Requantization:
    """Returns how the accumulators of a job become its result."""
    # A rule is there for profiles other than the one that the kernels implement themselves.
    if job.rule is not None:
        return _by_rule(job, w, bias_value)
    bias = accumulator_bias(bias_value, channels, x, w.scale, "bias")
    if job.result.type.element == F32:
        if job.epilogue:
            raise CannotLower(f"no kernel bounds a float result by {job.epilogue[0].op}")
        return Requantization(bias, requantize_multiplier(x, w.scale, None), "f32")
    y = byte_parameters(job.result, "the result")
    low, high = job.clamp_bounds(y)
    return Requantization(bias, requantize_multiplier(x, w.scale, y), y.kind, y.zero, low, high)


def _by_rule(job: Job, w: Weight, bias_value: Value | None) -> Requantization:
    """Returns what the rule of another profile makes of accumulators."""
    found = epilogue_of(job, w.data, bias_value)
    if job.result.type.element == F32:
        return Requantization(found.bias, _ONE, "f32", epilogue=found)
    kind = byte_parameters(job.result, "the result").kind
    how = (kind, found.y_zero, found.low, found.high)
    if found.multiplier is not None:
        return Requantization(found.bias, found.multiplier, *how)
    return Requantization(found.bias, _ONE, *how, found)


_ONE = np.ones(1, np.float32)


def conv2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution; x and y are held in NHWC."""
    weights = constant_weight(job.operands["w"], 0, "w")
    rounding = rounding_of(job, weights)
    # The kernels read channels last: an image that the graph has first is held so between steps.
    nhwc = job.nchw
    if not nhwc and rounding.kind == "f32":
        raise CannotLower("no kernel gives a float result NHWC")
    source = b.buffer(job.operands["x"], nhwc=nhwc)
    shape = sizes(job.operands["x"])
    n, h, width, c = permuted(shape, TO_NHWC) if nhwc else shape
    stride, pad, dilation = job.int_pair("stride"), job.pads(), job.int_pair("dilation")
    images = Images((n, h, width, c), stride, pad, dilation, weights.data, weights.offset)
    more = rounding.options(b, nhwc=nhwc)
    target = b.allocate(job.result, nhwc=nhwc)
    add_conv2d(b, job, source, target, images, rounding, _stored_shape(job.result, nhwc), more)


def conv1d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a 1-D convolution as images of height 1, transposed to channels last and back."""
    value, weights = job.operands["x"], constant_weight(job.operands["w"], 0, "w")
    (n, channels, wide), out = sizes(value), sizes(job.result)
    (stride,), (before, after), (dilation,) = (
        job.int_tuple(a) for a in ("stride", "pad", "dilation")
    )
    rounding = rounding_of(job, weights)
    operand, target = b.buffer(value), b.allocate(job.result)
    source, result = b.scratch(operand.size), b.scratch(target.size)
    # The kernel reads channels last: [N, C, W] -> [N, 1, W, C].
    b.transpose(f"{value.name} to NWC", operand, source, sizes(value), (0, 2, 1), 1)
    images = Images(
        (n, 1, wide, channels), (1, stride), (0, before, 0, after), (1, dilation),
        weights.data[:, :, None], weights.offset,
    )  # fmt: skip
    add_conv2d(b, job, source, result, images, rounding, (out[0], out[2], out[1]))
    order, width = (0, 2, 1), itemsize(job.result)
    b.transpose(f"{job.name} to NCW", result, target, (out[0], out[2], out[1]), order, width)


def conv3d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a 3-D convolution as one of images, whose channels are those of all depth taps."""
    value, weights = job.operands["x"], constant_weight(job.operands["w"], 0, "w")
    x = byte_parameters(value, "x")
    rounding = rounding_of(job, weights)
    (n, c, d, h, image_width), (_, oc, od, oh, ow) = sizes(value), sizes(job.result)
    (stride, *strides_), (step, *steps) = job.int_tuple("stride"), job.int_tuple("dilation")
    before, top, left, after, bottom, right = job.int_tuple("pad")
    _, group_channels, taps, *window = weights.data.shape
    groups, plane, padded_depth = job.int_attr("groups"), h * image_width * c, before + d + after
    operand, target = b.buffer(value), b.allocate(job.result)
    source, result = b.scratch(operand.size), b.scratch(target.size)
    b.transpose(f"{value.name} to NDHWC", operand, source, sizes(value), (0, 2, 3, 4, 1), 1)
    # Depth is padded in memory, with the zero point; height and width by the kernel.
    if before or after:
        padded = b.scratch(n * padded_depth * plane)
        pad_axis(
            b, job.name, source, padded, (n, d, plane), (n, padded_depth, plane), 1, before, after,
            x.zero & 0xFF,
        )  # fmt: skip
        source = padded
    # Stacks the depth taps of each output slice as channels: the 3-D sum becomes a 2-D one.
    stacked = b.scratch(n * od * taps * plane)
    b.add(
        f"{value.name} depth taps",
        "strided",
        [source],
        [stacked],
        (n, od, h, image_width, taps * c),
        lambda plan, at: plan.strided(
            f"{value.name} depth taps",
            at(source),
            at(stacked),
            shape=(n, od, h * image_width, groups, taps, group_channels),
            steps=(padded_depth * plane, stride * plane, c, group_channels, step * plane, 1),
        ),
    )
    stacked_weights = weights.data.transpose(0, 2, 1, 3, 4).reshape(
        oc, taps * group_channels, *window
    )
    images = Images(
        (n * od, h, image_width, taps * c), (strides_[0], strides_[1]), (top, left, bottom, right),
        (steps[0], steps[1]), stacked_weights, weights.offset,
    )  # fmt: skip
    add_conv2d(b, job, stacked, result, images, rounding, (n * od, oh, ow, oc))
    order, width = (0, 4, 1, 2, 3), itemsize(job.result)
    b.transpose(f"{job.name} to NCDHW", result, target, (n, od, oh, ow, oc), order, width)


@record
class Images:
    """The sizes and weights of a convolution of images in NHWC."""

    shape: tuple[int, int, int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    dilation: tuple[int, int]
    weights: NDArray[np.int8]
    offset: NDArray[np.int32] | None


def rounding_of(job: Job, weights: Weight) -> Requantization:
    """Returns how the accumulators of a convolution become its result."""
    x = byte_parameters(job.operands["x"], "x")
    return _requantization(job, x, weights, job.operands.get("bias"), weights.data.shape[0])


def add_conv2d(
    b: ProgramBuilder,
    job: Job,
    source: Buffer,
    result: Buffer,
    images: Images,
    rounding: Requantization,
    stored: Sizes,
    more: Options | None = None,
) -> None:
    """Adds a step that convolves images; `stored` is the shape of its result."""
    beside, options = more if more is not None else rounding.options(b)
    x, groups = byte_parameters(job.operands["x"], "x"), job.int_attr("groups")
    b.add(
        job.name,
        "conv2d",
        [source, *beside],
        [result],
        stored,
        lambda plan, at: plan.conv2d(
            job.name,
            at(source),
            at(result),
            images.weights,
            rounding.bias,
            rounding.multiplier,
            shape=images.shape,
            stride=images.stride,
            pad=images.pad,
            dilation=images.dilation,
            groups=groups,
            x_type=x.kind,
            x_zero=x.zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
            offset=images.offset,
            **options(at),
        ),
    )


def _stored_shape(value: Value, nhwc: bool) -> tuple[int, ...]:
    """Returns the shape in which a value is held."""
    return permuted(sizes(value), TO_NHWC) if nhwc else sizes(value)


def gemm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a Gemm with alpha = beta = 1; a transposed operand a is transposed first."""
    addend = gemm_addend(job) if job.rule is None else job.operands.get("c")
    _product(b, job, "a", "b", addend)


def matmul(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product with a constant matrix, or of two computed ones."""
    right = job.operands["b"]
    if right.constant is not None and right.type.rank == 2:
        _product(b, job, "a", "b", job.operands.get("bias"))
    else:
        computed_product(b, job)


def linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers x @ w.T + bias."""
    _product(b, job, "x", "w", job.operands.get("bias"))


def _product(b: ProgramBuilder, job: Job, left: str, right: str, bias_value: Value | None) -> None:
    """Lowers rows times a constant matrix, whose columns the kernel packs when the plan is made."""
    value, matrix = job.operands[left], job.operands[right]
    if matrix.type.rank != 2:
        raise CannotLower(f"{right} has {matrix.type.rank} axes, the kernels take 2")
    transposed = job.op == "linear" or job.attrs["trans_b"] is True
    x, w = byte_parameters(value, left), constant_weight(matrix, 0 if transposed else 1, right)
    columns = w.data if transposed else transposed_copy(w.data)
    rounding = _requantization(job, x, w, bias_value, len(columns))
    a_transposed = job.op != "linear" and job.attrs["trans_a"] is True
    if a_transposed and value.type.rank != 2:
        raise CannotLower(f"a transposed {left} has {value.type.rank} axes, the kernels take 2")
    source = transposed_matrix(b, value) if a_transposed else b.buffer(value)
    beside, options = rounding.options(b)
    target = b.allocate(job.result)
    rows = math.prod(sizes(value)) // columns.shape[1]
    b.add(
        job.name,
        "linear",
        [source, *beside],
        [target],
        sizes(job.result),
        lambda plan, at: plan.linear(
            job.name,
            at(source),
            at(target),
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
            offset=w.offset,
            **options(at),
        ),
    )


def transposed_matrix(b: ProgramBuilder, value: Value) -> Buffer:
    """Returns a buffer with a matrix transposed."""
    source, transposed = b.buffer(value), b.scratch(math.prod(sizes(value)) * itemsize(value))
    b.transpose(
        f"{value.name} transposed", source, transposed, sizes(value), (1, 0), itemsize(value)
    )
    return transposed


# -- of two computed operands ---------------------------------------------------------------------


def computed_product(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product of two computed matrices: the right one is packed at run time."""
    left, right = job.operands["a"], job.operands["b"]
    if "bias" in job.operands:
        raise CannotLower("no kernel adds a bias to a product of two computed matrices")
    if left.type.rank < 2 or right.type.rank < 2:
        raise CannotLower("an operand is a vector, the kernels take matrices")
    x, w = byte_parameters(left, "a"), byte_parameters(right, "b")
    # Neither operand is known yet, so there are no channel sums to prepare: one scale stands for
    # the weights.
    if job.rule is None:
        rounding = _requantization(job, x, Weight(_NO_WEIGHTS, np.asarray([w.scale])), None, 1)
        right_zero = w.zero
    else:
        rounding, right_zero = _of_two_operands(job, job.rule, x, w)
    left_matrices, right_matrices = (
        matrices(b, job, left, "trans_a"),
        matrices(b, job, right, "trans_b"),
    )
    target_value, order = fused_transpose(b, job)
    target = b.allocate(target_value)
    # The result may be written transposed, which its strides express.
    result_strides = permuted(strides(sizes(target_value)), order)
    batch = sizes(job.result)[:-2]
    m, n, k = *sizes(job.result)[-2:], left_matrices.sizes[-1]
    if (
        left_matrices.strides[-1] != 1 and k > 1
    ):  # rows of a are read as they are: put them in order
        left_matrices = row_major(b, job, left, left_matrices)
    b.add(
        job.name,
        "matmul",
        [left_matrices.buffer, right_matrices.buffer],
        [target],
        sizes(job.result),
        lambda plan, at: plan.matmul(
            job.name,
            at(left_matrices.buffer),
            at(right_matrices.buffer),
            at(target),
            sizes=(m, k, n),
            a_at=left_matrices.offsets(batch),
            b_at=right_matrices.offsets(batch),
            y_at=offsets(result_strides[:-2], batch, 0),
            a_row=left_matrices.strides[-2],
            b_steps=right_matrices.strides[-2:],
            y_row=result_strides[-2],
            multiplier=float(rounding.multiplier[0]),
            a_type=x.kind,
            a_zero=x.zero,
            b_type=w.kind,
            b_zero=right_zero,
            y_type=rounding.kind,
            y_zero=rounding.zero,
            low=rounding.low,
            high=rounding.high,
        ),
    )


_NO_WEIGHTS = np.zeros((0, 0), np.int8)


def _of_two_operands(
    job: Job, rule: Rule, x: ByteParameters, w: ByteParameters
) -> tuple[Requantization, int]:
    """Returns how another profile rounds a product of two computed matrices, and the zero point of
    the right one, which `unshifted` reads as 0; raises CannotLower where the kernel rounds
    otherwise."""
    types = {slot: value.type for slot, value in job.operands.items()}
    own = KERNEL_RULES.resolve(query_for_op(job.op, job.attrs, types, job.result.type))
    if (rule.requant, rule.acc) != (own.requant, own.acc) or job.result.type.element == F32:
        raise CannotLower("no kernel rounds a product of two operands by this profile")
    zero = w.zero
    if rule.method is not None:
        if rule.method.name != "unshifted" or (zero and rule.method.params.get("apart")):
            raise CannotLower("no kernel computes two operands by this profile")
        zero = 0
    y = byte_parameters(job.result, "the result")
    low, high = bounds_after(job, job.epilogue, y.low, y.high)
    factor = requantize_multiplier(x, np.asarray([w.scale]), y)
    return Requantization(None, factor, y.kind, y.zero, low, high), zero


@record
class Matrices:
    """A batch of matrices in a buffer, with strides in elements."""

    buffer: Buffer
    sizes: Sizes
    strides: Sizes
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether the matrices are one matrix of all their rows."""
        return not self.offset and self.strides == strides(self.sizes)

    def offsets(self, batch: Sizes) -> NDArray[np.uint64]:
        """Returns the offset of each matrix of a batch; broadcast matrices repeat."""
        missing = len(batch) - (len(self.sizes) - 2)
        pairs = zip(self.sizes[:-2], self.strides[:-2], strict=True)
        steps = tuple(0 if size == 1 else step for size, step in pairs)
        return offsets((0,) * missing + steps, batch, self.offset)


def offsets(steps: Sizes, batch: Sizes, start: int) -> NDArray[np.uint64]:
    """Returns the offset of each matrix of a batch, from its strides."""
    total = np.full(batch, start, np.uint64)
    for axis, (step, size) in enumerate(zip(steps, batch, strict=True)):
        axis_offsets = np.arange(size, dtype=np.uint64) * np.uint64(step)
        total += axis_offsets.reshape([-1 if i == axis else 1 for i in range(len(batch))])
    return total.reshape(-1)


def matrices(b: ProgramBuilder, job: Job, value: Value, transpose_attr: str) -> Matrices:
    """Returns an operand as matrices, transposed if the attribute named `transpose_attr` is set."""
    view, shape = b.view(value), sizes(value)
    steps = view.strides
    if job.attrs[transpose_attr] is True:
        shape, steps = _swapped(shape), _swapped(steps)
    return Matrices(view.buffer, shape, steps, view.offset)


def _swapped(axes: Sizes) -> Sizes:
    """Returns sizes or strides with the last two axes swapped."""
    return (*axes[:-2], axes[-1], axes[-2])


def row_major(b: ProgramBuilder, job: Job, value: Value, a: Matrices) -> Matrices:
    """Returns the left matrices with contiguous rows."""
    source = b.buffer(value)
    if job.attrs["trans_a"] is not True:
        return Matrices(source, a.sizes, strides(a.sizes))
    width = itemsize(value)
    transposed = b.scratch(math.prod(a.sizes) * width)
    perm = _swapped(tuple(range(len(a.sizes))))
    b.transpose(f"{value.name} transposed", source, transposed, sizes(value), perm, width)
    return Matrices(transposed, a.sizes, strides(a.sizes))


def fused_transpose(b: ProgramBuilder, job: Job) -> tuple[Value, tuple[int, ...]]:
    """Returns the value to write, and which of its axes is each axis of the result.

    Where the only consumer transposes the result but keeps its last axis, the product writes the
    transposed value: rows stay contiguous. This is the head split and merge of attention.
    """
    identity = tuple(range(job.result.type.rank))
    if len(job.result.uses) != 1 or job.result.name in b.watched:
        return job.result, identity
    (user,) = job.result.users
    if user.op != "transpose" or user.result.type.element != job.result.type.element:
        return job.result, identity
    perm = user.attrs["perm"]
    assert isinstance(perm, tuple)
    if perm[-1] != identity[-1]:
        return job.result, identity
    return user.result, tuple(perm.index(axis) for axis in identity)
