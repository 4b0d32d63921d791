"""Convolutions, depthwise and transposed ones, fully connected layers, products, and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.node import Value
from qir.ledger import Change

from . import profiles
from .call import OperatorCall
from .reader import STEP, Unread
from .schema import SAME

LAST = "NHWC"


def _pair(call: OperatorCall, height: str, width: str) -> tuple[int, int]:
    """Returns two options, for height and width, that are at least 1."""
    both = call.integer(height, 1), call.integer(width, 1)
    if min(both) < 1:
        raise Unread(f"its {height} and {width} are {list(both)}")
    return both


def missing(size: Dim, kernel: int, stride: int, dilation: int = 1) -> int:
    """Returns what padding SAME adds along an axis; below zero, elements that no window reads."""
    span = (kernel - 1) * dilation + 1
    # The result has ceil(size / stride) positions.
    if isinstance(size, int):
        return (-(-size // stride) - 1) * stride + span - size
    if stride == 1:
        return span - 1
    raise Unread("padding SAME with a stride needs the size of its input, which is open")


def _pads(
    call: OperatorCall, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Returns the padding of an image: all at the front, then all at the back."""
    if call.integer("padding") != SAME:
        return (0,) * (2 * len(kernel))
    sizes = call.shape(0)[1:-1]
    total = [max(missing(*each), 0) for each in zip(sizes, kernel, stride, dilation, strict=True)]
    # Of an odd total, the larger part is at the bottom and at the right.
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _conv2d(call: OperatorCall) -> Value:
    return _convolution(call, (0, 3, 1, 2))


def _depthwise(call: OperatorCall) -> Value:
    # The filter is [1, height, width, channels * multiplier], ordered by channel first.
    return _convolution(call, (3, 0, 1, 2))


def _convolution(call: OperatorCall, perm: tuple[int, ...]) -> Value:
    x, weights = call[0], call.moved(call[1], perm)
    _, channels_read, *kernel = weights.type.shape
    taps = tuple(size for size in kernel if isinstance(size, int))
    stride = _pair(call, "stride_h", "stride_w")
    dilation = _pair(call, "dilation_h_factor", "dilation_w_factor")
    channels = x.type.shape[-1] if x.type.rank == 4 else None
    if not isinstance(channels, int) or not isinstance(channels_read, int) or len(taps) != 2:
        raise Unread("the number of its channels is not known")
    if not channels_read or channels % channels_read:
        raise Unread(f"it has {channels} channels, and weights for {channels_read} each")
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": _pads(call, taps, stride, dilation),
        "dilation": dilation,
        "groups": channels // channels_read,
        "layout": LAST,
    }
    profile = _profile_of_unread(call, taps, stride, dilation)
    operands = {"x": x, "w": weights, "bias": call.optional(2)}
    return call.finish("conv2d", operands, attrs, profile=profile)


