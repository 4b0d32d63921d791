"""Permutes the axes of an op: its operands, types, attributes and lineage.

`perm` lists, for each axis of the result, the axis of the operand, as in transpose. To channels
last, of rank 4, it is (0, 2, 3, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from qir.ir import lazy_arrays
from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.ops.granularity import permute_axes
from qir.ir.origin import Lineage
from qir.ir.types import Array, Element, QuantType, TensorType

Perm: TypeAlias = tuple[int, ...]
"""A permutation of axes."""
LAYOUTS = ("nhwc", "nchw")
"""Channels last, or second."""


def perm_to(layout: str, rank: int) -> Perm:
    """Returns the permutation of axes to channels last (`nhwc`) or channels first (`nchw`)."""
    if layout == "nhwc":
        return (0, *range(2, rank), 1)
    return (0, rank - 1, *range(1, rank - 1))


def inverse(perm: Perm) -> Perm:
    """Returns the inverse permutation."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def composed(first: Perm, second: Perm) -> Perm:
    """Returns one permutation for two transposes in order."""
    return tuple(first[axis] for axis in second)


def is_identity(perm: Perm) -> bool:
    """Returns whether a permutation leaves every axis where it is."""
    return perm == tuple(range(len(perm)))


def permuted_element(element: Element, kind: TensorType, perm: Perm) -> Element | None:
    """Returns the element type with the axes of its parameters permuted, or None."""
    if not isinstance(element, QuantType):
        return element
    places = {axis: perm.index(axis) for axis in perm}
    return permute_axes(element, kind.shape, places, len(perm))


def permuted_type(kind: TensorType, perm: Perm) -> TensorType | None:
    """Returns the tensor type with its axes permuted; None where its quantized type cannot be."""
    element = permuted_element(kind.element, kind, perm)
    if element is None or kind.rank != len(perm):
        return None
    return TensorType(tuple(kind.shape[axis] for axis in perm), element)


def permuted_lineage(old: Lineage, perm: Perm) -> Lineage:
    """Returns the lineage after a permutation; a step cancels its inverse."""
    if old.how and old.how[-1] == _step(inverse(perm)):
        return Lineage(old.tensor, old.how[:-1])
    return old.then(_step(perm))


def _step(perm: Perm) -> str:
    return f"permuted({', '.join(map(str, perm))})"


def permuted_array(array: Array, perm: Perm) -> Array | None:
    """Returns a constant with permuted axes, after prepending axes of 1 where it has fewer."""
    # Broadcasting prepends axes of 1: they are made explicit, so that they can be permuted.
    lead = len(perm) - array.type.rank
    data, kind = array.contents, array.type
    if lead:
        if kind.quant is not None and kind.quant.granularity is not None:
            return None
        data = lazy_arrays.reshape(data, (1,) * lead + data.shape)
        kind = TensorType(data.shape, kind.element)
    new_type = permuted_type(kind, perm)
    if new_type is None:
        return None
    return Array(lazy_arrays.transposed(data, perm), new_type, array.name)


# -- ops ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PermutedOp:
    """The operands of an op to permute with its data, and the attributes of the permuted op."""

    slots: frozenset[str]
    attrs: Mapping[str, Attr]


Given: TypeAlias = "Mapping[str, Value | None]"
"""Operands by slot; None is the result of the stage before."""
Rule: TypeAlias = "Callable[[Mapping[str, Attr], Perm], Mapping[str, Attr] | None]"
"""Returns the attributes for permuted axes; None where they cannot express them."""


def permuted_op(
    op: str, attrs: Mapping[str, Attr], operands: Given, perm: Perm
) -> PermutedOp | None:
    """Returns how an op is written for permuted data; None where it cannot be."""
    op_spec = spec(op)
    if op in _BROADCAST or op == "concat":
        if not _have_rank(operands, len(perm), require_all=op == "concat"):
            return None
        return PermutedOp(frozenset(operands), _axis(attrs, perm) if op == "concat" else attrs)
    data = "x" if "x" in operands else ""
    if (
        not data
        or not _of_rank(operands["x"], len(perm))
        or any(op_spec.is_companion(s) for s in operands)
    ):
        return None
    if op_spec.traits.elementwise or op in ALIKE:
        return PermutedOp(frozenset({data}), attrs)
    rule = _RULES.get(op)
    made = rule(attrs, perm) if rule is not None else None
    return None if made is None else PermutedOp(frozenset({data}), made)


