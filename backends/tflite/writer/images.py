"""Images: channels last, their padding, and the pools over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from qir.ir import dims
from qir.ir.dtype import I16
from qir.ir.types import TensorType

from .network import OpCall, Options, OpWriter, as_image, sizes_of
from .schema import SAME, VALID


def result_image(c: OpCall) -> TensorType:
    """Returns the type of a result with channels last."""
    return c.result if c.attrs.get("layout") == "NHWC" else as_image(c.result)


def finish_image(
    c: OpCall, op: str, inputs: Sequence[int], options: Options
) -> int | Sequence[int]:
    """Adds the operator that computes a result; one with channels first is transposed if read."""
    if c.attrs.get("layout") == "NHWC":
        return c.finish(op, inputs, options)
    name = f"{c.node.result.name}/channels_last"
    made = c.w.add(c.node, op, inputs, as_image(c.result), options, name)
    c.w.images[c.node.result] = made
    return ()


def _needed_padding(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Returns what SAME pads along an axis; below zero, elements that no window reads."""
    return (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size


def pads_like_same(
    kind: TensorType,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
) -> bool:
    """Returns whether padding is that of SAME, and every row and column is read.

    Where some are not, XNNPACK of TensorFlow 2.21 may compute a layer wrongly.
    """
    for axis in range(2):
        size, front, back = kind.shape[1 + axis], pad[axis], pad[2 + axis]
        if isinstance(size, int):
            needed = _needed_padding(size, kernel[axis], stride[axis], dilation[axis])
        elif stride[axis] == 1:
            needed = (kernel[axis] - 1) * dilation[axis]
        else:
            return False
        if needed < 0 or (front, back) != (needed // 2, needed - needed // 2):
            return False
    return True


SAME_PROFILE = "tflite-2.21.xnnpack.same"
"""Convolutions whose stride leaves data unread, padded SAME in the file that they come from."""


def same_padding(c: OpCall) -> bool:
    """Returns whether a convolution is padded as SAME pads."""
    if c.node.profile == SAME_PROFILE:
        return True
    kind = c.kind() if c.attrs["layout"] == "NHWC" else as_image(c.kind())
    kernel = [int(size) for size in c.kind("w").shape[2:] if isinstance(size, int)]
    window = kernel, c.integers("stride"), c.integers("dilation")
    return pads_like_same(kind, *window, c.integers("pad"))


def padded_image(
    c: OpCall, image: int, kind: TensorType, pad: Sequence[int], value: float = 0.0
) -> tuple[int, TensorType]:
    """Adds zeros, or the least value there is for -inf, around an image."""
    sides = ((0, 0), (pad[0], pad[2]), (pad[1], pad[3]), (0, 0))
    shape = tuple(dims.add(n, sum(s)) for n, s in zip(kind.shape, sides, strict=True))
    wide = kind.with_shape(shape)
    paddings = c.w.plain(np.asarray(sides, np.int32), "paddings")
    if value == 0.0:
        return c.add("PAD", (image, paddings), wide), wide
    quant = kind.quant
    least = np.finfo(np.float32).min if quant is None else quant.storage.bounds[0]
    carrier = kind.dtype.carrier if quant is None else quant.storage.carrier
    number = np.asarray(least, carrier)
    filler = c.w.constant(c.node, number, kind.with_shape(()), "least")
    return c.add("PADV2", (image, paddings, filler), wide), wide


def rounded_up_pads(c: OpCall, kind: TensorType) -> tuple[int, ...]:
    """Returns the padding of a pool, with what a rounded up size of the result adds at the end."""
    pad, kernel, stride = list(c.integers("pad")), c.integers("kernel"), c.integers("stride")
    if c.attrs["ceil"]:
        for i, made in enumerate(result_image(c).shape[1:3]):
            size = kind.shape[1 + i]
            if not isinstance(size, int) or not isinstance(made, int):
                raise c.refused("sizes that are rounded up need known sizes; state them")
            needed = (made - 1) * stride[i] + kernel[i] - size - pad[i]
            pad[i + 2] = max(pad[i + 2], needed)
    return tuple(pad)


def _window(c: OpCall, padding: int) -> Options:
    kernel, stride = c.integers("kernel"), c.integers("stride")
    return (
        "Pool2DOptions",
        {
            "padding": padding,
            "stride_h": stride[0],
            "stride_w": stride[1],
            "filter_height": kernel[0],
            "filter_width": kernel[1],
            "fused_activation_function": c.activation,
        },
    )


def _max_pool(c: OpCall) -> int | Sequence[int]:
    if any(step != 1 for step in c.integers("dilation")):
        raise c.refused("TensorFlow Lite's pools have no dilation; write ONNX")
    image, kind = c.image("x")
    pad, padding = rounded_up_pads(c, kind), VALID
    if any(pad):
        window = c.integers("kernel"), c.integers("stride"), (1, 1)
        padding = SAME if pads_like_same(kind, *window, pad) else VALID
        if padding == VALID:
            image, _ = padded_image(c, image, kind, pad, -math.inf)
    return finish_image(c, "MAX_POOL_2D", (image,), _window(c, padding))


def _avg_pool(c: OpCall) -> int | Sequence[int]:
    image, kind = c.image("x")
    pad, padding = rounded_up_pads(c, kind), VALID
    factors = None
    if any(pad):
        window = c.integers("kernel"), c.integers("stride"), (1, 1)
        same = pads_like_same(kind, *window, pad) and not c.attrs["count_pad"]
        padding = SAME if same else VALID
        if not same:
            # The pool divides by the whole window, also where it counts fewer elements.
            factors = _factors(c, kind)
            image, _ = padded_image(c, image, kind, pad)
    if factors is None or np.all(factors == 1):
        return finish_image(c, "AVERAGE_POOL_2D", (image,), _window(c, padding))
    if c.result.quant is not None:
        raise c.refused(f"{UNEVEN}; keep it float")
    made = c.add("AVERAGE_POOL_2D", (image,), result_image(c), _window(c, padding))
    inputs = (made, c.w.plain(factors.astype(np.float32)))
    return finish_image(c, "MUL", inputs, ("MulOptions", {"fused_activation_function": 0}))


UNEVEN = "an average that leaves out padding other than SAME has no kernel on integers"


def is_uneven(c: OpCall) -> bool:
    """Returns whether an average pool leaves out padding that its operator counts."""
    if c.op != "avg_pool2d" or c.attrs["layout"] != "NHWC":
        return False
    pad = rounded_up_pads(c, c.kind())
    window = c.integers("kernel"), c.integers("stride"), (1, 1)
    if not any(pad) or (pads_like_same(c.kind(), *window, pad) and not c.attrs["count_pad"]):
        return False
    return bool(np.any(_factors(c, c.kind()) != 1))


def _factors(c: OpCall, kind: TensorType) -> np.ndarray:
    """Returns the size of the window by how many elements each window counts."""
    counts = reduce(np.multiply.outer, [_counted(c, kind, axis) for axis in range(2)])
    return np.asarray((math.prod(c.integers("kernel")) / counts)[None, ..., None])


def _counted(c: OpCall, kind: TensorType, axis: int) -> np.ndarray:
    """Returns how many elements along an axis each window of an average pool counts."""
    size, made = kind.shape[1 + axis], result_image(c).shape[1 + axis]
    if not isinstance(size, int) or not isinstance(made, int):
        raise c.refused("an average pool with padding needs known sizes; state them")
    pad, kernel, stride = c.integers("pad"), c.integers("kernel"), c.integers("stride")
    # With count_pad, padding counts, but not what a rounded up size reads beyond it.
    first, end = (-pad[axis], size + pad[axis + 2]) if c.attrs["count_pad"] else (0, size)
    starts = np.arange(made) * stride[axis] - pad[axis]
    return np.minimum(starts + kernel[axis], end) - np.maximum(starts, first) * 1.0


def _global_pool(op: str) -> OpWriter:
    def write(c: OpCall) -> int:
        x = c.kind()
        axes = range(1, x.rank - 1) if c.attrs["layout"] == "NHWC" else range(2, x.rank)
        options: Options = ("ReducerOptions", {"keep_dims": True})
        return c.finish(op, (c.tensor(), c.w.ints(list(axes), "axes")), options)

    return write


def _resize(c: OpCall) -> int | Sequence[int]:
    """Writes a resize of height and width, to the sizes of its result."""
    nearest = c.op == "resize_nearest"
    if why := resize_problem(c):
        raise c.refused(why)
    x, made = c.kind(), c.result
    axes = [i for i in range(4) if x.shape[i] != made.shape[i]] or [1]
    last = max(axes) <= 2 and min(axes) >= 1
    sizes = made.shape[1:3] if last else made.shape[2:4]
    image = c.tensor() if last else c.w.image(c.operands["x"])
    coordinates = c.attrs["coordinates"]
    options: Options = (
        "ResizeNearestNeighborOptions" if nearest else "ResizeBilinearOptions",
        {
            "align_corners": coordinates == "align_corners",
            "half_pixel_centers": coordinates in ("half_pixel", "pytorch_half_pixel"),
        },
    )
    wanted = c.w.ints(c.known(sizes), "sizes")
    op = "RESIZE_NEAREST_NEIGHBOR" if nearest else "RESIZE_BILINEAR"
    if last:
        return c.finish(op, (image, wanted), options)
    return finish_image(c, op, (image, wanted), options)


_NEAREST = {
    "align_corners": "round_prefer_ceil",
    "asymmetric": "floor",
    "half_pixel": "round_prefer_ceil",
}


def resize_problem(c: OpCall) -> str:
    """Returns why TensorFlow Lite has no such resize; empty where it has."""
    x, made = c.kind(), c.result
    coordinates = str(c.attrs["coordinates"])
    if x.rank != 4:
        return "TensorFlow Lite resizes images of four axes"
    axes = [i for i in range(4) if x.shape[i] != made.shape[i]]
    if axes and not (max(axes) <= 2 and min(axes) >= 1) and min(axes) < 2:
        return "TensorFlow Lite resizes heights and widths alone"
    if c.op == "resize_nearest":
        if c.attrs["rounding"] == _NEAREST.get(coordinates) or _is_whole(x, made, c):
            return ""
        return "TensorFlow Lite's nearest pixel is another one; resize by asymmetric and floor"
    if c.attrs["mode"] != "linear" or c.attrs["antialias"]:
        return "TensorFlow Lite resizes by the nearest pixel or linearly, without antialias"
    known = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    return "" if coordinates in known else f"TensorFlow Lite has no coordinates {coordinates}"


def _is_whole(x: TensorType, made: TensorType, c: OpCall) -> bool:
    """Returns whether every pixel is repeated a whole number of times.

    By asymmetric coordinates rounded down, and by half pixels rounded either way, the results are
    the same then.
    """
    pairs = [(a, b) for a, b in zip(x.shape, made.shape, strict=True) if a != b]
    whole = all(isinstance(a, int) and isinstance(b, int) and b % a == 0 for a, b in pairs)
    return whole and c.attrs["coordinates"] in ("half_pixel", "pytorch_half_pixel")


def _to_space(c: OpCall) -> int | Sequence[int]:
    """Writes channels to blocks of pixels; by moves where there is no kernel of it.

    DEPTH_TO_SPACE has its blocks before its channels, and takes no 16-bit data.
    """
    block, made = c.integer("block"), result_image(c)
    x, kind = c.image("x")
    n, height, width, _ = kind.shape
    (channels,) = c.known(made.shape[3:])
    after = c.attrs["mode"] == "CRD" and channels > 1
    if not after and not _is_wide(c):
        return finish_image(c, "DEPTH_TO_SPACE", (x,), _block_options(c))
    if not _is_wide(c) and sizes_of(kind).count(-1) > 1:
        # A reshape leaves one size open. Gathered, the channels are as DEPTH_TO_SPACE has them.
        order = np.arange(channels * block**2).reshape(channels, block**2).T.reshape(-1)
        by: Options = ("GatherOptions", {"axis": 3, "batch_dims": 0})
        x = c.add("GATHER", (x, c.w.ints(order.tolist(), "channels")), kind, by)
        return finish_image(c, "DEPTH_TO_SPACE", (x,), _block_options(c))
    split = (channels, block, block) if after else (block, block, channels)
    perm = (0, 1, 4, 2, 5, 3) if after else (0, 1, 3, 2, 4, 5)
    return _moved(c, x, kind.with_shape((n, height, width, *split)), perm)


def _to_depth(c: OpCall) -> int | Sequence[int]:
    """Writes blocks of pixels to channels; by moves on 16 bits, where there is no kernel of it."""
    block, made = c.integer("block"), result_image(c)
    x, kind = c.image("x")
    if not _is_wide(c):
        return finish_image(c, "SPACE_TO_DEPTH", (x,), _block_options(c))
    n, height, width, _ = made.shape
    (channels,) = c.known(kind.shape[3:])
    wide = kind.with_shape((n, height, block, width, block, channels))
    return _moved(c, x, wide, (0, 1, 3, 2, 4, 5))


def _is_wide(c: OpCall) -> bool:
    quant = c.result.quant
    return quant is not None and quant.storage == I16


def _block_options(c: OpCall) -> Options:
    title = "DepthToSpaceOptions" if c.op == "depth_to_space" else "SpaceToDepthOptions"
    return title, {"block_size": c.integer("block")}


def _moved(c: OpCall, x: int, split: TensorType, perm: Sequence[int]) -> int | Sequence[int]:
    """Adds a transpose of six axes, which an image is reshaped to and from."""
    x = c.w.reshaped(c.node, x, split)
    moved = split.with_shape(tuple(split.shape[axis] for axis in perm))
    x = c.w.transposed(c.node, x, moved, perm)
    sizes = sizes_of(result_image(c))
    inputs = (x, c.w.ints(sizes, "shape"))
    return finish_image(c, "RESHAPE", inputs, ("ReshapeOptions", {"new_shape": sizes}))


def blocks_problem(c: OpCall) -> str:
    """Returns why pixels of 16 bits are not moved in blocks; empty where they are."""
    small = c.kind() if c.op == "depth_to_space" else c.result
    if not _is_wide(c) or sizes_of(small).count(-1) <= 1:
        return ""
    return "TensorFlow Lite has no kernel of it on 16 bits, and moves it by known sizes; state them"


OPS: Mapping[str, OpWriter] = {
    "avg_pool2d": _avg_pool,
    "depth_to_space": _to_space,
    "global_avg_pool": _global_pool("MEAN"),
    "global_max_pool": _global_pool("REDUCE_MAX"),
    "max_pool2d": _max_pool,
    "resize": _resize,
    "resize_nearest": _resize,
    "space_to_depth": _to_depth,
}