def _profile_of_unread(
    call: OperatorCall, taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> str | None:
    """Returns the profile of a layer whose stride leaves rows or columns of its data unread.

    Its bytes depend on whether the file says SAME or VALID, which the layer itself does not.
    """
    if max(taps) == 1:
        return None
    sides = zip(call.shape(0)[1:-1], taps, stride, dilation, strict=True)
    if all(isinstance(size, int) and missing(size, k, s, d) >= 0 for size, k, s, d in sides):
        return None
    padded_same = call.integer("padding") == SAME
    if padded_same:
        reason = "TensorFlow 2.21's XNNPACK reads padding alone here, a defect; LiteRT 2.3 does not"
        call.reader.ledger.add(Change.UNVERIFIED, STEP, call.name, reason)
    if call[1].type.quant is None:
        return None
    return profiles.SAME if padded_same else profiles.VALID


def _fully_connected(call: OperatorCall) -> Value:
    x, weights = call[0], call[1]
    if call.integer("weights_format"):
        raise Unread("its weights are shuffled; convert the model without that format")
    terms = weights.type.shape[-1]
    if not isinstance(terms, int) or weights.type.rank != 2:
        raise Unread("its weights are no matrix of known sizes")
    if x.type.rank != 2 and not call.flag("keep_num_dims"):
        x = call.add("reshape", {"x": x, "shape": call.int64_constant((-1, terms), "rows")})
    _note_symmetric(call)
    return call.finish("linear", {"x": x, "w": weights, "bias": call.optional(2)})


def _note_symmetric(call: OperatorCall) -> None:
    """Notes a layer that asks for float data to be quantized about zero by 4-bit weights."""
    quant = call[1].type.quant
    if not call.is_dynamic or quant is None or quant.storage.bits == 8:
        return  # XNNPACK computes those of 8 bits as if they did not ask
    if not call.flag("asymmetric_quantize_inputs"):
        reason = "quantizes its data about zero; how XNNPACK computes that is not known"
        call.reader.ledger.add(Change.UNVERIFIED, STEP, call.name, reason)


def _batch_matmul(call: OperatorCall) -> Value:
    attrs: dict[str, Attr] = {"trans_a": call.flag("adj_x"), "trans_b": call.flag("adj_y")}
    _note_symmetric(call)
    quant = call[1].type.quant
    if call[0].type.quant is not None and quant is not None and np.any(quant.zeros()):
        reason = "XNNPACK takes the zero point of its second tensor for 0, a defect; others do not"
        call.reader.ledger.add(Change.UNVERIFIED, STEP, call.name, reason)
    return call.finish("matmul", {"a": call[0], "b": call[1]}, attrs)


def _transposed_conv(call: OperatorCall) -> Value:
    """Reads TRANSPOSE_CONV: sizes of the result, filter [out, height, width, in], and the data."""
    x, weights = call[2], call.moved(call[1], (3, 0, 1, 2))
    made = call.result_sizes()
    stride = _pair(call, "stride_h", "stride_w")
    taps = [size for size in weights.type.shape[2:] if isinstance(size, int)]
    if len(made) != 4 or x.type.rank != 4 or len(taps) != 2:
        raise Unread("it is no layer of images")
    fronts, backs, more = [], [], []
    for axis, kernel, step in zip((1, 2), taps, stride, strict=True):
        size = x.type.shape[axis]
        full = dims.add(dims.multiply(dims.add(size, -1), step), kernel)
        extra = dims.subtract(full, made[axis])
        if not isinstance(extra, int):
            raise Unread("the size of its input is not known")
        total = max(extra, 0) if call.integer("padding") == SAME else 0
        fronts.append(total // 2)
        backs.append(total - total // 2)
        more.append(total - extra)
    if min(more) < 0:
        raise Unread(f"its result of {made[1]} x {made[2]} does not follow from its data")
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": (*fronts, *backs),
        "output_pad": tuple(more),
    }
    image = call.add("transpose", {"x": x}, {"perm": (0, 3, 1, 2)})
    operands = {"x": image, "w": weights, "bias": call.optional(3)}
    is_open = weights.type.quant is not None and call[0].constant is None
    profile = profiles.OPEN if is_open else None
    y = call.finish("conv_transpose2d", operands, attrs, profile=profile)
    return call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 1)})


def _conv3d(call: OperatorCall) -> Value:
    """Reads CONV_3D, whose filter is [depth, height, width, in, out]."""
    x, weights = call[0], call.moved(call[1], (4, 3, 0, 1, 2))
    taps = tuple(size for size in weights.type.shape[2:] if isinstance(size, int))
    stride = (call.integer("stride_d", 1), *_pair(call, "stride_h", "stride_w"))
    dilation = (
        call.integer("dilation_d_factor", 1),
        *_pair(call, "dilation_h_factor", "dilation_w_factor"),
    )
    if len(taps) != 3 or min(*stride, *dilation) < 1:
        raise Unread("it is no layer of volumes")
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": _pads(call, taps, stride, dilation),
        "dilation": dilation,
    }
    volume = call.add("transpose", {"x": x}, {"perm": (0, 4, 1, 2, 3)})
    operands = {"x": volume, "w": weights, "bias": call.optional(2)}
    y = call.finish("conv3d", operands, attrs)
    return call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 4, 1)})


def _pool2d(op: str) -> Callable[[OperatorCall], Value]:
    def read(call: OperatorCall) -> Value:
        kernel = _pair(call, "filter_height", "filter_width")
        stride = _pair(call, "stride_h", "stride_w")
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": _pads(call, kernel, stride, (1, 1)),
            "layout": LAST,
        }
        return call.finish(op, {"x": call[0]}, attrs)

    return read


OPS: dict[str, Callable[[OperatorCall], Value]] = {
    "AVERAGE_POOL_2D": _pool2d("avg_pool2d"),
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _conv2d,
    "CONV_3D": _conv3d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
    "MAX_POOL_2D": _pool2d("max_pool2d"),
    "TRANSPOSE_CONV": _transposed_conv,
}
