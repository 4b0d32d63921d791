"""Writes ops that move, select and repeat elements, of quantized tensors too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from qir.ir.dims import Dim
from qir.ir.node import Node, Value

from .elements import kind
from .layers import constant_pad_list, int_list, integer
from .program import FxProgram, Handler


def _sizes(program: FxProgram, node: Node) -> list[Any]:
    """Returns the sizes of a result; one unknown size is -1, which reshape infers."""
    shape = node.result.type.shape
    unknown = [dim for dim in shape if not isinstance(dim, int)]
    if len(unknown) == 1 and 0 not in shape:
        return [dim if isinstance(dim, int) else -1 for dim in shape]
    return [program.size(dim, node) for dim in shape]


def _reshape(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.reshape", program.operand(node, "x"), _sizes(program, node))


def _flatten(program: FxProgram, node: Node) -> fx.Node:
    axis, x = node.attrs["axis"], program.operand(node, "x")
    if axis == 1 and node.operands["x"].type.rank > 1:
        return program.call("aten.flatten", x, 1)
    return program.call("aten.reshape", x, _sizes(program, node))


def _transpose(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.permute", program.operand(node, "x"), int_list(node.attrs["perm"]))


def _concat(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.cat", program.variadic_nodes(node), node.attrs["axis"])


_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(program: FxProgram, node: Node) -> fx.Node:
    x, attrs = program.operand(node, "x"), node.attrs
    pads = constant_pad_list(int_list(attrs["pads"]))
    # Pads of leading axes that are zero may be left out: the list begins at the last axis.
    while pads[-2:] == [0, 0]:
        pads = pads[:-2]
    if not pads:
        return x
    if attrs["mode"] == "constant":
        return program.call("aten.constant_pad_nd", x, pads, attrs["value"])
    mode = _MODES.get(str(attrs["mode"]))
    # aten.pad of other modes works on the axes after batch and channels.
    if mode is None or min(pads) < 0 or len(pads) // 2 > node.result.type.rank - 2:
        raise program.refuse(node, f"PyTorch does not pad so: {attrs['mode']!r} of these axes")
    return program.call("aten.pad", x, pads, mode)


def _squeeze(program: FxProgram, node: Node) -> fx.Node:
    x, axes = node.operands["x"], int_list(node.attrs["axes"])
    axes = axes or [i for i, dim in enumerate(x.type.shape) if dim == 1]
    squeezed = program.node_of(x)
    for axis in sorted((a % x.type.rank for a in axes), reverse=True):
        squeezed = program.call("aten.squeeze", squeezed, axis)
    return squeezed


def _unsqueeze(program: FxProgram, node: Node) -> fx.Node:
    unsqueezed, rank = program.operand(node, "x"), node.result.type.rank
    for axis in sorted(a % rank for a in int_list(node.attrs["axes"])):
        unsqueezed = program.call("aten.unsqueeze", unsqueezed, axis)
    return unsqueezed


PAST_ANY_END = 2**31 - 1
"""An index beyond the end of any axis."""


def _slice(program: FxProgram, node: Node) -> fx.Node:
    sliced, attrs = program.operand(node, "x"), node.attrs
    for start, end, axis, step in zip(
        *(int_list(attrs[key]) for key in ("starts", "ends", "axes", "steps")), strict=True
    ):
        if step < 1:  # PyTorch slices in steps of 1 and more
            flipped_range = _flipped_range(node, axis, start, end)
            if flipped_range is None:
                raise program.refuse(node, f"its axis {axis} has steps of {step} and no known size")
            sliced = program.call("aten.flip", sliced, [axis])
            start, end, step = *flipped_range, -step
        sliced = program.call("aten.slice", sliced, axis, start, end, step)
    return sliced


def _flipped_range(node: Node, axis: int, start: int, end: int) -> tuple[int, int] | None:
    """Returns start and end of a backwards slice, counted on the flipped axis."""
    size = node.operands["x"].type.shape[axis]
    # slice.indices resolves negative and too large bounds as Python does.
    if isinstance(size, int):
        first, last, _ = slice(start, end, -1).indices(size)
        return size - 1 - first, size - 1 - last
    from_end = start == -1 or start >= PAST_ANY_END
    return (0, PAST_ANY_END) if from_end and end <= -PAST_ANY_END else None


def _split(program: FxProgram, node: Node) -> list[fx.Node]:
    sizes, axis = int_list(node.attrs["sizes"]), node.attrs["axis"]
    parts = program.call("aten.split_with_sizes", program.operand(node, "x"), sizes, axis)
    return [program.item(parts, index) for index in range(len(node.results))]


def _non_negative_indices(program: FxProgram, node: Node, size: Dim) -> fx.Node:
    """Returns indices as non-negative ones: negative ones count from the end."""
    value: Value = node.operands["indices"]
    if value.constant is not None and (np.asarray(value.constant.data, np.int64) >= 0).all():
        return program.call("aten.to", program.node_of(value), torch.int64)
    indices = program.call("aten.to", program.node_of(value), torch.int64)
    # These never return a negative index.
    if value.constant is None and value.node.op in ("arg_max", "arg_min"):
        return indices
    from_start = program.call("aten.add", indices, program.size(size, node))
    return program.call("aten.where", program.call("aten.lt", indices, 0), from_start, indices)


def _gather(program: FxProgram, node: Node) -> fx.Node:
    x, indices = node.operands["x"], node.operands["indices"]
    axis = integer(node.attrs["axis"]) % x.type.rank
    if indices.constant is not None and indices.type.rank == 0:
        return program.call("aten.select", program.node_of(x), axis, int(indices.constant.data))
    positions = _non_negative_indices(program, node, x.type.shape[axis])
    if indices.type.rank == 1:
        return program.call("aten.index_select", program.node_of(x), axis, positions)
    # index_select takes a list: flatten the indices, and give the result their shape.
    flat = program.call("aten.reshape", positions, [-1])
    rows = program.call("aten.index_select", program.node_of(x), axis, flat)
    return program.call("aten.reshape", rows, _sizes(program, node))


def _gather_elements(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    axis = integer(node.attrs["axis"]) % x.type.rank
    positions = _non_negative_indices(program, node, x.type.shape[axis])
    return program.call("aten.gather", program.node_of(x), axis, positions)


def _gather_nd(program: FxProgram, node: Node) -> fx.Node:
    indices, count = node.operands["indices"], node.operands["indices"].type.shape[-1]
    if node.attrs["batch"] or not isinstance(count, int):
        raise program.refuse(node, "its indices have axes of batches, or nobody knows how many")
    axis_indices = [
        program.call("aten.select", program.node_of(indices), -1, i) for i in range(count)
    ]
    return program.call("aten.index", program.operand(node, "x"), axis_indices)


def _embedding(program: FxProgram, node: Node) -> fx.Node:
    w = node.operands["w"]
    positions = _non_negative_indices(program, node, w.type.shape[0])
    return program.call("aten.embedding", program.node_of(w), positions)


def _expand(program: FxProgram, node: Node) -> fx.Node:
    sizes = [program.size(dim, node) for dim in node.result.type.shape]
    return program.call("aten.expand", program.operand(node, "x"), sizes)


def _tile(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.repeat", program.operand(node, "x"), int_list(node.attrs["repeats"]))


def _depth_to_space(program: FxProgram, node: Node) -> fx.Node:
    x, block = node.operands["x"], integer(node.attrs["block"])
    if node.attrs["layout"] == "NHWC":
        raise program.refuse(node, "its layout is NHWC")
    if node.attrs["mode"] == "CRD":
        return program.call("aten.pixel_shuffle", program.node_of(x), block)
    batch, channels, height, width = (program.size(dim, node) for dim in x.type.shape)
    if not isinstance(channels, int):
        raise program.refuse(node, "its number of channels is not known")
    # Depth-column-row order: [N, b*b, C', H, W] -> [N, C', b*b, H, W], which pixel_shuffle expects.
    inner = channels // block**2
    shuffled = program.call(
        "aten.reshape", program.node_of(x), [batch, block**2, inner, height, width]
    )
    shuffled = program.call("aten.transpose", shuffled, 1, 2)
    shuffled = program.call("aten.reshape", shuffled, [batch, channels, height, width])
    return program.call("aten.pixel_shuffle", shuffled, block)


def _spatial_axes(node: Node) -> list[int]:
    """Returns the spatial axes of a resize; channels are second or last."""
    rank = node.result.type.rank
    stated = sorted(axis % rank for axis in int_list(node.attrs["axes"]))
    inner = list(range(1, rank - 1))
    return inner if stated == inner else list(range(2, rank))


def _resampled(program: FxProgram, node: Node, name: str, *options: Any) -> fx.Node:
    """Returns a call of an operator that resizes the axes after the channels."""
    axes, x = _spatial_axes(node), node.operands["x"].type
    shape, rank = node.result.type.shape, x.rank
    unchanged = [axis for axis in range(rank) if axis not in axes]
    if not 3 <= rank <= 5 or any(shape[axis] != x.shape[axis] for axis in unchanged):
        raise program.refuse(node, "PyTorch resizes the axes after the channels")
    sizes = [program.size(shape[axis], node) for axis in axes]
    data, scales = program.operand(node, "x"), _scales(node)
    is_nhwc = axes[0] == 1
    data = program.call("aten.permute", data, [*unchanged, *axes]) if is_nhwc else data
    resized = program.call(name, data, sizes, *options, *[scales[axis] for axis in axes if scales])
    return program.call("aten.permute", resized, [0, *range(2, rank), 1]) if is_nhwc else resized


def _scales(node: Node) -> list[float]:
    """Returns the scales of all axes, none where sizes say them."""
    stated, axes = node.attrs["scales"], int_list(node.attrs["axes"])
    assert isinstance(stated, tuple)
    rank = node.result.type.rank
    axes_of_scales = [a % rank for a in axes] or list(range(rank))
    scale_by_axis = {
        a: s for a, s in zip(axes_of_scales, stated, strict=False) if isinstance(s, float)
    }
    return [scale_by_axis.get(axis, 1.0) for axis in range(rank)] if stated else []


def _has_integral_factors(node: Node) -> bool:
    """Returns whether each element of x is repeated along the axes of images, all as often."""
    shape, input_shape, scales = (
        node.result.type.shape,
        node.operands["x"].type.shape,
        _scales(node),
    )
    for axis in _spatial_axes(node):
        size, input_size = shape[axis], input_shape[axis]
        if not isinstance(size, int) or not isinstance(input_size, int) or size % input_size:
            return False
        if scales and scales[axis] != size // input_size:
            return False
    return True


def _resize_nearest(program: FxProgram, node: Node) -> fx.Node:
    attrs = node.attrs
    if (attrs["coordinates"], attrs["rounding"]) == ("half_pixel", "round_prefer_ceil"):
        return _resampled(program, node, f"aten._upsample_nearest_exact{len(_spatial_axes(node))}d")
    floors = (attrs["coordinates"], attrs["rounding"]) == ("asymmetric", "floor")
    # With integral factors, half-pixel and asymmetric nearest pick the same elements.
    repeats = attrs["coordinates"] in ("half_pixel", "asymmetric") and _has_integral_factors(node)
    if not floors and not repeats:
        raise program.refuse(node, "PyTorch takes the element at or before the place")
    return _resampled(program, node, f"aten.upsample_nearest{len(_spatial_axes(node))}d")


_LINEAR_KERNELS = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
_CORNERS = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}


def _resize(program: FxProgram, node: Node) -> fx.Node:
    attrs, rank = node.attrs, len(_spatial_axes(node))
    corners = _CORNERS.get(str(attrs["coordinates"]))
    cubic = attrs["mode"] == "cubic" and rank == 2 and attrs["cubic_a"] == -0.75
    supported = cubic or (attrs["mode"] == "linear" and rank in _LINEAR_KERNELS)
    if not supported or attrs["antialias"] or corners is None:
        raise program.refuse(node, "PyTorch does not interpolate so")
    name = f"aten.upsample_{'bicubic2d' if cubic else _LINEAR_KERNELS[rank]}"
    return _resampled(program, node, name, corners)


def _triangle(program: FxProgram, node: Node) -> fx.Node:
    name = "aten.triu" if node.attrs["upper"] else "aten.tril"
    return program.call(name, program.operand(node, "x"), node.attrs["k"])


def _flip(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.flip", program.operand(node, "x"), int_list(node.attrs["axes"]))


def _cast(program: FxProgram, node: Node) -> fx.Node:
    target = kind(node.result.type.dtype, node.name)
    return program.call("aten.to", program.operand(node, "x"), target)


def _shape(program: FxProgram, node: Node) -> fx.Node:
    x, end = node.operands["x"], node.attrs.get("end")
    tensor, start = program.node_of(x), integer(node.attrs["start"])
    axes = range(x.type.rank)[start : None if end is None else integer(end)]
    sizes = [program.graph.call_method("size", (tensor, axis)) for axis in axes]
    parts = [program.call("aten.scalar_tensor", size, dtype=torch.int64) for size in sizes]
    return program.call("aten.stack", parts)


def _filled(program: FxProgram, node: Node) -> fx.Node:
    sizes = [program.size(dim, node) for dim in node.result.type.shape]
    value: Any = node.attrs["value"]
    fill = np.asarray(getattr(value, "data", value)).reshape(-1)[0].item()
    return program.call("aten.full", sizes, fill, dtype=kind(node.result.type.dtype, node.name))


OPS: dict[str, Handler] = {
    "reshape": _reshape,
    "flatten": _flatten,
    "transpose": _transpose,
    "concat": _concat,
    "pad": _pad,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "slice": _slice,
    "split": _split,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "embedding": _embedding,
    "expand": _expand,
    "tile": _tile,
    "depth_to_space": _depth_to_space,
    "resize_nearest": _resize_nearest,
    "resize": _resize,
    "trilu": _triangle,
    "flip": _flip,
    "cast": _cast,
    "shape": _shape,
    "constant_of_shape": _filled,
}
