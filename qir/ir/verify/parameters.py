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


def _maps(seen: NodeContext) -> Iterator[tuple[str, QuantType]]:
    """Every map that the node's own types and inner slots name, and those of their arrays."""
    for name, kind in seen.typed():
        if kind.quant is not None:
            yield name, kind.quant
    for name, element in seen.node._inner.items():
        if isinstance(element, QuantType):
            yield name, element


def positive_scale(seen: NodeContext) -> Iterator[Fault]:
    """Every scale is positive and finite; the scales of blocks need only be finite.

    Tools give a block the sign of its largest weight, and an all-zero block a scale of zero. Scales
    that are quantized themselves are finite and not negative, and may be zero for all-zero blocks.
    Constant companion slots are checked too.
    """
    if not (seen.makes_quantized or seen.has_open_parameters):
        return
    for name, quant in _maps(seen):
        if quant.scale is not None and (said := _bad_scale(quant)):
            yield Fault(f"{name}: {said}", value=name.removeprefix("%"))
    for slot, array, of in _given(seen, "scale"):
        blocks = of is not None and of.granularity is not None and of.axis is None
        if not (_finite if blocks else _positive)(array.data):
            said = "finite" if blocks else "positive and finite"
            yield Fault(f"{slot}: a scale is not {said}", slot)


def _bad_scale(quant: QuantType) -> str:
    if isinstance(quant.scale, tuple):  # the usual case, without an array
        ok = all(0 < scale < math.inf for scale in quant.scale)
        return "" if ok else "a scale is not positive and finite"
    array = quant.scale
    inner = array.type.quant if array is not None else None
    if array is None or inner is None:
        blocks = quant.granularity is not None and quant.axis is None
        if array is not None and blocks and array.type.dtype.is_float:
            return "" if _finite(array.data) else "a scale is not finite"
        ok = array is None or _positive(array.data)
        return "" if ok else "a scale is not positive and finite"
    if inner.dynamic or inner.kind != "uniform" or inner.granularity is not None:
        return "" if inner.scale is None else _bad_scale(inner)
    codes = array.data.astype(np.float64)
    reals = np.multiply(codes - np.float64(inner.zeros()), np.float64(inner.scales()))
    if not np.isfinite(reals).all() or (reals < 0).any():
        return "a scale of its quantized scales is negative or not finite"
    return _bad_scale(inner)


def _finite(numbers: NDArray[np.generic]) -> bool:
    return bool(np.isfinite(numbers.astype(np.float64)).all())


def _positive(numbers: NDArray[np.generic]) -> bool:
    wide = numbers.astype(np.float64)
    return bool(((wide > 0) & (wide < np.inf)).all())


def _given(seen: NodeContext, last: str) -> Iterator[tuple[str, Array, QuantType | None]]:
    """Constants in companion slots of that name, with the quantized type that each belongs to.

    An input of a body is the constant outside that it always is.
    """
    for step in seen.steps:
        for slot in step.call.companions:
            base, _, name = slot.rpartition(".")
            array = seen.look.source(step.operands[slot]).constant
            if name == last and array is not None and array.type.quant is None:
                yield step.prefix + slot, array, _owner(seen, step, base)[0]


def zero_in_bounds(seen: NodeContext) -> Iterator[Fault]:
    """Every zero point is one of the quantized values of its type.

    Float zero points may have any value, and float storage types have none.
    """
    if not (seen.makes_quantized or seen.has_open_parameters):
        return
    for name, quant in _maps(seen):
        if quant.zero and (said := _bad_zero(quant)):
            yield Fault(f"{name}: {said}", value=name.removeprefix("%"))
    for slot, array, of in _given(seen, "zero"):
        if of is None or not (of.storage.is_integer and array.type.dtype.is_integer):
            continue
        if array.contents.size and outside(of, array.data):
            yield Fault(f"{slot}: a zero point is outside {of.low}..{of.high}", slot)


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


