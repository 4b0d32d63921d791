"""Ops that pick, repeat and rearrange elements and compute none."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import broadcast, keep_element
from qir.ir.ops.granularity import permute_axes, slice_axes, unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

_MAX_AXES = 64


def _result_type(call: Call, shape: Shape) -> tuple[TensorType, ...]:
    return (TensorType(shape, call.express("x")),)


def _squeezed_axes(call: Call) -> tuple[int, ...]:
    """Returns the axes that squeeze takes out."""
    x = call.shape("x")
    axes = call.axes_attr("axes", len(x))
    if axes:
        return axes
    if dims.known_shape(x) is None:
        raise call.fail(f"x has {list(x)}; which of its axes are 1 must be known")
    return tuple(i for i, d in enumerate(x) if d == 1)


def _squeeze(call: Call) -> tuple[TensorType, ...]:
    x, removed = call.shape("x"), _squeezed_axes(call)
    for axis in removed:
        if not dims.may_be_equal(x[axis], 1):
            raise call.fail(f"axis {axis} of x has {x[axis]}, only 1 can be taken out")
    return _result_type(call, tuple(d for i, d in enumerate(x) if i not in removed))


def _inserted_axes(call: Call) -> tuple[int, ...]:
    """Returns the axes of the result that unsqueeze puts in."""
    return call.axes_attr("axes", len(call.shape("x")) + len(call.int_list_attr("axes")))


def _unsqueeze(call: Call) -> tuple[TensorType, ...]:
    new_axes, sizes_of_x = set(_inserted_axes(call)), iter(call.shape("x"))
    rank = len(call.shape("x")) + len(new_axes)
    return _result_type(call, tuple(1 if i in new_axes else next(sizes_of_x) for i in range(rank)))


def _slice(call: Call) -> tuple[TensorType, ...]:
    x = call.shape("x")
    axes = call.axes_attr("axes", len(x))
    starts, ends, steps = (call.int_list_attr(n, len(axes)) for n in ("starts", "ends", "steps"))
    if 0 in steps:
        raise call.fail(f"steps {steps}: one is 0")
    shape = list(x)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape[axis] = _slice_size(x[axis], start, end, step)
    return _result_type(call, tuple(shape))


def _slice_at(call: Call) -> tuple[TensorType, ...]:
    x = call.shape("x")
    axes = call.axes_attr("axes", len(x))
    steps = call.int_list_attr("steps") or (1,) * len(axes)
    if len(steps) != len(axes) or 0 in steps:
        raise call.fail(f"steps {steps} for {len(axes)} axes; one an axis, and none of them 0")
    for slot in ("starts", "ends"):
        kind = call.types[slot]
        fits = kind.rank == 1 and dims.may_be_equal(kind.shape[0], len(axes))
        if not fits or kind.quant or not kind.dtype.is_integer:
            raise call.fail(f"{slot} is {kind}, it takes a row of {len(axes)} whole numbers")
    shape = list(x)
    starts, ends = call.constant("starts"), call.constant("ends")
    for i, axis in enumerate(axes):
        if starts is None or ends is None:
            shape[axis] = None
        else:
            shape[axis] = _slice_size(x[axis], int(starts[i]), int(ends[i]), steps[i])
    return _result_type(call, tuple(shape))


def _slice_size(size: Dim, start: int, end: int, step: int) -> Dim:
    """Returns how many elements a slice leaves; for an unknown size only where it leaves all of
    them."""
    if isinstance(size, int):
        return len(slice_indices(start, end, step, size))
    # Exporters write "to the end" as 2**31 - 1 or 2**63 - 1, and "before the start" as the
    # negative.
    takes_all = start == 0 and end >= 2**31 - 1 and step == 1
    backwards = start == -1 and end <= -(2**31) + 1 and step == -1
    return size if takes_all or backwards else None


def slice_indices(start: int, end: int, step: int, size: int) -> range:
    """Returns the places that a slice of an axis takes, its bounds kept inside as ONNX keeps
    them."""
    # Backwards the start is at most the last element, and the end may be before the first: -1.
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, stop = (v + size if v < 0 else v for v in (start, end))
    return range(min(max(first, 0), high), min(max(stop, low), high), step)


def _split(call: Call) -> tuple[TensorType, ...]:
    x, sizes = call.shape("x"), call.int_list_attr("sizes")
    axis = call.axis_attr("axis", len(x))
    if not sizes or min(sizes) < 0 or not dims.may_be_equal(x[axis], sum(sizes)):
        raise call.fail(f"sizes {sizes} do not make up axis {axis}, which has {x[axis]}")
    parts = (tuple(s if i == axis else d for i, d in enumerate(x)) for s in sizes)
    return tuple(TensorType(p, call.express("x")) for p in parts)


def _gather(call: Call) -> tuple[TensorType, ...]:
    x, axis = call.shape("x"), call.axis_attr("axis", len(call.shape("x")))
    kind = call.types["indices"]
    if kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"indices are {kind}, they must be whole numbers")
    return _result_type(call, (*x[:axis], *kind.shape, *x[axis + 1 :]))


def _expand(call: Call) -> tuple[TensorType, ...]:
    x, kind, constant = call.shape("x"), call.types["shape"], call.constant("shape")
    if kind.rank != 1 or kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"shape is {kind}, it takes one row of whole numbers")
    if constant is not None:
        target: list[int] = constant.tolist()
        if min(target, default=0) < 0:
            raise call.fail(f"shape {target} has a negative size")
        return _result_type(call, broadcast(call, x, tuple(target)))
    count = kind.shape[0]
    if not isinstance(count, int) or count > _MAX_AXES:
        raise call.fail(f"shape is {kind}; its length must be known, and {_MAX_AXES} at most")
    # A size over 1 survives a broadcast; a 1 or an unknown size may grow.
    known = tuple(d if isinstance(d, int) and d > 1 else None for d in x)
    return _result_type(call, (*(None,) * (count - len(x)), *known))


def _tile(call: Call) -> tuple[TensorType, ...]:
    x = call.shape("x")
    repeats = call.int_list_attr("repeats", len(x))
    if min(repeats, default=0) < 0:
        raise call.fail(f"repeats {repeats}: one is negative")
    return _result_type(call, tuple(dims.multiply(d, n) for d, n in zip(x, repeats, strict=True)))


def _block_axes(call: Call) -> tuple[int, int, int, int]:
    """Returns the block's side, and the axes of channels, height and width."""
    if len(call.shape("x")) != 4:
        raise call.fail(f"x has {len(call.shape('x'))} axes, it takes 4")
    side = call.int_attr("block")
    if side < 1:
        raise call.fail(f"block = {side}, it must be 1 or more")
    if call.text_attr("layout") not in ("NCHW", "NHWC"):
        raise call.fail(f"layout {call.text_attr('layout')!r} is neither NCHW nor NHWC")
    return (side, 1, 2, 3) if call.text_attr("layout") == "NCHW" else (side, 3, 1, 2)


