"""Proves exact bounds of the int32 accumulator of an integer product, from the weights.

A kernel sums (x - x_zero) * (w - w_zero) and a bias in 32 bits. The greatest sum of an output
channel takes the greatest x where a weight is positive and the least x where it is negative. So
the bounds are not estimates: some input reaches each of them. The arithmetic is on int64 where
the sums fit, else on Python integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.ops import Call
from qir.ir.quantized_ops import PLAIN_INTEGER_PRODUCTS
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify.agreement import read_map
from qir.ir.verify.parameters import miscounted, outside
from qir.ir.verify.producers import follow, integer_bounds
from qir.ir.verify.rule import Look, NodeContext
from qir.ir.verify.step import SLOTS, OpUse, Product
from qir.ir.verify.windows import gathered, scattered

MATRICES = frozenset({"matmul", "gemm", "matmul_integer"})
INT16 = (-(1 << 15), (1 << 15) - 1)
INT32 = (-(1 << 31), (1 << 31) - 1)
_UNBOUNDED = (-math.inf, math.inf)
_MAX_BLOCK_ELEMENTS = 1 << 22  # elements of the weights that are looked at in one go

Integers = NDArray[np.generic]
"""Integers: int64, or Python integers in an array of objects."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Bounds of sums of two adjacent u8 x s8 products, which vpmaddubsw saturates to 16 bits."""

    least: int
    greatest: int
    channel: int
    """The output channel of the pair that goes furthest."""
    at: int
    """Its first product, counted along the sum: taps of the window, channels within a tap."""
    weights: tuple[int, int]
    codes: tuple[int, int]
    """The quantized values of the input, as unsigned bytes, that take it there."""

    @property
    def saturates(self) -> bool:
        """Whether some input leaves 16 bits."""
        return self.least < INT16[0] or self.greatest > INT16[1]


def products(context: NodeContext) -> tuple[Product, ...]:
    """Returns the integer products of a node or its chain, cached in the context."""
    if context.products is None:
        steps = [s for s in context.steps if s.spec.name in SLOTS and not s.rejection]
        context.products = tuple(p for s in steps if (p := _product(context, s)) is not None)
    return context.products


def _product(context: NodeContext, step: OpUse) -> Product | None:
    look, (data, slot, bias_slot) = context.look, SLOTS[step.spec.name]
    if step.spec.name in PLAIN_INTEGER_PRODUCTS:
        x, w = _plain_integer_type(look, step, data), _plain_integer_type(look, step, slot)
    else:
        x, w = read_map(context, step, data), read_map(context, step, slot)
    if x is None or w is None or not all(_is_summable(q) and _has_valid_zeros(q) for q in (x, w)):
        return None
    weights, is_swapped = _constant(look, step, slot), False
    if weights is None and step.spec.name in MATRICES:
        # A matrix product may have its constant on the left: the roles of the operands are swapped
        # then.
        weights = _constant(look, step, data)
        is_swapped = weights is not None
    bias, why_unbounded = _bias(look, step, bias_slot)
    x, w = (w, x) if is_swapped else (x, w)
    data_bounds = _data_bounds(look, step, slot if is_swapped else data)
    why_type_unknown = _why_type_unknown(look, step, (data, slot))
    weights = None if w.zero is None or why_type_unknown else weights
    # The rule `axes` reports such a type; a proof from it would be none.
    if weights is not None and any(miscounted(w, TensorType(weights.contents.shape, w))):
        return None
    if weights is None and w.zero is not None:
        why_unbounded = why_unbounded or _why_weights_unknown(look, step, slot, data)
    return Product(
        step, x, w, weights, is_swapped, bias, why_unbounded, data_bounds, why_type_unknown
    )


def _why_weights_unknown(look: Look, step: OpUse, slot: str, data: str) -> str:
    """Returns why constant weights could not be evaluated; empty for weights that vary."""
    for name in (slot, data) if step.spec.name in MATRICES else (slot,):
        value = step.operands.get(name)
        if value is None or not look.static(value):
            continue
        trail = follow(look, value)
        makers = [v.node.op for v in (trail.start, *trail.path)]
        maker = next((op for op in makers if op not in ("constant", "dequantize")), "")
        if maker:
            return f"its weights are made of constants by {maker}, and not computed"
    return ""


