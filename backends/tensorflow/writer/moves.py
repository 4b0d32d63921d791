"""Ops that move elements, and sizes, as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.ir.node import Node, Value

from .nodes import GraphNodes, refusal, type_attr, type_name
from .wire import TypeAttr

Write = Callable[[GraphNodes, Node], "str | Sequence[str]"]


def transposed(w: GraphNodes, x: str, perm: Sequence[int], value: Value, like: str) -> str:
    """Adds a transpose."""
    return w.add(
        "Transpose",
        (x, w.int_constant(list(perm))),
        like,
        T=type_attr(value),
        Tperm=TypeAttr("int32"),
    )


def reshaped(w: GraphNodes, n: Node, x: str, value: Value, result: Value) -> str:
    """Adds a reshape to the sizes of a result, of which one may be open."""
    sizes = [size if isinstance(size, int) else -1 for size in result.type.shape]
    if sizes.count(-1) > 1:
        return ""
    return w.add(
        "Reshape", (x, w.int_constant(sizes)), n.name, T=type_attr(value), Tshape=TypeAttr("int32")
    )


def reshape(w: GraphNodes, n: Node) -> str:
    """Adds a reshape, to sizes that are computed if more than one is open."""
    x = n.operands["x"]
    if made := reshaped(w, n, w.tensor(x), x, n.result):
        return made
    shape = n.operands.get("shape")
    if shape is not None and shape.constant is None:
        return w.add(
            "Reshape",
            (w.tensor(x), w.tensor(shape)),
            n.name,
            T=type_attr(x),
            Tshape=type_attr(shape),
        )
    if shape is not None and shape.constant is not None and not n.attrs.get("allow_zero"):
        sizes = [int(size) for size in np.asarray(shape.constant.data)]
    elif n.op == "flatten" and n.attrs["axis"] == 1:
        sizes = [0, -1]
    else:
        raise refusal(n, "more than one size of its result is open; state the sizes")
    # 0 in ONNX's shape copies the size of the operand's axis.
    inputs = (w.tensor(x), _sizes_with_copies(w, n, x, sizes))
    return w.add("Reshape", inputs, n.name, T=type_attr(x), Tshape=TypeAttr("int32"))


def _sizes_with_copies(w: GraphNodes, n: Node, x: Value, sizes: Sequence[int]) -> str:
    """Returns computed sizes: 0 is that of the operand's axis in its place."""
    own_shape = w.add("Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=TypeAttr("int32"))
    parts = [
        one_size(w, n, own_shape, i) if size == 0 else w.constant(np.asarray(size, np.int32))
        for i, size in enumerate(sizes)
    ]
    return w.add("Pack", parts, n.name, N=len(parts), T=TypeAttr("int32"), axis=0)


def one_size(w: GraphNodes, n: Node, sizes: str, axis: int) -> str:
    """Returns the size of one axis, of a computed row of all."""
    inputs = (sizes, *(w.int_constant([each]) for each in (axis, axis + 1, 1)))
    types = {"T": TypeAttr("int32"), "Index": TypeAttr("int32")}
    return w.add("StridedSlice", inputs, n.name, **types, shrink_axis_mask=1)


def int_list(n: Node, name: str) -> list[int]:
    """Returns an attribute that is a row of whole numbers."""
    value = n.attrs[name]
    assert isinstance(value, tuple)
    return [int(each) for each in value]  # type: ignore[arg-type]


def int_attr(n: Node, name: str) -> int:
    """Returns an attribute that is a whole number."""
    value = n.attrs[name]
    assert isinstance(value, int)
    return value


def _transpose(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    return transposed(w, w.tensor(x), int_list(n, "perm"), x, n.name)


def _concat(w: GraphNodes, n: Node) -> str:
    parts = list(n.operands.values())
    if len(parts) == 1:
        return w.add("Identity", (w.tensor(parts[0]),), n.name, T=type_attr(n.result))
    axis = w.constant(np.asarray(int_attr(n, "axis"), np.int32))
    inputs = (*map(w.tensor, parts), axis)
    return w.add(
        "ConcatV2", inputs, n.name, N=len(parts), T=type_attr(n.result), Tidx=TypeAttr("int32")
    )


def _pad(w: GraphNodes, n: Node) -> str:
    x, pads, mode = n.operands["x"], int_list(n, "pads"), n.attrs["mode"]
    rank = x.type.rank
    paddings = w.constant(np.asarray([pads[:rank], pads[rank:]], np.int32).T.copy())
    if min(pads) < 0:
        raise refusal(n, "padding below zero is not written; slice instead")
    if mode == "constant":
        value = w.constant(
            np.asarray(n.attrs["value"], x.type.dtype.carrier), type_name(x.type.element, x)
        )
        return w.add("PadV2", (w.tensor(x), paddings, value), n.name, T=type_attr(x))
    if mode not in ("reflect", "symmetric"):
        raise refusal(n, f"TensorFlow has no padding {mode!r}")
    return w.add(
        "MirrorPad", (w.tensor(x), paddings), n.name, T=type_attr(x), mode=str(mode).upper()
    )


def _squeeze(w: GraphNodes, n: Node) -> str:
    x, rank = n.operands["x"], n.operands["x"].type.rank
    axes = [axis % rank for axis in int_list(n, "axes")]
    axes = axes or [i for i, size in enumerate(x.type.shape) if size == 1]
    return w.add("Squeeze", (w.tensor(x),), n.name, T=type_attr(x), squeeze_dims=tuple(axes))


def _unsqueeze(w: GraphNodes, n: Node) -> str:
    x, expanded = n.operands["x"], w.tensor(n.operands["x"])
    for axis in sorted(axis % n.result.type.rank for axis in int_list(n, "axes")):
        inputs = (expanded, w.constant(np.asarray(axis, np.int32)))
        expanded = w.add("ExpandDims", inputs, n.name, T=type_attr(x), Tdim=TypeAttr("int32"))
    return expanded


_MAX_INDEX = 2**31 - 1


def _slice(w: GraphNodes, n: Node) -> str:
    x, rank = n.operands["x"], n.operands["x"].type.rank
    starts, ends = int_list(n, "starts"), int_list(n, "ends")
    axes = int_list(n, "axes") if n.attrs["axes"] is not None else list(range(len(starts)))
    steps = int_list(n, "steps") if n.attrs["steps"] else [1] * len(starts)
    # begin, end and strides of all axes: those that are not sliced have begin and end masked.
    bounds = [[0] * rank, [0] * rank, [1] * rank]
    open_start = open_end = (1 << rank) - 1
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        position = axis % rank
        size = x.type.shape[position]
        bounds[0][position], bounds[1][position], bounds[2][position] = (
            _clamped_index(start),
            _clamped_index(end),
            step,
        )
        open_start &= ~(1 << position)
        # A negative step past the first element needs the end mask: -1 would mean the last element.
        ends_before_first = isinstance(size, int) and step < 0 and end < -size
        if not ends_before_first:
            open_end &= ~(1 << position)
    inputs = (w.tensor(x), *(w.int_constant(bound_list) for bound_list in bounds))
    masks = {"begin_mask": open_start, "end_mask": open_end}
    return w.add("StridedSlice", inputs, n.name, T=type_attr(x), Index=TypeAttr("int32"), **masks)


def _clamped_index(number: int) -> int:
    return max(min(number, _MAX_INDEX), -_MAX_INDEX)


def _split(w: GraphNodes, n: Node) -> list[str]:
    x, sizes = n.operands["x"], int_list(n, "sizes")
    axis = w.constant(np.asarray(int_attr(n, "axis"), np.int32))
    inputs = (w.tensor(x), w.int_constant(sizes), axis)
    parts = w.add(
        "SplitV", inputs, n.name, T=type_attr(x), Tlen=TypeAttr("int32"), num_split=len(sizes)
    )
    return [f"{parts}:{i}" if i else parts for i in range(len(sizes))]


def _expand(w: GraphNodes, n: Node) -> str:
    x, shape = n.operands["x"], n.operands["shape"]
    if all(isinstance(size, int) for size in n.result.type.shape):
        target_shape = w.int_constant(
            [size for size in n.result.type.shape if isinstance(size, int)]
        )
        return w.add(
            "BroadcastTo",
            (w.tensor(x), target_shape),
            n.name,
            T=type_attr(x),
            Tidx=TypeAttr("int32"),
        )
    own_shape = w.add("Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=type_attr(shape))
    target_shape = w.add("BroadcastArgs", (own_shape, w.tensor(shape)), n.name, T=type_attr(shape))
    return w.add(
        "BroadcastTo", (w.tensor(x), target_shape), n.name, T=type_attr(x), Tidx=type_attr(shape)
    )


def _tile(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    inputs = (w.tensor(x), w.int_constant(int_list(n, "repeats")))
    return w.add("Tile", inputs, n.name, T=type_attr(x), Tmultiples=TypeAttr("int32"))


def _flip(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    inputs = (w.tensor(x), w.int_constant([axis % x.type.rank for axis in int_list(n, "axes")]))
    return w.add("ReverseV2", inputs, n.name, T=type_attr(x), Tidx=TypeAttr("int32"))


def _shape(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    shape_tensor = w.add(
        "Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=type_attr(n.result)
    )
    # Some of the sizes are a slice of all.
    start, end = n.attrs["start"], n.attrs["end"]
    if not start and end is None:
        return shape_tensor
    rank = x.type.rank
    first = int(start) if isinstance(start, int) else 0
    stop = int(end) if isinstance(end, int) else rank
    slice_inputs = [w.int_constant([each]) for each in (first, stop, 1)]
    return w.add(
        "StridedSlice",
        (shape_tensor, *slice_inputs),
        n.name,
        T=type_attr(n.result),
        Index=TypeAttr("int32"),
    )


def _size(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    return w.add("Size", (w.tensor(x),), n.name, T=type_attr(x), out_type=type_attr(n.result))


def _fill(w: GraphNodes, n: Node) -> str:
    shape, value = n.operands["shape"], n.attrs["value"]
    data = np.asarray(getattr(value, "data", 0)).reshape(-1)[:1].astype(n.result.type.dtype.carrier)
    filled = w.constant(data.reshape(()), type_name(n.result.type.element, n.result))
    inputs = (w.tensor(shape), filled)
    return w.add("Fill", inputs, n.name, T=type_attr(n.result), index_type=type_attr(shape))


def _einsum(w: GraphNodes, n: Node) -> str:
    parts = tuple(map(w.tensor, n.operands.values()))
    equation = str(n.attrs["equation"]).replace(" ", "")
    return w.add("Einsum", parts, n.name, N=len(parts), T=type_attr(n.result), equation=equation)


def _range(w: GraphNodes, n: Node) -> str:
    inputs = tuple(w.tensor(n.operands[slot]) for slot in ("start", "limit", "step"))
    return w.add("Range", inputs, n.name, Tidx=type_attr(n.result))


def _pixel_blocks(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x = n.operands["x"]
        if n.attrs.get("mode", "DCR") != "DCR":
            raise refusal(n, "TensorFlow's DepthToSpace has mode DCR")
        needs_nhwc = n.attrs["layout"] != "NHWC"
        tensor = w.tensor(x)
        if needs_nhwc:
            tensor = transposed(w, tensor, (0, 2, 3, 1), x, n.name)
        tensor = w.add(op, (tensor,), n.name, T=type_attr(x), block_size=int_attr(n, "block"))
        return transposed(w, tensor, (0, 3, 1, 2), x, n.name) if needs_nhwc else tensor

    return write


_NEAREST = {
    ("asymmetric", "floor"): {"half_pixel": False},
    ("tf_half_pixel_for_nn", "floor"): {"half_pixel": True},
    ("half_pixel", "round_prefer_ceil"): {"half_pixel": True},
    ("align_corners", "round_prefer_ceil"): {"half_pixel": False, "corners": True},
}
"""How TensorFlow states the places of the nearest elements, by coordinates and rounding."""


def _nearest(w: GraphNodes, n: Node) -> str:
    how = str(n.attrs["coordinates"]), str(n.attrs["rounding"])
    if how not in _NEAREST and not _repeats(n, *how):
        raise refusal(n, "TensorFlow rounds places otherwise")
    return _resized(w, n, "ResizeNearestNeighbor", **_NEAREST.get(how, {"half_pixel": False}))


def _repeats(n: Node, coordinates: str, rounding: str) -> bool:
    """Returns whether each element is repeated a whole number of times: as often as places
    rounded down say."""
    sizes = [(a, b) for a, b in zip(n.operands["x"].type.shape, n.result.type.shape, strict=True)
             if a != b]  # fmt: skip
    known = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int) and a]
    if len(known) < len(sizes) or any(b % a for a, b in known):
        return False
    if coordinates == "half_pixel":  # no place is halfway between two elements
        return rounding.startswith("round")
    twice = all(b == 2 * a for a, b in known)
    return coordinates == "asymmetric" and rounding == "round_prefer_floor" and twice


def _linear(w: GraphNodes, n: Node) -> str:
    attrs = n.attrs
    if attrs["mode"] != "linear" or attrs["antialias"] or attrs["policy"] != "stretch":
        raise refusal(n, "only linear interpolation without antialiasing is written")
    half_pixel = attrs["coordinates"] == "half_pixel"
    corners = attrs["coordinates"] == "align_corners"
    if not half_pixel and not corners and attrs["coordinates"] != "asymmetric":
        raise refusal(n, f"TensorFlow has no coordinates {attrs['coordinates']!r}")
    return _resized(w, n, "ResizeBilinear", half_pixel=half_pixel, corners=corners)


def _resized(w: GraphNodes, n: Node, op: str, *, half_pixel: bool, corners: bool = False) -> str:
    """Returns an image of four axes of which two that stand together are resized."""
    x, result = n.operands["x"], n.result
    changed = [
        i for i, (a, b) in enumerate(zip(x.type.shape, result.type.shape, strict=True)) if a != b
    ]
    is_nhwc = set(changed) <= {1, 2}
    if x.type.rank != 4 or not (is_nhwc or set(changed) <= {2, 3}):
        raise refusal(n, "TensorFlow resizes height and width of images of four axes")
    new_sizes = result.type.shape[1:3] if is_nhwc else result.type.shape[2:4]
    sizes = [size for size in new_sizes if isinstance(size, int)]
    if len(sizes) < 2:
        raise refusal(n, "the size of its result is open; state the size of the input")
    image = w.tensor(x) if is_nhwc else transposed(w, w.tensor(x), (0, 2, 3, 1), x, n.name)
    inputs = (image, w.int_constant(sizes))
    attrs = {"align_corners": corners, "half_pixel_centers": half_pixel}
    image = w.add(op, inputs, n.name, T=type_attr(x), **attrs)
    return image if is_nhwc else transposed(w, image, (0, 3, 1, 2), x, n.name)


OPS: Mapping[str, Write] = {
    "reshape": reshape,
    "flatten": reshape,
    "transpose": _transpose,
    "concat": _concat,
    "pad": _pad,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "slice": _slice,
    "split": _split,
    "expand": _expand,
    "tile": _tile,
    "flip": _flip,
    "shape": _shape,
    "size": _size,
    "range": _range,
    "constant_of_shape": _fill,
    "einsum": _einsum,
    "depth_to_space": _pixel_blocks("DepthToSpace"),
    "space_to_depth": _pixel_blocks("SpaceToDepth"),
    "resize_nearest": _nearest,
    "resize": _linear,
}
