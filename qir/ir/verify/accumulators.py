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
from qir.ir.verify.following import follow, integer_bounds
from qir.ir.verify.parameters import miscounted, outside
from qir.ir.verify.rule import Look, NodeContext
from qir.ir.verify.sharing import read_map
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


def products(seen: NodeContext) -> tuple[Product, ...]:
    """Returns the integer products of a node or its chain, cached in the context."""
    if seen.products is None:
        steps = [s for s in seen.steps if s.spec.name in SLOTS and not s.rejection]
        seen.products = tuple(p for s in steps if (p := _product(seen, s)) is not None)
    return seen.products


def _product(seen: NodeContext, step: OpUse) -> Product | None:
    look, (data, slot, added) = seen.look, SLOTS[step.spec.name]
    if step.spec.name in PLAIN_INTEGER_PRODUCTS:
        x, w = _plain_integer_type(look, step, data), _plain_integer_type(look, step, slot)
    else:
        x, w = read_map(seen, step, data), read_map(seen, step, slot)
    if x is None or w is None or not all(_is_summable(q) and _has_valid_zeros(q) for q in (x, w)):
        return None
    weights, turned = _constant(look, step, slot), False
    if weights is None and step.spec.name in MATRICES:
        weights = _constant(look, step, data)
        turned = weights is not None
    bias, loose = _bias(look, step, added)
    x, w = (w, x) if turned else (x, w)
    within, lost = (
        _data_bounds(look, step, slot if turned else data),
        _why_type_unknown(look, step, (data, slot)),
    )
    weights = None if w.zero is None or lost else weights
    if weights is not None and any(miscounted(w, TensorType(weights.contents.shape, w))):
        return None
    if weights is None and w.zero is not None:
        loose = loose or _why_weights_unknown(look, step, slot, data)
    return Product(step, x, w, weights, turned, bias, loose, within, lost)


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
    found = (
        follow(look, v).why_type_unknown for s in slots if (v := step.operands.get(s)) is not None
    )
    return next(filter(None, found), "")


def _plain_integer_type(look: Look, step: OpUse, slot: str) -> QuantType | None:
    """Returns a type of scale 1 for plain integers, with the zero points of companion operands."""
    kind = step.call.types[slot]
    beside = step.operands.get(f"{slot}.zero")
    if beside is None:
        return QuantType(kind.dtype)
    _, array = look.constant_integers(beside)
    if array is None:
        return QuantType(kind.dtype, zero=None)
    if array.contents.size == 1:
        return QuantType(kind.dtype, zero=(int(array.data.reshape(-1)[0]),))
    if array.contents.ndim != 1:  # one zero for each row of a batch
        return None
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
    counted = quant is not None or value.type.dtype.is_integer
    return None, "its bias is computed" if counted else ""


# -- the shape of a sum -------------------------------------------------------------------------


def summed_axes(product: Product) -> tuple[int, ...]:
    """Returns the axes of the weights along which products are added up."""
    call = product.step.call
    match call.op:
        case "linear":
            return (1,)
        case "matmul" | "gemm" | "matmul_integer":
            slot, last = ("a", True) if product.swapped else ("b", False)
            rank = len(call.shape(slot))
            last = last != _is_transposed_operand(call, slot)
            return (rank - 1 if last or rank == 1 else rank - 2,)
    rest = tuple(range(2, len(call.shape("w"))))
    return (0 if is_transposed_conv(call) else 1, *rest)


def is_transposed_conv(call: Call) -> bool:
    """Returns whether it is a transposed convolution, whose weights are [in, out / groups, ...]."""
    return call.op.startswith("conv_transpose")


def _is_transposed_operand(call: Call, slot: str) -> bool:
    return call.attrs.get(f"trans_{slot}") is True