def _of_rank(value: Value | None, rank: int) -> bool:
    return value is None or value.type.rank == rank


def _have_rank(operands: Given, rank: int, *, require_all: bool) -> bool:
    """Returns whether operands are of that rank; or, unless `require_all`, also constants and
    scalars."""
    fits = [_of_rank(value, rank) for value in operands.values()]
    if require_all or not any(fits):
        return all(fits) and any(fits)
    return all(
        fit or value is None or value.type.rank == 0 or value.constant is not None
        for fit, value in zip(fits, operands.values(), strict=True)
    )


def _int_tuple(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


def _axis(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr]:
    axis = attrs["axis"]
    assert isinstance(axis, int)
    return {**attrs, "axis": perm.index(axis % len(perm))}


def _axes(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr]:
    """Returns permuted `axes`; lists of values per axis keep their order."""
    axes = _int_tuple(attrs["axes"])
    return {**attrs, "axes": tuple(perm.index(axis % len(perm)) for axis in axes)}


def _resize_attrs(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr]:
    """Returns permuted `axes`, where an empty list means all of them."""
    return _axes({**attrs, "axes": attrs["axes"] or tuple(range(len(perm)))}, perm)


def _reduced(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr] | None:
    """Returns a reduction that keeps its axes."""
    if attrs["keep"] is not True:
        return None
    if "axes" not in attrs:
        return _axis(attrs, perm)
    # Sorted, since the order of reduced axes means nothing and equal nodes should compare equal.
    axes = _int_tuple(_axes(attrs, perm)["axes"])
    return {**attrs, "axes": tuple(sorted(axes))}


def _pads(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr]:
    pads, rank = _int_tuple(attrs["pads"]), len(perm)
    # `pads` lists all fronts, then all backs.
    fronts, backs = (tuple(side[axis] for axis in perm) for side in (pads[:rank], pads[rank:]))
    return {**attrs, "pads": fronts + backs}


def _repeats(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr]:
    repeats = _int_tuple(attrs["repeats"])
    return {**attrs, "repeats": tuple(repeats[axis] for axis in perm)}


def _layout(attrs: Mapping[str, Attr], perm: Perm) -> Mapping[str, Attr] | None:
    """Returns the other layout of an op that names its layout; None for another permutation."""
    found = str(attrs["layout"])
    other = "NCHW" if found == "NHWC" else "NHWC"
    return {**attrs, "layout": other} if perm == perm_to(other.lower(), len(perm)) else None


_BROADCAST = frozenset(
    "add sub mul div pow mod floor_div squared_difference atan2 min max sum mean equal not_equal "
    "less less_equal greater greater_equal logical_and logical_or logical_xor bit_and bit_or "
    "bit_xor bit_shift where prelu".split()
)
ALIKE = frozenset("identity dropout cast quantize dequantize requantize fake_quantize".split())
"""Ops whose attributes are the same for any order of axes."""
SPATIAL = frozenset(
    "conv2d max_pool2d avg_pool2d lp_pool2d global_avg_pool global_max_pool global_lp_pool "
    "depth_to_space space_to_depth".split()
)
"""Ops that name their layout."""
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(SPATIAL, _layout),
    **dict.fromkeys(("softmax", "log_softmax", "lp_normalize", "cumsum", "cumprod"), _axis),
    **dict.fromkeys(("batch_norm", "split"), _axis),
    **dict.fromkeys(("arg_max", "arg_min"), _reduced),
    **{f"reduce_{how}": _reduced for how in "mean sum prod max min l1 l2 sum_square".split()},
    **dict.fromkeys(("slice", "flip"), _axes),
    **dict.fromkeys(("resize", "resize_nearest"), _resize_attrs),
    "pad": _pads,
    "tile": _repeats,
}
