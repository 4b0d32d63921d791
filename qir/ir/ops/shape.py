"""Ops that move elements and compute none."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.ops.granularity import permute_axes, reshape, unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

_MAX_AXES = 64


def _reshape(call: Call) -> tuple[TensorType, ...]:
    x = call.shape("x")
    kind = call.types["shape"]
    if kind.rank != 1 or kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"shape is {kind}, it takes one row of whole numbers")
    constant = call.constant("shape")
    if constant is None:
        count = kind.shape[0]
        if not isinstance(count, int) or count > _MAX_AXES:
            raise call.fail(f"shape is {kind}; its length must be known, and {_MAX_AXES} at most")
        return (TensorType((None,) * count, call.express("x")),)
    target: list[int] = constant.tolist()
    if min(target, default=0) < -1:
        raise call.fail(f"shape {target} has a negative size")
    shape: list[Dim] = []
    for i, size in enumerate(target):
        # ONNX's Reshape: 0 copies the size of x at that place, unless `allowzero`.
        if size == 0 and not call.bool_attr("allow_zero"):
            if i >= len(x):
                raise call.fail(f"shape {target} copies axis {i}, x has {len(x)}")
            shape.append(x[i])
        else:
            shape.append(size)
    if shape.count(-1) > 1:
        raise call.fail(f"shape {target} leaves two sizes open")
    if -1 in shape:
        at = shape.index(-1)
        other_sizes = dims.product(tuple(d for i, d in enumerate(shape) if i != at))
        if other_sizes == 0:
            raise call.fail(f"shape {target} leaves a size open next to one of 0")
        # The one open size takes what the others leave.
        shape[at] = dims.divide(dims.product(x), other_sizes)
    out = tuple(shape)
    if not dims.may_be_equal(dims.product(x), dims.product(out)):
        raise call.fail(f"{list(x)} does not hold as many elements as {list(out)}")
    return (TensorType(out, call.express("x")),)


def _flatten(call: Call) -> tuple[TensorType, ...]:
    x = call.shape("x")
    axis = call.int_attr("axis")
    if not -len(x) <= axis <= len(x):
        raise call.fail(f"axis = {axis}, but x has {len(x)} axes")
    axis = axis + len(x) if axis < 0 else axis
    shape = (dims.product(x[:axis]), dims.product(x[axis:]))
    return (TensorType(shape, call.express("x")),)


def _transpose(call: Call) -> tuple[TensorType, ...]:
    x, perm = call.shape("x"), call.int_list_attr("perm")
    if sorted(perm) != list(range(len(x))):
        raise call.fail(f"perm {perm} does not order the {len(x)} axes of x")
    return (TensorType(tuple(x[p] for p in perm), call.express("x")),)


def _concat(call: Call) -> tuple[TensorType, ...]:
    parts = call.variadic("xs")
    if not parts:
        raise call.fail("nothing to join")
    rank = parts[0].rank
    if any(p.rank != rank or p.express != parts[0].express for p in parts):
        raise call.fail("the parts differ in rank or type")
    axis = call.axis_attr("axis", rank)
    shape: list[Dim] = []
    for i in range(rank):
        sizes = [p.shape[i] for p in parts]
        if i == axis:
            total: Dim = 0
            for size in sizes:
                total = dims.add(total, size)
            shape.append(total)
            continue
        fixed = {s for s in sizes if isinstance(s, int)}
        if len(fixed) > 1:
            raise call.fail(f"the parts differ on axis {i}: {sizes}")
        # Sizes off the axis must agree: a known one decides for unknown ones.
        shape.append(fixed.pop() if fixed else sizes[0])
    return (TensorType(tuple(shape), parts[0].express),)


PADS = ("constant", "reflect", "edge", "wrap", "symmetric")
"""What elements are put next to: one value, or those that are there, as `numpy.pad` has them."""


def _pad(call: Call) -> tuple[TensorType, ...]:
    x, pads = call.shape("x"), call.int_list_attr("pads", 2 * len(call.shape("x")))
    if call.text_attr("mode") not in PADS:
        raise call.fail(f"mode {call.text_attr('mode')!r} is not one of {', '.join(PADS)}")
    shape = tuple(dims.add(d, pads[i] + pads[i + len(x)]) for i, d in enumerate(x))
    for i, size in enumerate(x):
        if isinstance(size, int):
            _check_pad(call, i, size, (pads[i], pads[i + len(x)]))
    return (TensorType(shape, call.express("x")),)


def _check_pad(call: Call, axis: int, size: int, pads: tuple[int, int]) -> None:
    # Negative pads crop, as in ONNX; the other modes need an element that is left to repeat.
    remaining = size + sum(min(p, 0) for p in pads)
    if remaining < 0:
        raise call.fail(f"pads {pads} take away more than axis {axis} has, {size}")
    mode, largest = call.text_attr("mode"), max(*pads, 0)
    if mode != "constant" and largest and not remaining:
        raise call.fail(f"axis {axis} of {remaining} is too short for {mode} pads {pads}")


def _move_transpose(call: Call, element: QuantType) -> QuantType | None:
    x, perm = call.shape("x"), call.int_list_attr("perm")
    return permute_axes(element, x, {a: i for i, a in enumerate(perm)}, len(x))


def _move_reshape(call: Call, element: QuantType) -> QuantType | None:
    return reshape(element, call.shape("x"), _reshape_rule(call)[0].shape)


def _reshape_rule(call: Call) -> tuple[TensorType, ...]:
    return _flatten(call) if call.op == "flatten" else _reshape(call)


def _move_concat(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, call.axis_attr("axis", call.variadic("xs")[0].rank))


def _move_pad(call: Call, element: QuantType) -> QuantType | None:
    rank, pads = len(call.shape("x")), call.int_list_attr("pads")
    return unless_along_axes(element, *(a for a in range(rank) if pads[a] or pads[a + rank]))


_KEEPS = Traits(same_params=("x",), value_preserving=True)

OPS = (
    OpSpec(
        "reshape",
        (Slot("x"), Slot("shape")),
        _reshape,
        (AttrSpec("allow_zero", "bool", False),),
        _KEEPS,
        move=_move_reshape,
        doc="the same elements in another shape; 0 copies a size, -1 takes what is left",
    ),
    OpSpec(
        "flatten",
        (Slot("x"),),
        _flatten,
        (AttrSpec("axis", "int", 1),),
        _KEEPS,
        move=_move_reshape,
        doc="two axes: what stands before `axis`, and the rest",
    ),
    OpSpec(
        "transpose",
        (Slot("x"),),
        _transpose,
        (AttrSpec("perm", "ints", required=True),),
        _KEEPS,
        move=_move_transpose,
        doc="axes in another order",
    ),
    OpSpec(
        "concat",
        (Slot("xs", variadic=True),),
        _concat,
        (AttrSpec("axis", "int", required=True),),
        Traits(same_params=("xs",), value_preserving=True),
        move=_move_concat,
        doc="tensors joined along one axis",
    ),
    OpSpec(
        "pad",
        (Slot("x"),),
        _pad,
        (
            AttrSpec("pads", "ints", required=True),
            AttrSpec("mode", "text", "constant"),
            AttrSpec("value", "float", 0.0),
        ),
        _KEEPS,
        move=_move_pad,
        doc="elements added around; pads is all fronts, then all backs; mode is constant, reflect, "
        "edge, wrap or symmetric, as NumPy's pad has them",
    ),
)
