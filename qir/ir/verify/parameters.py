"""Rules on the numbers of a quantized type: scales, zero points, how many there are, and who gives
them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.lazy_arrays import bounds_of, iter_pieces
from qir.ir.ops import COMPANIONS
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.ops.layers import CONTROL_FLOW_OPS
from qir.ir.quantized_ops import INNER_ROUNDING_OPS, PLAIN_INTEGER_PRODUCTS
from qir.ir.types import Array, QuantType, TensorType
from qir.ir.verify.rule import Fault, NodeContext
from qir.ir.verify.step import OpUse


def _named_quant_types(context: NodeContext) -> Iterator[tuple[str, QuantType]]:
    """Every map that the node's own types and inner slots name, and those of their arrays."""
    for name, kind in context.typed():
        if kind.quant is not None:
            yield name, kind.quant
    for name, element in context.node._inner.items():
        if isinstance(element, QuantType):
            yield name, element


def positive_scale(context: NodeContext) -> Iterator[Fault]:
    """Every scale is positive and finite; the scales of blocks need only be finite.

    Tools give a block the sign of its largest weight, and an all-zero block a scale of zero. Scales
    that are quantized themselves are finite and not negative, and may be zero for all-zero blocks.
    Constant companion slots are checked too.
    """
    if not (context.makes_quantized or context.has_open_parameters):
        return
    for name, quant in _named_quant_types(context):
        if quant.scale is not None and (fault := _bad_scale(quant)):
            yield Fault(f"{name}: {fault}", value=name.removeprefix("%"))
    for slot, array, owner in _constant_companions(context, "scale"):
        is_blockwise = owner is not None and owner.granularity is not None and owner.axis is None
        if not (_finite if is_blockwise else _positive)(array.data):
            fault = "finite" if is_blockwise else "positive and finite"
            yield Fault(f"{slot}: a scale is not {fault}", slot)


def _bad_scale(quant: QuantType) -> str:
    if isinstance(quant.scale, tuple):  # the usual case, without an array
        is_valid = all(0 < scale < math.inf for scale in quant.scale)
        return "" if is_valid else "a scale is not positive and finite"
    array = quant.scale
    inner = array.type.quant if array is not None else None
    if array is None or inner is None:
        is_blockwise = quant.granularity is not None and quant.axis is None
        if array is not None and is_blockwise and array.type.dtype.is_float:
            return "" if _finite(array.data) else "a scale is not finite"
        is_valid = array is None or _positive(array.data)
        return "" if is_valid else "a scale is not positive and finite"
    if inner.dynamic or inner.kind != "uniform" or inner.granularity is not None:
        return "" if inner.scale is None else _bad_scale(inner)
    quantized = array.data.astype(np.float64)
    floats = np.multiply(quantized - np.float64(inner.zeros()), np.float64(inner.scales()))
    if not np.isfinite(floats).all() or (floats < 0).any():
        return "a scale of its quantized scales is negative or not finite"
    return _bad_scale(inner)


def _finite(numbers: NDArray[np.generic]) -> bool:
    return bool(np.isfinite(numbers.astype(np.float64)).all())


def _positive(numbers: NDArray[np.generic]) -> bool:
    wide = numbers.astype(np.float64)
    return bool(((wide > 0) & (wide < np.inf)).all())


def _constant_companions(
    context: NodeContext, last: str
) -> Iterator[tuple[str, Array, QuantType | None]]:
    """Constants in companion slots of that name, with the quantized type that each belongs to.

    An input of a body is the constant outside that it always is.
    """
    for step in context.steps:
        for slot in step.call.companions:
            base, _, name = slot.rpartition(".")
            array = context.look.source(step.operands[slot]).constant
            if name == last and array is not None and array.type.quant is None:
                yield step.prefix + slot, array, _owner_of_companions(context, step, base)[0]


def zero_in_bounds(context: NodeContext) -> Iterator[Fault]:
    """Every zero point is one of the quantized values of its type.

    Float zero points may have any value, and float storage types have none.
    """
    if not (context.makes_quantized or context.has_open_parameters):
        return
    for name, quant in _named_quant_types(context):
        if quant.zero and (fault := _bad_zero(quant)):
            yield Fault(f"{name}: {fault}", value=name.removeprefix("%"))
    for slot, array, owner in _constant_companions(context, "zero"):
        if owner is None or not (owner.storage.is_integer and array.type.dtype.is_integer):
            continue
        if array.contents.size and outside(owner, array.data):
            yield Fault(f"{slot}: a zero point is outside {owner.low}..{owner.high}", slot)


def _bad_zero(quant: QuantType) -> str:
    if isinstance(quant.zero, tuple) and quant.storage.is_integer and not quant.has_float_zero:
        inside = all(quant.low <= zero <= quant.high for zero in quant.zero)
        return "" if inside else f"a zero point is outside {quant.low}..{quant.high}"
    zeros = np.asarray(quant.zeros())
    if quant.has_float_zero:
        finite = bool(np.isfinite(zeros.astype(np.float64)).all())
        return "" if finite else "a zero is not finite"
    if quant.storage.is_float:
        return f"{quant.storage} values have no zero point" if zeros.any() else ""
    if zeros.size and outside(quant, zeros):
        return f"a zero point is outside {quant.low}..{quant.high}"
    return ""