def _data_bounds(look: Look, step: OpUse, slot: str) -> tuple[float, float]:
    value = step.operands.get(slot)
    if value is None or step.spec.name in PLAIN_INTEGER_PRODUCTS:
        return -math.inf, math.inf
    return integer_bounds(look, follow(look, value))


def _why_type_unknown(look: Look, step: OpUse, slots: tuple[str, ...]) -> str:
    reasons = (
        follow(look, v).why_type_unknown for s in slots if (v := step.operands.get(s)) is not None
    )
    return next(filter(None, reasons), "")


def _plain_integer_type(look: Look, step: OpUse, slot: str) -> QuantType | None:
    """Returns a type of scale 1 for plain integers, with the zero points of companion operands."""
    kind = step.call.types[slot]
    zero = step.operands.get(f"{slot}.zero")
    if zero is None:
        return QuantType(kind.dtype)
    _, array = look.constant_integers(zero)
    if array is None:
        return QuantType(kind.dtype, zero=None)
    if array.contents.size == 1:
        return QuantType(kind.dtype, zero=(int(array.data.reshape(-1)[0]),))
    if array.contents.ndim != 1:  # one zero for each row of a batch
        return None
    # ONNX MatMulInteger: a zero point for each row of a, each column of b.
    axis = 0 if slot == "w" else kind.rank - (1 if slot == "b" else 2)
    ones = Array.of(np.ones(array.contents.size, np.float32))
    return QuantType(
        kind.dtype, scale=ones, zero=array, granularity=Granularity(((max(axis, 0), 1),))
    )


def _is_summable(quant: QuantType) -> bool:
    """Returns whether the type is affine with an integer zero, so that kernels can sum integers."""
    plain = quant.kind == "uniform" and quant.plus is None and not quant.has_float_zero
    return plain and quant.storage.is_integer


def _has_valid_zeros(quant: QuantType) -> bool:
    """Returns whether the zero points are in range, and as many as scales.

    Other rules report where they are not.
    """
    if quant.zero is None:
        return True
    if isinstance(quant.zero, tuple):
        return all(quant.low <= zero <= quant.high for zero in quant.zero)
    zeros = np.asarray(quant.zeros())
    scales = 1 if quant.scale is None else np.asarray(quant.scales()).size
    return zeros.size in (1, scales) and not outside(quant, zeros)


def _constant(look: Look, step: OpUse, slot: str) -> Array | None:
    value = step.operands.get(slot)
    return look.constant_integers(value)[1] if value is not None else None


def _bias(look: Look, step: OpUse, slot: str) -> tuple[Array | None, str]:
    """Returns the integer bias, or why it is unknown; a float bias is added after the sum."""
    value = step.operands.get(slot)
    if value is None or step.call.attrs.get("beta", 1.0) != 1.0:
        return None, ""
    quant, array = look.constant_integers(value)
    if array is not None:
        return (array if array.type.dtype.is_integer else None), ""
    is_integer = quant is not None or value.type.dtype.is_integer
    return None, "its bias is computed" if is_integer else ""


# -- the shape of a sum -------------------------------------------------------------------------


def summed_axes(product: Product) -> tuple[int, ...]:
    """Returns the axes of the weights along which products are added up."""
    call = product.step.call
    match call.op:
        case "linear":
            return (1,)
        case "matmul" | "gemm" | "matmul_integer":
            slot, is_last = ("a", True) if product.swapped else ("b", False)
            rank = len(call.shape(slot))
            is_last = is_last != _is_transposed_operand(call, slot)
            return (rank - 1 if is_last or rank == 1 else rank - 2,)
    window_axes = tuple(range(2, len(call.shape("w"))))
    return (0 if is_transposed_conv(call) else 1, *window_axes)


def is_transposed_conv(call: Call) -> bool:
    """Returns whether it is a transposed convolution, whose weights are [in, out / groups, ...]."""
    return call.op.startswith("conv_transpose")


def _is_transposed_operand(call: Call, slot: str) -> bool:
    return call.attrs.get(f"trans_{slot}") is True


