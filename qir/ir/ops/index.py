"""Ops that pick and place elements by indices, and ops about which elements there are."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.dtype import BOOL, I64, STRING, DType
from qir.ir.ops.elementwise import (
    keep_element,
    require_floats,
    require_numbers,
    require_same_express,
    unary,
)
from qir.ir.ops.granularity import unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

REDUCTIONS = ("none", "add", "mul", "min", "max")


def require_integers(call: Call, slot: str) -> TensorType:
    """Returns the type of an operand of indices; raises TypeRuleError unless they are plain
    integers."""
    kind = call.types[slot]
    if kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"{slot} are {kind}, they must be whole numbers")
    return kind


def _gather_elements(call: Call) -> tuple[TensorType, ...]:
    x, axis = call.shape("x"), call.axis_attr("axis", len(call.shape("x")))
    shape = require_integers(call, "indices").shape
    _require_fits_in_x(call, "indices", axis)
    if len(shape) != len(x):
        raise call.fail(f"indices have {len(shape)} axes, x has {len(x)}")
    return (TensorType(shape, call.express("x")),)


def _require_fits_in_x(call: Call, slot: str, axis: int) -> None:
    """Raises TypeRuleError where an operand is longer than x along another axis than this."""
    x, shape = call.shape("x"), call.shape(slot)
    for i, (size, x_size) in enumerate(zip(shape, x, strict=False)):
        if i != axis and isinstance(size, int) and isinstance(x_size, int) and size > x_size:
            raise call.fail(f"{slot} {list(shape)} are longer than x {list(x)} on axis {i}")


def _scatter_elements(call: Call) -> tuple[TensorType, ...]:
    _gather_elements(call)
    _updates(call)
    indices, updates = call.shape("indices"), call.shape("updates")
    if len(indices) != len(updates) or not all(map(dims.may_be_equal, indices, updates)):
        raise call.fail(f"indices have {list(indices)}, updates {list(updates)}")
    return unary(call)


def _updates(call: Call) -> None:
    require_same_express(call, "x", "updates")
    if call.text_attr("reduction") not in REDUCTIONS:
        raise call.fail(
            f"reduction {call.text_attr('reduction')!r} is none of {', '.join(REDUCTIONS)}"
        )
    if call.text_attr("reduction") != "none":
        require_numbers(call)


def _tuple_length(call: Call, batch: int) -> int:
    """Returns how many axes of x one index of the last axis of indices names."""
    kind, rank = require_integers(call, "indices"), len(call.shape("x"))
    length = kind.shape[-1] if kind.rank else 0
    if not kind.rank or not isinstance(length, int):
        raise call.fail(f"indices are {kind}; the length of their last axis must be known")
    if not 0 <= batch <= min(kind.rank - 1, rank - 1) or not 1 <= length <= rank - batch:
        raise call.fail(f"indices {list(kind.shape)}, batch {batch}: x has {rank} axes")
    return length


def _gather_nd(call: Call) -> tuple[TensorType, ...]:
    batch, x = call.int_attr("batch"), call.shape("x")
    length, shape = _tuple_length(call, batch), call.shape("indices")
    if not all(map(dims.may_be_equal, x[:batch], shape[:batch])):
        raise call.fail(f"x {list(x)} and indices {list(shape)} differ on the first {batch} axes")
    return (TensorType((*shape[:-1], *x[batch + length :]), call.express("x")),)


def _scatter_nd(call: Call) -> tuple[TensorType, ...]:
    _updates(call)
    length, x = _tuple_length(call, 0), call.shape("x")
    expected = (*call.shape("indices")[:-1], *x[length:])
    actual = call.shape("updates")
    if len(actual) != len(expected) or not all(map(dims.may_be_equal, actual, expected)):
        raise call.fail(f"updates have {list(actual)}, they must have {list(expected)}")
    return unary(call)


def _one_hot(call: Call) -> tuple[TensorType, ...]:
    shape, values = call.shape("indices"), call.types["values"]
    require_numbers(call, "indices")
    depth, axis = call.int_attr("depth"), call.axis_attr("axis", len(shape) + 1)
    if values.rank != 1 or not dims.may_be_equal(values.shape[0], 2):
        raise call.fail(f"values are {values}, they must be two: off and on")
    if depth < 1:
        raise call.fail(f"depth = {depth}, it must be 1 or more")
    return (TensorType((*shape[:axis], depth, *shape[axis:]), values.express),)


def _nonzero(call: Call) -> tuple[TensorType, ...]:
    # [rank, number of elements that are not 0]: the second size depends on the values.
    return (TensorType((len(call.shape("x")), None), I64),)


def _unique(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    x, count = call.shape("x"), None
    shape: tuple[Dim, ...] = (count,)
    inverse = dims.product(x)
    if call.attrs["axis"] is not None:
        axis = call.axis_attr("axis", len(x))
        shape, inverse = (*x[:axis], count, *x[axis + 1 :]), x[axis]
    # Results in the order of ONNX's Unique: values, first indices, inverse, counts.
    places = TensorType((count,), I64)
    return TensorType(shape, call.express("x")), places, TensorType((inverse,), I64), places


def _matrix(call: Call) -> tuple[TensorType, ...]:
    if len(call.shape("x")) < 2:
        raise call.fail(f"x has {len(call.shape('x'))} axes, it takes 2 or more")
    return unary(call)


def _eye(call: Call) -> tuple[TensorType, ...]:
    kind, x = call.attrs["dtype"], call.shape("x")
    if len(x) != 2:
        raise call.fail(f"x has {len(x)} axes, it takes 2")
    if (kind or call.express("x")) == STRING:
        raise call.fail("there is no 1 among strings")
    return (TensorType(x, kind if isinstance(kind, DType) else call.express("x")),)


def _flip(call: Call) -> tuple[TensorType, ...]:
    call.axes_attr("axes", len(call.shape("x")))
    return unary(call)


def _reverse(call: Call) -> tuple[TensorType, ...]:
    x, lengths = call.shape("x"), require_integers(call, "lengths").shape
    batch, time = call.axis_attr("batch", len(x)), call.axis_attr("time", len(x))
    if batch == time:
        raise call.fail(f"batch and time are both axis {time}")
    if len(lengths) != 1 or not dims.may_be_equal(lengths[0], x[batch]):
        raise call.fail(f"lengths {list(lengths)}, but axis {batch} of x has {x[batch]}")
    return unary(call)


def _compress(call: Call) -> tuple[TensorType, ...]:
    kind, x = call.types["condition"], call.shape("x")
    if kind.element != BOOL or kind.rank != 1:
        raise call.fail(f"condition is {kind}, it takes one row of bool")
    element_count = dims.product(x)
    axis = None if call.attrs["axis"] is None else call.axis_attr("axis", len(x))
    size = element_count if axis is None else x[axis]
    if isinstance(kind.shape[0], int) and isinstance(size, int) and kind.shape[0] > size:
        raise call.fail(f"condition has {kind.shape[0]}, there are {size} to choose from")
    shape = (None,) if axis is None else (*x[:axis], None, *x[axis + 1 :])
    return (TensorType(shape, call.express("x")),)


def _hardmax(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    call.axis_attr("axis", len(call.shape("x")))
    return unary(call)


def _move_elements(call: Call, element: QuantType) -> QuantType | None:
    # Each index picks along one axis, but the result may be shorter than x along the others.
    return element if element.granularity is None else None


def _move_flip(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, *call.axes_attr("axes", len(call.shape("x"))))


def _move_reverse(call: Call, element: QuantType) -> QuantType | None:
    return unless_along_axes(element, call.axis_attr("time", len(call.shape("x"))))


def _move_compress(call: Call, element: QuantType) -> QuantType | None:
    if call.attrs["axis"] is None:
        return element if element.granularity is None else None
    return unless_along_axes(element, call.axis_attr("axis", len(call.shape("x"))))


_KEEPS = Traits(same_params=("x",), value_preserving=True)
_X = (Slot("x"),)
_PICKED = (Slot("x"), Slot("indices"))
_PLACED = (Slot("x"), Slot("indices"), Slot("updates"))
_REDUCTION = AttrSpec("reduction", "text", "none")
_AXIS = AttrSpec("axis", "int", 0)
_MAYBE_AXIS = AttrSpec("axis", "int")

OPS = (
    OpSpec(
        "gather_elements",
        _PICKED,
        _gather_elements,
        (_AXIS,),
        _KEEPS,
        _move_elements,
        doc="for each index the element of x that stands where it does, but there along the axis",
    ),
    OpSpec(
        "gather_nd",
        _PICKED,
        _gather_nd,
        (AttrSpec("batch", "int", 0),),
        _KEEPS,
        _move_elements,
        doc="the parts of x whose first places the last axis of the indices names",
    ),
    OpSpec(
        "scatter_elements",
        _PLACED,
        _scatter_elements,
        (_AXIS, _REDUCTION),
        doc="x with updates put, added, multiplied, ... where gather_elements would take them",
    ),
    OpSpec(
        "scatter_nd",
        _PLACED,
        _scatter_nd,
        (_REDUCTION,),
        doc="x with updates put, added, multiplied, ... where gather_nd would take them",
    ),
    OpSpec(
        "one_hot",
        (Slot("indices"), Slot("values")),
        _one_hot,
        (AttrSpec("depth", "int", required=True), AttrSpec("axis", "int", -1)),
        doc="a new axis with the second value at each index and the first elsewhere",
    ),
    OpSpec("nonzero", _X, _nonzero, doc="the places of elements that are not 0, one column each"),
    OpSpec(
        "unique",
        _X,
        _unique,
        (_MAYBE_AXIS, AttrSpec("sorted", "bool", True)),
        results=4,
        doc="what is there once or more, its first places, which of it each was, how often",
    ),
    OpSpec(
        "trilu",
        _X,
        _matrix,
        (AttrSpec("k", "int", 0), AttrSpec("upper", "bool", True)),
        _KEEPS,
        keep_element,
        doc="the last two axes above (or below) the k-th diagonal and on it, 0 elsewhere",
    ),
    OpSpec(
        "eye_like",
        _X,
        _eye,
        (AttrSpec("dtype", "dtype"), AttrSpec("k", "int", 0)),
        doc="a matrix as large as x, 1 on the k-th diagonal and 0 elsewhere",
    ),
    OpSpec(
        "flip",
        _X,
        _flip,
        (AttrSpec("axes", "ints", required=True),),
        _KEEPS,
        _move_flip,
        doc="the order of elements along the axes turned round",
    ),
    OpSpec(
        "reverse_sequence",
        (Slot("x"), Slot("lengths")),
        _reverse,
        (AttrSpec("batch", "int", 1), AttrSpec("time", "int", 0)),
        _KEEPS,
        _move_reverse,
        doc="the first elements along time, as many as each batch's length, turned round",
    ),
    OpSpec(
        "compress",
        (Slot("x"), Slot("condition")),
        _compress,
        (_MAYBE_AXIS,),
        _KEEPS,
        _move_compress,
        doc="the entries of an axis, or all elements in a row, for which the condition holds",
    ),
    OpSpec(
        "hardmax",
        _X,
        _hardmax,
        (AttrSpec("axis", "int", -1),),
        doc="1 where the greatest element of an axis first stands, else 0",
    ),
)