def outside(quant: QuantType, zeros: NDArray[np.generic]) -> bool:
    return bool(int(zeros.min()) < quant.low or int(zeros.max()) > quant.high)


def axes(context: NodeContext) -> Iterator[Fault]:
    """There is one scale for each index or block of the axes that a type names.

    There are as many zero points and offsets as scales, or one. A granularity with `by` names the
    group of every index of its last axis.
    """
    if not (context.makes_quantized or context.has_open_parameters):
        return
    for name, kind in context.typed():
        quant = kind.quant
        if quant is None:
            continue
        for fault in miscounted(quant, kind):
            yield Fault(f"{name}: {fault}", value=name.removeprefix("%"))


def miscounted(quant: QuantType, kind: TensorType) -> Iterator[str]:
    """What is wrong with how many numbers a quantized type has, for a tensor of that type."""
    if quant.granularity is None and quant.plus is None and not isinstance(quant.zero, Array):
        return  # one of each, since no such type is made otherwise
    scales = None if quant.scale is None else np.asarray(quant.scales())
    if scales is not None and quant.zero:
        count = np.asarray(quant.zeros()).size
        if count not in (1, scales.size):
            yield f"{count} zeros for {scales.size} scales"
    granularity = quant.granularity
    if scales is None:
        return
    offsets = len(quant.plus) if isinstance(quant.plus, tuple) else 1
    offsets = quant.plus.contents.size if isinstance(quant.plus, Array) else offsets
    if offsets not in (1, scales.size):
        yield f"{offsets} offsets for {scales.size} scales"
    if granularity is None:
        return
    if granularity.by is not None:
        yield from _group_faults(quant, kind, granularity.by, scales.shape)
    elif granularity.axis is not None:
        size = kind.shape[granularity.axis]
        if isinstance(size, int) and scales.size != size:
            yield f"{scales.size} scales for {size} indices of axis {granularity.axis}"
    elif (
        grid := dims.known_shape(granularity.grid(kind.shape))
    ) is not None and scales.shape != grid:
        if isinstance(quant.scale, tuple) and scales.size == math.prod(grid):
            return  # in line they stand in the grid's order
        yield f"scales are {list(scales.shape)}, the blocks make {list(grid)}"


def _group_faults(
    quant: QuantType, kind: TensorType, by: Array, grid: tuple[int, ...]
) -> Iterator[str]:
    """The faults of a granularity whose last axis says of each index which group it belongs to."""
    assert quant.granularity is not None
    axis = quant.granularity.blocks[-1][0]
    if not by.type.dtype.is_integer or by.contents.ndim != 1:
        yield f"groups are named by {by.type}; it takes one whole number an index"
    elif not dims.may_be_equal(kind.shape[axis], by.contents.size):
        yield f"{by.contents.size} indices are given a group, axis {axis} has {kind.shape[axis]}"
    elif len(grid) != kind.rank:
        yield f"scales are {list(grid)}, groups need {kind.rank} axes"
    elif by.contents.size and not 0 <= int(by.data.min()) <= int(by.data.max()) < grid[axis]:
        yield f"a group is outside 0..{grid[axis] - 1}"


def codes_in_bounds(context: NodeContext) -> Iterator[Fault]:
    """A constant's elements are inside the bounds of their type.

    The bounds are stated by the type, given by a narrow storage type in a wider NumPy type, or the
    entries of a lookup table.
    """
    if context.node.op != "constant" or (array := context.node.result.constant) is None:
        return
    if not array.type.dtype.is_integer or not array.contents.size:
        return
    low, high = array.type.bounds
    if _dtype_keeps_bounds(array.contents.dtype, low, high):
        return
    # A lazy array may know its bounds; without them every piece is computed once.
    known_bounds = bounds_of(array.contents)
    if known_bounds is not None and low <= known_bounds[0] <= known_bounds[1] <= high:
        return
    piece_bounds = [(int(piece.min()), int(piece.max())) for piece in iter_pieces(array.contents)]
    least, greatest = min(end[0] for end in piece_bounds), max(end[1] for end in piece_bounds)
    if least < low or greatest > high:
        message = f"elements {least}..{greatest} leave the bounds {low}..{high}"
        yield Fault(message, value=context.node.name)


def _dtype_keeps_bounds(dtype: np.dtype[np.generic], low: int, high: int) -> bool:
    """Whether the NumPy type itself keeps to the bounds: there is nothing to look at."""
    size = 8 * dtype.itemsize
    least = -(1 << size - 1) if dtype.kind == "i" else 0
    return low <= least and least + (1 << size) - 1 <= high