def _to_space(call: Call) -> tuple[TensorType, ...]:
    if call.text_attr("mode") not in ("DCR", "CRD"):
        raise call.fail(f"mode {call.text_attr('mode')!r} is neither DCR nor CRD")
    side, c, h, w = _block_axes(call)
    shape = list(call.shape("x"))
    channels = shape[c]
    if isinstance(channels, int) and channels % side**2:
        raise call.fail(f"{channels} channels do not split into blocks of {side} x {side}")
    shape[c] = dims.divide(channels, side**2)
    shape[h], shape[w] = dims.multiply(shape[h], side), dims.multiply(shape[w], side)
    return _result_type(call, tuple(shape))


def _to_depth(call: Call) -> tuple[TensorType, ...]:
    side, c, h, w = _block_axes(call)
    shape = list(call.shape("x"))
    for axis in (h, w):
        size = shape[axis]
        if isinstance(size, int) and size % side:
            raise call.fail(f"axis {axis} of {size} does not split into blocks of {side}")
        shape[axis] = dims.divide(size, side)
    shape[c] = dims.multiply(shape[c], side**2)
    return _result_type(call, tuple(shape))


# -- how the granularity of a quantized type moves -----------------------------------------------


def _move_squeeze(call: Call, element: QuantType) -> QuantType | None:
    x, removed = call.shape("x"), _squeezed_axes(call)
    remaining = [i for i in range(len(x)) if i not in removed]
    return permute_axes(element, x, {a: i for i, a in enumerate(remaining)}, len(remaining))


def _move_unsqueeze(call: Call, element: QuantType) -> QuantType | None:
    x, new_axes = call.shape("x"), _inserted_axes(call)
    rank = len(x) + len(new_axes)
    old_axes = [i for i in range(rank) if i not in new_axes]
    return permute_axes(element, x, dict(enumerate(old_axes)), rank)


def _move_slice(call: Call, element: QuantType) -> QuantType | None:
    x = call.shape("x")
    lists = zip(*(call.int_list_attr(n) for n in ("starts", "ends", "steps")), strict=True)
    parts = {}
    for axis, (start, end, step) in zip(call.axes_attr("axes", len(x)), lists, strict=True):
        size = x[axis]
        at = slice_indices(start, end, step, size) if isinstance(size, int) else range(0)
        parts[axis] = (at.start, at.stop, step)
    return slice_axes(element, x, parts)


def _move_split(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, call.axis_attr("axis", len(call.shape("x"))))


def _move_slice_at(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, *call.axes_attr("axes", len(call.shape("x"))))