def _sum_length(product: Product) -> int | None:
    """Returns how many products one sum has; None where a size is not known."""
    call = product.step.call
    mine, other = product.slots
    sizes = dims.known_shape(tuple(call.shape(mine)[axis] for axis in summed_axes(product)))
    if sizes is not None and is_transposed_conv(call):  # of the taps, those that reach one place
        taps = [int(rows.sum(axis=1).max()) for rows in _taps_on_data(product, sizes[1:])]
        sizes = (sizes[0] // call.int_attr("groups"), *taps)
    if sizes is None and not call.op.startswith("conv"):
        sizes = dims.known_shape((call.shape(other)[data_sum_axis(product)],))
    return None if sizes is None else math.prod(sizes)


def _taps_on_data(product: Product, kernel: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Returns for each window axis a table of output position x tap: whether the tap hits data."""
    call = product.step.call
    if not call.op.startswith("conv"):
        return []
    x, n = call.shape("x"), len(kernel)
    first = 1 if call.attrs.get("layout") == "NHWC" else 2
    stride, dilation = (call.int_list_attr(a) or (1,) * n for a in ("stride", "dilation"))
    pad = call.int_list_attr("pad") or (0,) * 2 * n
    more = call.int_list_attr("output_pad") if is_transposed_conv(call) else (0,) * n
    taps = scattered if is_transposed_conv(call) else gathered
    return [
        taps(x[first + i], kernel[i], stride[i], dilation[i], (pad[i], pad[n + i] - more[i]))
        for i in range(n)
    ]


def _sum_block_size(product: Product) -> int | str | None:
    """Returns the block size at which a new sum begins, as scales change; or why it is unknown."""
    first, *more = summed_axes(product)
    size: int | None = None
    if (
        is_transposed_conv(product.step.call)
        and product.w.granularity
        and first in dict(product.w.granularity.blocks)
    ):
        return "its scales vary along the channels that are summed up"
    for quant, axis, others in (
        (product.w, first, more),
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
        last = (
            _is_transposed_operand(call, slot)
            if product.swapped
            else not _is_transposed_operand(call, slot)
        )
        return rank - 1 if last or rank == 1 else rank - 2
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
    depth, cut = _sum_length(product), _sum_block_size(product)
    if depth is None:
        return "the length of its sums is not known"
    if isinstance(cut, str):
        return cut
    if product.why_unbounded:
        return product.why_unbounded
    if product.weights is None:
        return depth, *_any_weights(product, depth), 0
    return depth, *_these_weights(product, product.weights, cut)


def signed_bits(least: int, greatest: int) -> int:
    """Bits of the narrowest signed number that holds both."""
    return max((v if v >= 0 else ~v).bit_length() for v in (least, greatest)) + 1


def fits_int32_by_types(product: Product) -> bool:
    """Returns whether the types alone prove that 32 bits hold every sum, which takes no time."""
    depth = _sum_length(product)
    if depth is None or product.why_unbounded or product.why_type_unknown:
        return False
    least, greatest = _any_weights(product, depth)
    return INT32[0] <= least and greatest <= INT32[1]


def _centered_ends(quant: QuantType, within: tuple[float, float]) -> list[tuple[int, int]]:
    """Least and greatest q - zero, for the zeros that are furthest out.

    `within` holds what is known of them beyond the storage. The greatest sum is convex in the
    zero point, so that none in between goes further.
    """
    zeros = {quant.low, quant.high}
    if isinstance(quant.zero, tuple):
        zeros = {int(z) for z in (min(quant.zero), max(quant.zero))} if quant.zero else {0}
    elif quant.zero is not None:
        found = np.asarray(quant.zeros())
        zeros = {int(found.min()), int(found.max())} if found.size else {0}
    return [_clip_to_bounds(quant.low - zero, quant.high - zero, within) for zero in sorted(zeros)]


def _clip_to_bounds(low: int, high: int, within: tuple[float, float]) -> tuple[int, int]:
    """Clips low..high to bounds; where they do not overlap, to the nearest end."""
    least, greatest = (min(max(end, low), high) for end in within)
    return int(least), int(greatest)


def _any_weights(product: Product, depth: int) -> tuple[int, int]:
    """Least and greatest sum over all weights of the type."""
    ends = _centered_ends(product.x, product.data_bounds)
    corners = [
        a * b for x in ends for w in _centered_ends(product.w, _UNBOUNDED) for a in x for b in w
    ]
    low, high = _bias_ends(product)
    return depth * min(0, *corners) + low, depth * max(0, *corners) + high


def _bias_ends(product: Product) -> tuple[int, int]:
    if product.bias is None or not product.bias.contents.size:
        return 0, 0
    return int(product.bias.data.min()), int(product.bias.data.max())


def _these_weights(product: Product, weights: Array, cut: int | None) -> tuple[int, int, int]:
    """Least and greatest sum, and the channel that goes furthest, for constant weights."""
    rows, shape = _rows(product, _centred(weights, product.w))
    windows = _taps_on_data(product, rows.shape[2:])
    biases = [None, None] if cut else _bias_rows(product, shape)
    worst = _Worst()
    each = max(1, _MAX_BLOCK_ELEMENTS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), each):
        part = slice(start, start + each)
        up = _totals(np.maximum(rows[part], 0), windows, cut)
        down = _totals(np.minimum(rows[part], 0), windows, cut)
        low, high = (None if b is None else b[part] for b in biases)
        for least, greatest in _centered_ends(product.x, product.data_bounds):
            worst.take(_sums(up, greatest, down, least, high), start)
            worst.take(_sums(up, least, down, greatest, low), start)
    return worst.least, worst.greatest, worst.channel


class _Worst:
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


def _rows(product: Product, data: Integers) -> tuple[Integers, tuple[int, ...]]:
    """Returns the weights as channels by summed axes, and the shape that the channels have."""
    over = summed_axes(product)
    if is_transposed_conv(product.step.call):
        groups = product.step.call.int_attr("groups")
        split = data.reshape(groups, data.shape[0] // groups, *data.shape[1:]).swapaxes(1, 2)
        channels = groups * data.shape[1]
        return split.reshape(channels, *split.shape[2:]), (channels,)
    channels = tuple(i for i in range(data.ndim) if i not in over)
    moved = data.transpose(*channels, *over)
    shape = moved.shape[: len(channels)]
    return moved.reshape(math.prod(shape), *moved.shape[len(channels) :]), shape


def _centred(weights: Array, quant: QuantType) -> Integers:
    """q - zero, in 64 bits, or as Python's whole numbers where those might not do."""
    data: Integers = weights.data
    if quant.storage.bits > 32:
        data = data.astype(object)
    zeros = np.asarray(quant.zeros())
    if not zeros.any():
        return data
    wide = data if data.dtype == object else data.astype(np.int64)
    out: Integers = np.subtract(wide, _spread(zeros, quant, data.shape))
    return out


def _spread(zeros: NDArray[np.generic], quant: QuantType, shape: tuple[int, ...]) -> Integers:
    """Returns a zero for each element."""
    grain = quant.granularity
    if grain is None or zeros.size == 1:
        return zeros.reshape(())
    if grain.axis is not None:
        return zeros.reshape([-1 if i == grain.axis else 1 for i in range(len(shape))])
    for axis, size in grain.blocks:
        zeros = np.repeat(zeros, size, axis=axis)[(slice(None),) * axis + (slice(shape[axis]),)]
    return zeros


def _totals(rows: Integers, windows: list[NDArray[np.int64]], cut: int | None) -> Integers:
    """Sums of each row, one for each block and each place of the window."""
    kind = np.dtype(object if rows.dtype == object else np.int64)
    if cut and rows.shape[1]:
        sums: Integers = np.add.reduceat(rows, range(0, rows.shape[1], cut), axis=1, dtype=kind)
    else:
        sums = rows.sum(axis=1, dtype=kind, keepdims=True)
    for taps in windows:  # each axis of taps gives way to one of places, which goes to the end
        first = np.moveaxis(sums, 2, -1)
        if len(taps) == 1 and taps.all():
            sums = first.sum(axis=-1, dtype=kind, keepdims=True)
        else:
            sums = np.dot(first, taps.T.astype(kind))
    return sums.reshape(len(rows), -1)


def _sums(up: Integers, above: int, down: Integers, below: int, bias: Integers | None) -> Integers:
    """up * above + down * below + bias, exactly."""
    most = int(up.max(initial=0)) * abs(above) - int(down.min(initial=0)) * abs(below)
    if max(most, abs(above), abs(below)) >= 1 << 61:
        up, down = up.astype(object), down.astype(object)
    out: Integers = np.add(np.multiply(up, above), np.multiply(down, below))
    if bias is not None:
        out = np.add(out, bias.reshape(-1, 1))
    return out


def _bias_rows(product: Product, shape: tuple[int, ...]) -> list[Integers | None]:
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
    axis = -2 if product.swapped else -1
    if not shape or data.ndim < -axis:
        return [np.full(count, f(), data.dtype) for f in (data.min, data.max)]
    rest = tuple(i for i in range(data.ndim) if i != data.ndim + axis)
    found = (data.min(axis=rest), data.max(axis=rest))
    return [np.broadcast_to(each, shape).reshape(-1) for each in found]


# -- pairs in 16 bits ---------------------------------------------------------------------------


def worst_pair(product: Product, *, inside: bool = False) -> Pairs | None:
    """Sums of neighbouring products of bytes; None where a CPU does not sum such quantized values
    so.

    Signed quantized values of x are counted as unsigned ones, 128 more, as kernels have them; every
    tap of a window is taken to meet data. `inside`: neighbours of one tap alone, as some kernels
    have them; the last of an odd number of channels has none.
    """
    x, w = product.x.storage, product.w.storage
    if is_transposed_conv(product.step.call) or product.why_type_unknown:
        return None  # which taps meet data together depends on the place
    if x.bits > 8 or w.bits > 8 or w.kind != "int":
        return None
    shift = 128 if x.kind == "int" else 0
    ends = _bytes(product, shift)
    if product.weights is None:
        extremes = np.array([[product.w.low] * 2, [product.w.high] * 2])
        return _furthest(extremes, ends, 0, None)
    rows, _ = _rows(product, product.weights.data)
    rows = np.moveaxis(rows, 1, -1)
    if inside and rows.shape[-1] % 2:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], 1), rows.dtype)], axis=-1)
    rows = rows.reshape(len(rows), -1)
    found: Pairs | None = None
    each = max(2, _MAX_BLOCK_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(rows), each):
        found = _furthest(rows[start : start + each], ends, start, found)
    return found