_MEANING_FREE_OPS = STATED_TYPE_OPS | {"constant", "recode", "shape", "size"} | CONTROL_FLOW_OPS
"""Ops that hand integers on, or take them as they are: nobody has to know what they mean."""
_EXEMPT_OPS = _MEANING_FREE_OPS | PLAIN_INTEGER_PRODUCTS
"""Their type rules read the zero points of the latter, which are operands."""


def companions(context: NodeContext) -> Iterator[Fault]:
    """Parameters that a type leaves open (`?`) are operands in companion slots, and only those.

    `a.scale` and `a.zero` belong to operand `a`, bare names to the result; a declared range,
    `a.min` with `a.max`, replaces both. They are required where an op computes with the float
    values and the type says `?`, refused where the type has the parameter, and shaped by its
    granularity.
    """
    for step in context.steps:
        if (
            step.plain
            or step.spec.name in _EXEMPT_OPS
            or not (context.has_open_parameters or step.call.companions)
        ):
            continue
        for base in _companion_bases(context, step):
            for fault in _companion_faults(context, step, base):
                yield Fault(fault.message, step.prefix + fault.slot if fault.slot else "")


def _companion_bases(context: NodeContext, step: OpUse) -> list[str]:
    """Whose companions are to be looked at: operands that are quantized, inner slots, the
    result."""
    out = [s for s, kind in step.call.types.items() if kind.quant is not None]
    out += context.node._inner
    out += [c.rpartition(".")[0] for c in step.call.companions]
    return list(dict.fromkeys(["", *out]))


def _owner_of_companions(
    context: NodeContext, step: OpUse, base: str
) -> tuple[QuantType | None, dims.Shape | None]:
    """The quantized type that companions of a slot belong to, and the shape of what it is the
    quantized type of."""
    if not base:
        return (step.result.quant, step.result.shape) if step.result else (None, None)
    if (kind := step.call.types.get(base)) is not None:
        return kind.quant, kind.shape
    element = context.node._inner.get(base)
    return (element if isinstance(element, QuantType) else None), None


def _companion_faults(context: NodeContext, step: OpUse, base: str) -> Iterator[Fault]:
    """The faults of the companions of one slot."""
    quant, shape = _owner_of_companions(context, step, base)
    owner, prefix = (base, f"{base}.") if base else ("the result", "")
    given_names = [c for c in COMPANIONS if prefix + c in step.call.companions]
    open_names = _open_names(quant)
    for name in given_names:
        slot = prefix + name
        if quant is None or name not in open_names:
            yield Fault(f"{slot} is given, and {owner} does not leave it open", slot)
        elif fault := _misshapen(quant, shape, name, step.call.companions[slot]):
            yield Fault(f"{slot} {fault}", slot)
    # A recurrent layer or attention without companions chooses the parameters of inner slots
    # itself, at run time.
    is_chosen_by_op = (
        base in context.node._inner and step.spec.name in INNER_ROUNDING_OPS and not given_names
    )
    range_ends = [c for c in given_names if c in ("min", "max")]
    if len(range_ends) == 1:
        yield Fault(f"{prefix}min and {prefix}max come together", prefix + range_ends[0])
    if quant is None or not quant.dynamic or range_ends or is_chosen_by_op:
        return
    # What only moves integers needs no parameters: the value it came from has them.
    if step.spec.traits.value_preserving:
        return
    for name in ("scale", "zero"):
        if name in open_names and name not in given_names:
            fault = f"{owner} leaves its {name} open, and {prefix}{name} is missing"
            yield Fault(fault, prefix + name)


def _open_names(quant: QuantType | None) -> set[str]:
    """The companions that a quantized type leaves room for."""
    if quant is None:
        return set()
    scale = {"scale", "min", "max"} if quant.scale is None else set()
    return scale | ({"zero"} if quant.zero is None else set())


def _misshapen(quant: QuantType, shape: dims.Shape | None, name: str, companion: TensorType) -> str:
    """What is wrong with a companion's own type; nothing where it is right."""
    is_integer_zero = name == "zero" and companion.dtype.is_integer
    if companion.quant is None and not companion.dtype.is_float and not is_integer_zero:
        return f"is {companion}; it takes {'numbers' if name == 'zero' else 'floats'}"
    granularity = quant.granularity
    if shape is None or (granularity is not None and granularity.by is not None):
        return ""
    if granularity is None:
        is_single = all(dims.may_be_equal(size, 1) for size in companion.shape)
        return "" if is_single else f"is {companion}, and a whole tensor has one"
    # Per-axis parameters may be a list or have the rank of the tensor.
    allowed = [granularity.grid(shape)]
    if granularity.axis is not None:
        allowed.append((shape[granularity.axis],))
    if any(
        len(w) == companion.rank and all(map(dims.may_be_equal, w, companion.shape))
        for w in allowed
    ):
        return ""
    return f"is {companion}, and there are {list(allowed[-1])} of them"
