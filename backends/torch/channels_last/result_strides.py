"""Output strides of torch's quantized kernels, including the strides of size-1 dimensions.

A kernel asks two questions of an operand: which layout it suggests for results, by its strides
alone, and whether it is contiguous in that layout. The result follows from the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qir.ir.attrs import Attr
from qir.ir.ops import spec

from .strides import (
    Sizes,
    Strides,
    as_image,
    broadcast_strides,
    contiguous_strides,
    has_ambiguous_layout,
    is_contiguous,
    suggests_channels_last,
)


@dataclass(frozen=True)
class Operand:
    """An operand of a kernel."""

    sizes: Sizes
    strides: Strides

    @property
    def suggests_channels_last(self) -> bool:
        """Whether it suggests channels_last; a 3-D tensor is asked as the image of height 1."""
        return suggests_channels_last(*as_image(self.sizes, self.strides))

    @property
    def is_channels_last(self) -> bool:
        """Whether it is contiguous in channels_last."""
        return len(self.sizes) > 2 and is_contiguous(
            *as_image(self.sizes, self.strides), channels_last=True
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is contiguous in the layout of its type."""
        return is_contiguous(self.sizes, self.strides)


@dataclass(frozen=True)
class StridedKernel:
    """A kernel: its operands, and the sizes of its result."""

    op: str
    attrs: Mapping[str, Attr]
    data: Sequence[Operand]
    sizes: Sizes
    u8_first: bool = False
    """Whether QNNPACK's kernels, which are for u8, are tried first."""
    has_unit_type: bool = False
    """Whether the quantized type has scale 1/256 and zero point 0."""

    @property
    def x(self) -> Operand:
        return self.data[0]


StrideRule = Callable[[StridedKernel], Strides]


def result_strides(kernel: StridedKernel) -> Strides:
    """Returns the strides of a kernel's result."""
    rule = _RULES.get(kernel.op) or (
        _elementwise if spec(kernel.op).traits.elementwise else _always_contiguous
    )
    return rule(kernel)


def _always_contiguous(kernel: StridedKernel) -> Strides:
    return contiguous_strides(kernel.sizes)


def _convolution(kernel: StridedKernel) -> Strides:
    """Convolutions always return channels_last."""
    return contiguous_strides(kernel.sizes, channels_last=True)


def _elementwise(kernel: StridedKernel) -> Strides:
    """Elementwise kernels return the suggested layout, for an operand with or without gaps."""
    return _suggested(kernel.sizes, kernel.x)


def _suggested(sizes: Sizes, x: Operand) -> Strides:
    return contiguous_strides(
        sizes,
        channels_last=len(sizes) > 3 and len(x.sizes) == len(sizes) and x.suggests_channels_last,
    )


def _image_kernel(kernel: StridedKernel) -> Strides:
    """Image kernels return channels_last for an operand that is contiguous so, else the plain
    layout."""
    return contiguous_strides(
        kernel.sizes, channels_last=kernel.x.is_channels_last and kernel.x.suggests_channels_last
    )


def _pool(kernel: StridedKernel) -> Strides:
    """QNNPACK's pools return channels_last if it is suggested, or equals the plain layout."""
    if not kernel.u8_first or (kernel.op.startswith("max") and kernel.attrs.get("ceil")):
        return _image_kernel(kernel)
    sizes = kernel.sizes
    same_in_both = sizes[1] == 1 or set(sizes[2:]) == {1}
    return contiguous_strides(sizes, channels_last=same_in_both or kernel.x.suggests_channels_last)


def _mean(kernel: StridedKernel) -> Strides:
    """QNNPACK computes means whose windows are all alike and of more than one pixel."""
    output_size, input_size = kernel.sizes[2:], kernel.x.sizes[2:]
    # Means of volumes are no pools of QNNPACK.
    if len(output_size) == 3:
        return _elementwise(kernel) if set(output_size) == {1} else _image_kernel(kernel)
    has_equal_windows = output_size != input_size and all(
        n % m == 0 for n, m in zip(input_size, output_size, strict=True) if m
    )
    return _pool(kernel) if has_equal_windows else _image_kernel(kernel)