def window(product: Product) -> int:
    """Returns the greatest sum of the quantized values of a window, as kernels add them that
    multiply it with a zero point of the weights; 0 where there is none."""
    depth = _sum_length(product)
    if depth is None or product.w.zero is None or not np.any(np.asarray(product.w.zeros())):
        return 0
    return depth * _bytes(product, 0)[1]


def _bytes(product: Product, shift: int) -> tuple[int, int]:
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
    wide = rows.astype(np.int32).reshape(len(rows), -1, 2)
    up, down = np.maximum(wide, 0).sum(axis=2), np.minimum(wide, 0).sum(axis=2)
    above, below = up * ends[1] + down * ends[0], up * ends[0] + down * ends[1]
    least, greatest = int(below.min()), int(above.max())
    if so_far is not None:
        least, greatest = min(least, so_far.least), max(greatest, so_far.greatest)
        if max(greatest, ~least) <= max(so_far.greatest, ~so_far.least):
            return Pairs(least, greatest, so_far.channel, so_far.at, so_far.weights, so_far.codes)
    high = greatest >= ~least
    row, pair = np.unravel_index((above if high else -below).argmax(), above.shape)
    first, second = (int(v) for v in wide[row, pair])
    taken = tuple(ends[1] if (v > 0) == high else ends[0] for v in (first, second))
    return Pairs(
        least, greatest, start + int(row), 2 * int(pair), (first, second), (taken[0], taken[1])
    )