def axes(seen: NodeContext) -> Iterator[Fault]:
    """There is one scale for each index or block of the axes that a type names.

    There are as many zero points and offsets as scales, or one. A granularity with `by` names the
    group of every index of its last axis.
    """
    if not (seen.makes_quantized or seen.has_open_parameters):
        return
    for name, kind in seen.typed():
        quant = kind.quant
        if quant is None:
            continue
        for said in miscounted(quant, kind):
            yield Fault(f"{name}: {said}", value=name.removeprefix("%"))


def miscounted(quant: QuantType, kind: TensorType) -> Iterator[str]:
    """What is wrong with how many numbers a quantized type has, for a tensor of that type."""
    if quant.granularity is None and quant.plus is None and not isinstance(quant.zero, Array):
        return  # one of each, since no such type is made otherwise
    scales = None if quant.scale is None else np.asarray(quant.scales())
    if scales is not None and quant.zero:
        count = np.asarray(quant.zeros()).size
        if count not in (1, scales.size):
            yield f"{count} zeros for {scales.size} scales"
    grain = quant.granularity
    if scales is None:
        return
    offsets = len(quant.plus) if isinstance(quant.plus, tuple) else 1
    offsets = quant.plus.contents.size if isinstance(quant.plus, Array) else offsets
    if offsets not in (1, scales.size):
        yield f"{offsets} offsets for {scales.size} scales"
    if grain is None:
        return
    if grain.by is not None:
        yield from _groups(quant, kind, grain.by, scales.shape)
    elif grain.axis is not None:
        size = kind.shape[grain.axis]
        if isinstance(size, int) and scales.size != size:
            yield f"{scales.size} scales for {size} indices of axis {grain.axis}"
    elif (grid := dims.known_shape(grain.grid(kind.shape))) is not None and scales.shape != grid:
        if isinstance(quant.scale, tuple) and scales.size == math.prod(grid):
            return  # in line they stand in the grid's order
        yield f"scales are {list(scales.shape)}, the blocks make {list(grid)}"


def _groups(quant: QuantType, kind: TensorType, by: Array, grid: tuple[int, ...]) -> Iterator[str]:
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


def codes_in_bounds(seen: NodeContext) -> Iterator[Fault]:
    """A constant's elements are inside the bounds of their type.

    The bounds are stated by the type, given by a narrow storage type in a wider NumPy type, or the
    entries of a lookup table.
    """
    if seen.node.op != "constant" or (array := seen.node.result.constant) is None:
        return
    if not array.type.dtype.is_integer or not array.contents.size:
        return
    low, high = array.type.bounds
    if _fills(array.contents.dtype, low, high):
        return
    known = bounds_of(array.contents)
    if known is not None and low <= known[0] <= known[1] <= high:
        return
    ends = [(int(piece.min()), int(piece.max())) for piece in iter_pieces(array.contents)]
    least, greatest = min(end[0] for end in ends), max(end[1] for end in ends)
    if least < low or greatest > high:
        said = f"elements {least}..{greatest} leave the bounds {low}..{high}"
        yield Fault(said, value=seen.node.name)


def _fills(dtype: np.dtype[np.generic], low: int, high: int) -> bool:
    """Whether the NumPy type itself keeps to the bounds: there is nothing to look at."""
    size = 8 * dtype.itemsize
    least = -(1 << size - 1) if dtype.kind == "i" else 0
    return low <= least and least + (1 << size) - 1 <= high


_BITS = STATED_TYPE_OPS | {"constant", "recode", "shape", "size"} | CONTROL_FLOW_OPS
"""Ops that hand integers on, or take them as they are: nobody has to know what they mean."""
_UNASKED = _BITS | PLAIN_INTEGER_PRODUCTS
"""Their type rules read the zero points of the latter, which are operands."""