def _avg_pool3d(kernel: StridedKernel) -> Strides:
    """Averages of volumes copy an operand that does not suggest channels_last to that layout."""
    return contiguous_strides(
        kernel.sizes, channels_last=not has_ambiguous_layout(kernel.x.sizes, kernel.x.strides)
    )


def _batch_norm(kernel: StridedKernel) -> Strides:
    """3-D tensors come back in the plain layout, unless they are in it already."""
    strides = contiguous_strides(kernel.sizes, channels_last=len(kernel.sizes) > 2)
    return (
        strides
        if len(kernel.sizes) != 3 or is_contiguous(kernel.sizes, strides)
        else contiguous_strides(kernel.sizes)
    )


def _norm(kernel: StridedKernel) -> Strides:
    """Group and instance norms know channels_last for images, but not for volumes."""
    return _image_kernel(kernel) if len(kernel.sizes) == 4 else _contiguous_first(kernel)


def _contiguous_first(kernel: StridedKernel) -> Strides:
    """Kernels that call `contiguous` first. An operand that is contiguous is not copied, and so
    still suggests its layout."""
    return contiguous_strides(
        kernel.sizes,
        channels_last=_suggested(kernel.sizes, kernel.x) != contiguous_strides(kernel.sizes)
        and kernel.x.is_plain,
    )


def _reduce_mean(kernel: StridedKernel) -> Strides:
    """Means over the last axes have a quantized kernel; others go through floats. QNNPACK has
    its own."""
    rank = len(kernel.x.sizes)
    axes_attr = kernel.attrs.get("axes") or tuple(range(rank))
    axes = (
        {a % rank for a in axes_attr if isinstance(a, int)}
        if isinstance(axes_attr, tuple)
        else set()
    )
    inner = sorted(axes) == [*range(rank - len(axes), rank)]
    images = kernel.u8_first and rank == 4 and axes_attr == (2, 3)
    if len(kernel.sizes) != rank or not inner or images:
        return contiguous_strides(kernel.sizes)
    return _contiguous_first(kernel)


def _concat(kernel: StridedKernel) -> Strides:
    """Channels of channels_last images are joined as integers, all else as floats."""
    rank, axis = len(kernel.sizes), kernel.attrs.get("axis", 0)
    if (
        rank == 4
        and isinstance(axis, int)
        and axis % 4 == 1
        and all(x.is_channels_last for x in kernel.data)
    ):
        return contiguous_strides(kernel.sizes, channels_last=True)
    float_operands = (Operand(x.sizes, _suggested(x.sizes, x)) for x in kernel.data)
    joined = contiguous_strides(
        kernel.sizes,
        channels_last=rank > 3 and all(x.suggests_channels_last for x in float_operands),
    )
    # Joined as floats, then quantized: each step returns the layout its operand suggests.
    return _suggested(kernel.sizes, Operand(kernel.sizes, joined))


def requantized(sizes: Sizes, strides: Strides) -> Strides:
    """Returns the strides after dequantize and quantize, each of which returns what is
    suggested."""
    return _suggested(sizes, Operand(sizes, _suggested(sizes, Operand(sizes, strides))))


def _binary(kernel: StridedKernel) -> Strides:
    """Returns the layout of the first operand, if the result has its sizes."""
    first = kernel.x
    if len(kernel.data) < 2 or first.sizes == kernel.sizes or kernel.op == "mul":
        return _suggested(kernel.sizes, first)
    return _iterator_order(kernel.sizes, kernel.data)


def _iterator_order(sizes: Sizes, data: Sequence[Operand]) -> Strides:
    """Returns the strides that TensorIterator gives a result: in the order in which it visits
    operands."""
    all_strides = [broadcast_strides(sizes, of.sizes, of.strides) for of in data]
    # TensorIterator sorts axes from the last one by insertion; ties leave the order as it is.
    order = [*reversed(range(len(sizes)))]
    for i in range(1, len(order)):
        place = i
        for j in range(i - 1, -1, -1):
            order_of_pair = _compare_axes(sizes, all_strides, order[j], order[place])
            if order_of_pair < 0:
                break
            if order_of_pair:
                order[j], order[place], place = order[place], order[j], j
    # Strides grow in that order, from the axis that is visited innermost.
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis], step = step, step * max(sizes[axis], 1)
    return tuple(strides)