def _move_gather(call: Call, element: QuantType) -> QuantType | None:
    x, axis = call.shape("x"), call.axis_attr("axis", len(call.shape("x")))
    added_axes = call.types["indices"].rank - 1
    new_axes = {a: a if a < axis else a + added_axes for a in range(len(x)) if a != axis}
    return permute_axes(element, x, new_axes, len(x) + added_axes)


def _move_expand(call: Call, element: QuantType) -> QuantType | None:
    x, shape = call.shape("x"), _expand(call)[0].shape
    added_axes = len(shape) - len(x)
    # An axis of 1 that is broadcast repeats one scale, which no per-axis type says.
    new_axes = {
        a: a + added_axes for a, d in enumerate(x) if d not in (1, None) and shape[a + added_axes]
    }
    return permute_axes(element, x, new_axes, len(shape))


def _move_tile(call: Call, element: QuantType) -> QuantType | None:
    repeats = call.int_list_attr("repeats")
    return unless_along_axes(element, *(i for i, n in enumerate(repeats) if n != 1))


def _move_block(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, *_block_axes(call)[1:])


def _unchanged(call: Call) -> tuple[TensorType, ...]:
    return _result_type(call, call.shape("x"))


def _dropout(call: Call) -> tuple[TensorType, ...]:
    ratio = call.attrs["ratio"]
    if not isinstance(ratio, float) or not 0 <= ratio <= 1:
        raise call.fail(f"ratio = {ratio!r}, it must be in 0..1")
    return _unchanged(call)


RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze")
"""Ops that keep all elements in their order."""
_KEEPS = Traits(same_params=("x",), value_preserving=True)
_X = (Slot("x"),)
_AXES = AttrSpec("axes", "ints", required=True)
_BLOCK = (AttrSpec("block", "int", required=True), AttrSpec("layout", "text", "NCHW"))

OPS = (
    OpSpec("identity", _X, _unchanged, (), _KEEPS, keep_element, doc="x"),
    OpSpec(
        "dropout",
        _X,
        _dropout,
        (AttrSpec("ratio", "float", 0.5),),
        _KEEPS,
        keep_element,
        doc="x; training would put 0 for that share of its elements",
    ),
    OpSpec(
        "squeeze",
        _X,
        _squeeze,
        (AttrSpec("axes", "ints", ()),),
        _KEEPS,
        _move_squeeze,
        doc="axes of 1 taken out; all of them if none is named",
    ),
    OpSpec(
        "unsqueeze",
        _X,
        _unsqueeze,
        (_AXES,),
        _KEEPS,
        _move_unsqueeze,
        doc="axes of 1 put in; `axes` are counted in the result",
    ),
    OpSpec(
        "slice",
        _X,
        _slice,
        tuple(AttrSpec(n, "ints", required=True) for n in ("starts", "ends", "axes", "steps")),
        _KEEPS,
        _move_slice,
        doc="every `step`-th element from start to before end, bounds kept inside the axis",
    ),
    OpSpec(
        "slice_at",
        (Slot("x"), Slot("starts"), Slot("ends")),
        _slice_at,
        (_AXES, AttrSpec("steps", "ints", ())),
        _KEEPS,
        _move_slice_at,
        doc="slice with bounds that are computed; every element unless there are steps",
    ),
    OpSpec(
        "split",
        _X,
        _split,
        (AttrSpec("sizes", "ints", required=True), AttrSpec("axis", "int", 0)),
        _KEEPS,
        _move_split,
        results=None,
        doc="parts of these sizes along one axis, one result each",
    ),
    OpSpec(
        "gather",
        (Slot("x"), Slot("indices")),
        _gather,
        (AttrSpec("axis", "int", 0),),
        _KEEPS,
        _move_gather,
        doc="the entries of one axis that the indices name; negative ones count from the end",
    ),
    OpSpec(
        "expand",
        (Slot("x"), Slot("shape")),
        _expand,
        (),
        _KEEPS,
        _move_expand,
        doc="x broadcast against a shape",
    ),
    OpSpec(
        "tile",
        _X,
        _tile,
        (AttrSpec("repeats", "ints", required=True),),
        _KEEPS,
        _move_tile,
        doc="x repeated along each axis",
    ),
    OpSpec(
        "depth_to_space",
        _X,
        _to_space,
        (*_BLOCK, AttrSpec("mode", "text", "DCR")),
        _KEEPS,
        _move_block,
        doc="channels to blocks of pixels; the block stands before the channel (DCR) or after it",
    ),
    OpSpec(
        "space_to_depth",
        _X,
        _to_depth,
        _BLOCK,
        _KEEPS,
        _move_block,
        doc="blocks of pixels to channels, the place in the block before the channel",
    ),
)