def _sum_length(product: Product) -> int | None:
    """Returns how many products one sum has; None where a size is not known."""
    call = product.step.call
    weight_slot, data_slot = product.slots
    sizes = dims.known_shape(tuple(call.shape(weight_slot)[axis] for axis in summed_axes(product)))
    if sizes is not None and is_transposed_conv(call):  # of the taps, those that reach one place
        taps = [int(rows.sum(axis=1).max()) for rows in _taps_on_data(product, sizes[1:])]
        # An output channel of a transposed convolution sums over the input channels of its own
        # group.
        sizes = (sizes[0] // call.int_attr("groups"), *taps)
    if sizes is None and not call.op.startswith("conv"):
        sizes = dims.known_shape((call.shape(data_slot)[data_sum_axis(product)],))
    return None if sizes is None else math.prod(sizes)


def _taps_on_data(product: Product, kernel: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Returns for each window axis a table of output position x tap: whether the tap hits data."""
    call = product.step.call
    if not call.op.startswith("conv"):
        return []
    x, axes = call.shape("x"), len(kernel)
    first_axis = 1 if call.attrs.get("layout") == "NHWC" else 2
    stride, dilation = (call.int_list_attr(a) or (1,) * axes for a in ("stride", "dilation"))
    pad = call.int_list_attr("pad") or (0,) * 2 * axes
    output_pad = call.int_list_attr("output_pad") if is_transposed_conv(call) else (0,) * axes
    taps = scattered if is_transposed_conv(call) else gathered
    return [
        taps(
            x[first_axis + i],
            kernel[i],
            stride[i],
            dilation[i],
            (pad[i], pad[axes + i] - output_pad[i]),
        )
        for i in range(axes)
    ]


def _sum_block_size(product: Product) -> int | str | None:
    """Returns the block size at which a new sum begins, as scales change; or why it is unknown."""
    first_axis, *other_axes = summed_axes(product)
    size: int | None = None
    if (
        is_transposed_conv(product.step.call)
        and product.w.granularity
        and first_axis in dict(product.w.granularity.blocks)
    ):
        return "its scales vary along the channels that are summed up"
    for quant, axis, others in (
        (product.w, first_axis, other_axes),
        (product.x, data_sum_axis(product), sliding_axes(product)),
    ):
        blocks = dict(quant.granularity.blocks) if quant.granularity else {}
        if quant.granularity and quant.granularity.by is not None:
            return "its scales belong to groups of indices in no order"
        if any(other in blocks for other in others):
            return "its scales vary from tap to tap of the window"
        if axis in blocks:
            if size not in (None, blocks[axis]):
                return "its operands have scales for blocks of different sizes"
            size = blocks[axis]
    return size


def data_sum_axis(product: Product) -> int:
    """Returns the axis of x that meets the first summed axis of the weights."""
    call = product.step.call
    slot = product.slots[1]
    rank = len(call.shape(slot))
    if call.op in MATRICES:
        is_last = (
            _is_transposed_operand(call, slot)
            if product.swapped
            else not _is_transposed_operand(call, slot)
        )
        return rank - 1 if is_last or rank == 1 else rank - 2
    return rank - 1 if call.op == "linear" or call.attrs.get("layout") == "NHWC" else 1


def sliding_axes(product: Product) -> list[int]:
    """Returns the axes of x that a window slides along."""
    call = product.step.call
    if not call.op.startswith("conv"):
        return []
    rank = len(call.shape("x"))
    return [i for i in range(1, rank) if i != data_sum_axis(product)]


# -- the bounds ---------------------------------------------------------------------------------


def sum_bounds(product: Product) -> tuple[int, int, int, int] | str:
    """Returns depth, least and greatest sum and the worst channel; or why there is no bound."""
    if product.why_type_unknown:
        return product.why_type_unknown
    depth, block_size = _sum_length(product), _sum_block_size(product)
    if depth is None:
        return "the length of its sums is not known"
    if isinstance(block_size, str):
        return block_size
    if product.why_unbounded:
        return product.why_unbounded
    if product.weights is None:
        return depth, *_type_bounds(product, depth), 0
    return depth, *_constant_weight_bounds(product, product.weights, block_size)


def signed_bits(least: int, greatest: int) -> int:
    """Bits of the narrowest signed number that holds both."""
    return max((v if v >= 0 else ~v).bit_length() for v in (least, greatest)) + 1


def fits_int32_by_types(product: Product) -> bool:
    """Returns whether the types alone prove that 32 bits hold every sum, which takes no time."""
    depth = _sum_length(product)
    if depth is None or product.why_unbounded or product.why_type_unknown:
        return False
    least, greatest = _type_bounds(product, depth)
    return INT32[0] <= least and greatest <= INT32[1]


def _centered_ends(quant: QuantType, bounds: tuple[float, float]) -> list[tuple[int, int]]:
    """Least and greatest q - zero, for the zeros that are furthest out.

    `bounds` are the known limits of q - zero, which may be narrower than the storage. The
    greatest sum is convex in the zero point, so that none in between goes further.
    """
    zeros = {quant.low, quant.high}
    if isinstance(quant.zero, tuple):
        zeros = {int(z) for z in (min(quant.zero), max(quant.zero))} if quant.zero else {0}
    elif quant.zero is not None:
        all_zeros = np.asarray(quant.zeros())
        zeros = {int(all_zeros.min()), int(all_zeros.max())} if all_zeros.size else {0}
    return [_clip_to_bounds(quant.low - zero, quant.high - zero, bounds) for zero in sorted(zeros)]


def _clip_to_bounds(low: int, high: int, bounds: tuple[float, float]) -> tuple[int, int]:
    """Clips low..high to bounds; where they do not overlap, to the nearest end."""
    least, greatest = (min(max(end, low), high) for end in bounds)
    return int(least), int(greatest)


def _type_bounds(product: Product, depth: int) -> tuple[int, int]:
    """Least and greatest sum over all weights of the type."""
    data_ends = _centered_ends(product.x, product.data_bounds)
    # A product of two intervals is extreme at their corners.
    corners = [
        a * b
        for x in data_ends
        for w in _centered_ends(product.w, _UNBOUNDED)
        for a in x
        for b in w
    ]
    low, high = _bias_ends(product)
    return depth * min(0, *corners) + low, depth * max(0, *corners) + high


def _bias_ends(product: Product) -> tuple[int, int]:
    if product.bias is None or not product.bias.contents.size:
        return 0, 0
    return int(product.bias.data.min()), int(product.bias.data.max())


def _constant_weight_bounds(
    product: Product, weights: Array, block_size: int | None
) -> tuple[int, int, int]:
    """Least and greatest sum, and the channel that goes furthest, for constant weights."""
    rows, shape = _weights_by_channel(product, _centered_weights(weights, product.w))
    windows = _taps_on_data(product, rows.shape[2:])
    # With scales for blocks each block is a sum of its own, and a float bias is added after them.
    biases = [None, None] if block_size else _bias_per_channel(product, shape)
    worst = _WorstChannel()
    rows_per_block = max(1, _MAX_BLOCK_ELEMENTS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), rows_per_block):
        block = slice(start, start + rows_per_block)
        # The greatest sum takes the greatest input for positive weights, the least for negative
        # ones.
        positive = _sums_of_weights(np.maximum(rows[block], 0), windows, block_size)
        negative = _sums_of_weights(np.minimum(rows[block], 0), windows, block_size)
        low, high = (None if b is None else b[block] for b in biases)
        for least, greatest in _centered_ends(product.x, product.data_bounds):
            worst.take(_extreme_sums(positive, greatest, negative, least, high), start)
            worst.take(_extreme_sums(positive, least, negative, greatest, low), start)
    return worst.least, worst.greatest, worst.channel


class _WorstChannel:
    """The furthest sums so far."""

    def __init__(self) -> None:
        self.least = self.greatest = self.channel = 0
        self.furthest = -1

    def take(self, sums: Integers, start: int) -> None:
        """Takes the sums of some channels, the first of which is the start."""
        if not sums.size:
            return
        least, greatest = int(sums.min()), int(sums.max())
        first = self.furthest < 0
        self.least = least if first else min(self.least, least)
        self.greatest = greatest if first else max(self.greatest, greatest)
        furthest = max(greatest, ~least)
        if furthest > self.furthest:
            self.furthest = furthest
            at = sums.argmax() if furthest == greatest else sums.argmin()
            self.channel = start + int(at) // (sums.size // len(sums))


def _weights_by_channel(product: Product, data: Integers) -> tuple[Integers, tuple[int, ...]]:
    """Returns the weights as channels by summed axes, and the shape that the channels have."""
    axes = summed_axes(product)
    if is_transposed_conv(product.step.call):
        groups = product.step.call.int_attr("groups")
        # [in, out / groups, taps] -> [groups, out / groups, in / groups, taps].
        by_group = data.reshape(groups, data.shape[0] // groups, *data.shape[1:]).swapaxes(1, 2)
        channels = groups * data.shape[1]
        return by_group.reshape(channels, *by_group.shape[2:]), (channels,)
    channels = tuple(i for i in range(data.ndim) if i not in axes)
    moved = data.transpose(*channels, *axes)
    shape = moved.shape[: len(channels)]
    return moved.reshape(math.prod(shape), *moved.shape[len(channels) :]), shape


def _centered_weights(weights: Array, quant: QuantType) -> Integers:
    """q - zero, in 64 bits, or as Python's whole numbers where those might not do."""
    data: Integers = weights.data
    # q - zero of 64-bit integers may need 65 bits.
    if quant.storage.bits > 32:
        data = data.astype(object)
    zeros = np.asarray(quant.zeros())
    if not zeros.any():
        return data
    integers = data if data.dtype == object else data.astype(np.int64)
    out: Integers = np.subtract(integers, _zeros_per_element(zeros, quant, data.shape))
    return out


def _zeros_per_element(
    zeros: NDArray[np.generic], quant: QuantType, shape: tuple[int, ...]
) -> Integers:
    """Returns a zero for each element."""
    granularity = quant.granularity
    if granularity is None or zeros.size == 1:
        return zeros.reshape(())
    if granularity.axis is not None:
        return zeros.reshape([-1 if i == granularity.axis else 1 for i in range(len(shape))])
    for axis, size in granularity.blocks:
        zeros = np.repeat(zeros, size, axis=axis)[(slice(None),) * axis + (slice(shape[axis]),)]
    return zeros


def _sums_of_weights(
    rows: Integers, windows: list[NDArray[np.int64]], block_size: int | None
) -> Integers:
    """Sums of each row, one for each block and each place of the window."""
    dtype = np.dtype(object if rows.dtype == object else np.int64)
    if block_size and rows.shape[1]:
        sums: Integers = np.add.reduceat(
            rows, range(0, rows.shape[1], block_size), axis=1, dtype=dtype
        )
    else:
        sums = rows.sum(axis=1, dtype=dtype, keepdims=True)
    for taps in windows:  # each axis of taps gives way to one of places, which goes to the end
        taps_last = np.moveaxis(sums, 2, -1)
        if len(taps) == 1 and taps.all():
            sums = taps_last.sum(axis=-1, dtype=dtype, keepdims=True)
        else:
            sums = np.dot(taps_last, taps.T.astype(dtype))
    return sums.reshape(len(rows), -1)


def _extreme_sums(
    positive: Integers, a: int, negative: Integers, b: int, bias: Integers | None
) -> Integers:
    """Returns positive * a + negative * b + bias, exactly."""
    bound = int(positive.max(initial=0)) * abs(a) - int(negative.min(initial=0)) * abs(b)
    # Below 2**61 the two products and the bias add up without leaving int64.
    if max(bound, abs(a), abs(b)) >= 1 << 61:
        positive, negative = positive.astype(object), negative.astype(object)
    out: Integers = np.add(np.multiply(positive, a), np.multiply(negative, b))
    if bias is not None:
        out = np.add(out, bias.reshape(-1, 1))
    return out


def _bias_per_channel(product: Product, shape: tuple[int, ...]) -> list[Integers | None]:
    """Least and greatest bias of each channel."""
    if product.bias is None or not product.bias.contents.size:
        return [None, None]
    data: Integers = product.bias.data
    data = data.astype(object if data.dtype.itemsize > 4 else np.int64)
    op, count = product.step.call.op, math.prod(shape)
    if op.startswith("conv"):
        if data.size not in (1, count):
            return [None, None]
        data = np.broadcast_to(data.reshape(-1), (count,))
        return [data, data]
    # The axis of the result that the constant's channels are on.
    axis = -2 if product.swapped else -1
    if not shape or data.ndim < -axis:
        return [np.full(count, f(), data.dtype) for f in (data.min, data.max)]
    other_axes = tuple(i for i in range(data.ndim) if i != data.ndim + axis)
    bounds = (data.min(axis=other_axes), data.max(axis=other_axes))
    return [np.broadcast_to(each, shape).reshape(-1) for each in bounds]


# -- pairs in 16 bits ---------------------------------------------------------------------------


def worst_pair(product: Product, *, within_tap: bool = False) -> Pairs | None:
    """Sums of neighbouring products of bytes; None where a CPU does not sum such quantized values
    so.

    Signed quantized values of x are counted as unsigned ones, 128 more, as kernels have them; every
    tap of a window is taken to meet data. `within_tap`: neighbours of one tap alone, as some
    kernels have them; the last of an odd number of channels has none.
    """
    x, w = product.x.storage, product.w.storage
    if is_transposed_conv(product.step.call) or product.why_type_unknown:
        return None  # which taps meet data together depends on the place
    if x.bits > 8 or w.bits > 8 or w.kind != "int":
        return None
    shift = 128 if x.kind == "int" else 0
    ends = _byte_range(product, shift)
    if product.weights is None:
        extremes = np.array([[product.w.low] * 2, [product.w.high] * 2])
        return _furthest(extremes, ends, 0, None)
    rows, _ = _weights_by_channel(product, product.weights.data)
    # Kernels for channels last sum tap by tap, channels innermost.
    rows = np.moveaxis(rows, 1, -1)
    if within_tap and rows.shape[-1] % 2:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], 1), rows.dtype)], axis=-1)
    rows = rows.reshape(len(rows), -1)
    worst: Pairs | None = None
    rows_per_block = max(2, _MAX_BLOCK_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(rows), rows_per_block):
        worst = _furthest(rows[start : start + rows_per_block], ends, start, worst)
    return worst