def _compare_axes(sizes: Sizes, all_strides: Sequence[Strides], axis: int, other_axis: int) -> int:
    """Returns above 0 if TensorIterator visits one axis after another, below 0 if before."""
    for strides in all_strides:
        if not strides[axis] or not strides[other_axis]:
            continue
        if strides[axis] != strides[other_axis]:
            return 1 if strides[axis] > strides[other_axis] else -1
        if sizes[axis] > sizes[other_axis]:
            return 1
    return 0


def _softmax(kernel: StridedKernel) -> Strides:
    """QNNPACK goes along the axis of stride 1, or along the last one after swapping them."""
    rank, at = len(kernel.sizes), kernel.attrs.get("axis", -1)
    if not kernel.u8_first or not kernel.has_unit_type or not isinstance(at, int):
        return contiguous_strides(kernel.sizes)
    # softmax swaps its axis with the last one, computes there, and swaps back.
    axes = [*range(rank)]
    axes[at], axes[-1] = axes[-1], axes[at]
    if kernel.x.strides[at] == 1:
        return _suggested(kernel.sizes, kernel.x)
    sizes, strides = (tuple(of[a] for a in axes) for of in (kernel.sizes, kernel.x.strides))
    swapped_strides = _suggested(
        sizes,
        Operand(sizes, strides if is_contiguous(sizes, strides) else contiguous_strides(sizes)),
    )
    return tuple(swapped_strides[axis] for axis in axes)


def unpredicted_reason(kernel: StridedKernel) -> str:
    """Returns why a kernel's result cannot be predicted; empty where it can."""
    x, sizes = kernel.x, kernel.sizes
    if kernel.op in ("instance_norm", "group_norm"):
        is_single_pixel = len(sizes) == 4 and sizes[0] > 1 and set(sizes[2:]) == {1}
        return _WRITES_FIRST_ONLY if is_single_pixel and x.is_channels_last else ""
    axis = kernel.attrs.get("axis", -1)
    if (
        kernel.op != "softmax"
        or not kernel.u8_first
        or not kernel.has_unit_type
        or not isinstance(axis, int)
    ):
        return ""
    if x.strides[axis] != 1 or sizes[axis] == 1:
        return ""
    # The kernel takes the axis of stride 1 as rows, which only contiguous rows are.
    strides, row_length = result_strides(kernel), sizes[axis]
    other_axes = [a for a, n in enumerate(sizes) if n > 1 and a != axis % len(sizes)]
    return (
        _READS_WRONG_ROWS
        if any(x.strides[a] != strides[a] or strides[a] % row_length for a in other_axes)
        else ""
    )


_WRITES_FIRST_ONLY = (
    "it writes the first of images of one element, and leaves the others: not predicted"
)
_READS_WRONG_ROWS = (
    "it reads these strides as rows of another axis, or as contiguous: not predicted"
)

_RULES: Mapping[str, StrideRule] = {
    **dict.fromkeys(
        (f"conv{of}{n}d" for of in ("", "_transpose") for n in (1, 2, 3)), _convolution
    ),
    **dict.fromkeys("max_pool1d max_pool2d avg_pool1d avg_pool2d".split(), _pool),
    **dict.fromkeys("global_avg_pool adaptive_avg_pool".split(), _mean),
    **dict.fromkeys("max_pool3d resize resize_nearest".split(), _image_kernel),
    **dict.fromkeys("instance_norm group_norm".split(), _norm),
    **dict.fromkeys("elu celu linear matmul".split(), _always_contiguous),
    **dict.fromkeys("add sub mul div min max".split(), _binary),
    **dict.fromkeys("quantize dequantize requantize cast prelu pad flip".split(), _elementwise),
    "avg_pool3d": _avg_pool3d,
    "batch_norm": _batch_norm,
    "layer_norm": _contiguous_first,
    "reduce_mean": _reduce_mean,
    "concat": _concat,
    "softmax": _softmax,
}
"""Stride rules by op. Other elementwise ops return the suggested layout, all else the plain one."""

__all__ = ["Operand", "StridedKernel", "requantized", "result_strides", "unpredicted_reason"]