def companions(seen: NodeContext) -> Iterator[Fault]:
    """Parameters that a type leaves open (`?`) are operands in companion slots, and only those.

    `a.scale` and `a.zero` belong to operand `a`, bare names to the result; a declared range,
    `a.min` with `a.max`, replaces both. They are required where an op computes with the float
    values and the type says `?`, refused where the type has the parameter, and shaped by its
    granularity.
    """
    for step in seen.steps:
        if (
            step.plain
            or step.spec.name in _UNASKED
            or not (seen.has_open_parameters or step.call.companions)
        ):
            continue
        for base in _bases(seen, step):
            for fault in _beside(seen, step, base):
                yield Fault(fault.message, step.prefix + fault.slot if fault.slot else "")


def _bases(seen: NodeContext, step: OpUse) -> list[str]:
    """Whose companions are to be looked at: operands that are quantized, inner slots, the
    result."""
    out = [s for s, kind in step.call.types.items() if kind.quant is not None]
    out += seen.node._inner
    out += [c.rpartition(".")[0] for c in step.call.companions]
    return list(dict.fromkeys(["", *out]))


def _owner(seen: NodeContext, step: OpUse, base: str) -> tuple[QuantType | None, dims.Shape | None]:
    """The quantized type that companions of a slot belong to, and the shape of what it is the
    quantized type of."""
    if not base:
        return (step.result.quant, step.result.shape) if step.result else (None, None)
    if (kind := step.call.types.get(base)) is not None:
        return kind.quant, kind.shape
    element = seen.node._inner.get(base)
    return (element if isinstance(element, QuantType) else None), None


def _beside(seen: NodeContext, step: OpUse, base: str) -> Iterator[Fault]:
    """The faults of the companions of one slot."""
    quant, shape = _owner(seen, step, base)
    whose, prefix = (base, f"{base}.") if base else ("the result", "")
    there = [c for c in COMPANIONS if prefix + c in step.call.companions]
    opens = _open(quant)
    for name in there:
        slot = prefix + name
        if quant is None or name not in opens:
            yield Fault(f"{slot} is given, and {whose} does not leave it open", slot)
        elif said := _misshapen(quant, shape, name, step.call.companions[slot]):
            yield Fault(f"{slot} {said}", slot)
    chosen = base in seen.node._inner and step.spec.name in INNER_ROUNDING_OPS and not there
    ranged = [c for c in there if c in ("min", "max")]
    if len(ranged) == 1:
        yield Fault(f"{prefix}min and {prefix}max come together", prefix + ranged[0])
    if quant is None or not quant.dynamic or ranged or chosen:
        return
    if step.spec.traits.value_preserving:
        return
    for name in ("scale", "zero"):
        if name in opens and name not in there:
            said = f"{whose} leaves its {name} open, and {prefix}{name} is missing"
            yield Fault(said, prefix + name)


def _open(quant: QuantType | None) -> set[str]:
    """The companions that a quantized type leaves room for."""
    if quant is None:
        return set()
    scale = {"scale", "min", "max"} if quant.scale is None else set()
    return scale | ({"zero"} if quant.zero is None else set())


def _misshapen(quant: QuantType, shape: dims.Shape | None, name: str, given: TensorType) -> str:
    """What is wrong with a companion's own type; nothing where it is right."""
    whole = name == "zero" and given.dtype.is_integer
    if given.quant is None and not given.dtype.is_float and not whole:
        return f"is {given}; it takes {'numbers' if name == 'zero' else 'floats'}"
    grain = quant.granularity
    if shape is None or (grain is not None and grain.by is not None):
        return ""
    if grain is None:
        right = all(dims.may_be_equal(size, 1) for size in given.shape)
        return "" if right else f"is {given}, and a whole tensor has one"
    wanted = [grain.grid(shape)]
    if grain.axis is not None:
        wanted.append((shape[grain.axis],))
    if any(len(w) == given.rank and all(map(dims.may_be_equal, w, given.shape)) for w in wanted):
        return ""
    return f"is {given}, and there are {list(wanted[-1])} of them"