def window(product: Product) -> int:
    """Returns the greatest sum of the quantized values of a window, as kernels add them that
    multiply it with a zero point of the weights; 0 where there is none."""
    depth = _sum_length(product)
    if depth is None or product.w.zero is None or not np.any(np.asarray(product.w.zeros())):
        return 0
    return depth * _byte_range(product, 0)[1]


def _byte_range(product: Product, shift: int) -> tuple[int, int]:
    """Returns the least and greatest quantized value of x as an unsigned byte; padding has the
    zero's."""
    quant, (least, greatest) = product.x, product.data_bounds
    if quant.zero is None:
        return quant.low + shift, quant.high + shift
    if product.step.call.op.startswith("conv"):
        least, greatest = min(least, 0), max(greatest, 0)
    zeros = np.asarray(quant.zeros())
    low, high = (int(zeros.min()), int(zeros.max())) if zeros.size else (0, 0)
    low, high = _clip_to_bounds(quant.low, quant.high, (low + least, high + greatest))
    return low + shift, high + shift


def _furthest(
    rows: Integers, ends: tuple[int, int], start: int, so_far: Pairs | None
) -> Pairs | None:
    """Returns the pairs of some channels next to those looked at before."""
    if not rows.size:
        return so_far
    if rows.shape[1] % 2:
        rows = np.concatenate([rows, np.zeros((len(rows), 1), rows.dtype)], axis=1)
    pairs = rows.astype(np.int32).reshape(len(rows), -1, 2)
    positive, negative = np.maximum(pairs, 0).sum(axis=2), np.minimum(pairs, 0).sum(axis=2)
    greatest_sums = positive * ends[1] + negative * ends[0]
    least_sums = positive * ends[0] + negative * ends[1]
    least, greatest = int(least_sums.min()), int(greatest_sums.max())
    if so_far is not None:
        least, greatest = min(least, so_far.least), max(greatest, so_far.greatest)
        # `~v` is -v - 1: it measures a negative end by the same bits as a positive one.
        if max(greatest, ~least) <= max(so_far.greatest, ~so_far.least):
            return Pairs(least, greatest, so_far.channel, so_far.at, so_far.weights, so_far.codes)
    is_upper = greatest >= ~least
    row, pair = np.unravel_index(
        (greatest_sums if is_upper else -least_sums).argmax(), greatest_sums.shape
    )
    first, second = (int(v) for v in pairs[row, pair])
    inputs = tuple(ends[1] if (v > 0) == is_upper else ends[0] for v in (first, second))
    return Pairs(
        least, greatest, start + int(row), 2 * int(pair), (first, second), (inputs[0], inputs[1])
    )
