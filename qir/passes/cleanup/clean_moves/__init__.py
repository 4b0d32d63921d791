"""Removes moves of elements that move nothing, and merges two that follow each other.

    graph main as native {
      %x = input() : 2x3x4xf32
      %a = transpose(%x) {perm = (1, 2, 0)} : 3x4x2xf32
      %b = relu(%a) : 3x4x2xf32
      %y = transpose(%b) {perm = (2, 0, 1)} : 2x3x4xf32
      output(y=%y)
    }

By `clean-moves` it becomes:

    graph main as native {
      %x = input() : 2x3x4xf32
      %y = relu(%x) : 2x3x4xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.errors import QirError
from qir.ir import attrs as attributes
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import BOOL, STRING, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.granularity import reshape
from qir.ir.ops.moves import RESHAPES, slice_indices
from qir.ir.origin import Origin
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Change
from qir.passes.cleanup.clean_moves.identities import IDENTITIES, TRANSPOSES_APART
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Op, Pattern, Var, op
from qir.rewrite.patterns.rewriting import PatternPass, Replacement, Rewrite

_Finder: TypeAlias = Callable[[Node], "Value | None"]


def _made_by(*ops: str) -> Callable[[Value], bool]:
    return lambda value: value.node.op in ops and not value.node.schemes


def _if_same_type(value: Value | None, node: Node) -> Value | None:
    """Returns the value, if it may stand for the node's result."""
    return value if value is not None and value.type == node.result.type else None


def _replace_by(find: _Finder) -> Replacement:
    """Makes a replacement of a function that finds an existing value."""

    def replace(graph: Graph, match: Match) -> Value | None:
        return _if_same_type(find(match.root), match.root)

    return replace


def _merged_op(
    graph: Graph,
    match: Match,
    made: str,
    x: Value,
    attrs: dict[str, Attr],
    shape: Value | None = None,
) -> Value | None:
    """Returns one op in the place of two; None where it makes another type, as maps of integers may
    be."""
    node, inner = match.root, match["x"].node
    operands = {"x": x} if shape is None else {"x": x, "shape": shape}
    try:
        types = infer_result_types(made, operands, attrs)
    except QirError:
        return None
    if types != (node.result.type,):
        return None
    origins = (*inner.origins, *node.origins)
    return graph.add(made, operands, attrs, types=types, origins=origins).result


# -- moves that move nothing ----------------------------------------------------------------------


def _x(node: Node) -> Value:
    return node.operands["x"]


def _single_part(node: Node) -> Value | None:
    return node.operands["xs.0"] if len(node.operands) == 1 else None


def _unmoved_operand(node: Node) -> Value | None:
    """x, where the op keeps every axis as it is."""
    x, attrs = _x(node), node.attrs
    match node.op:
        case "transpose":
            is_idle = attrs["perm"] == tuple(range(x.type.rank))
        case "pad":
            is_idle = not any(_ints(attrs["pads"]))
        case "tile":
            is_idle = all(count == 1 for count in _ints(attrs["repeats"]))
        case "flip" | "unsqueeze":
            is_idle = attrs["axes"] == ()
        case "flatten":
            is_idle = x.type.rank == 2 and attrs["axis"] in (1, -1)
        case "slice":
            is_idle = _takes_everything(node)
        case _:
            is_idle = True
    return x if is_idle or _has_same_known_shape(node) else None


def _ints(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


def _takes_everything(node: Node) -> bool:
    shape = _x(node).type.shape
    lists = (_ints(node.attrs[n]) for n in ("axes", "starts", "ends", "steps"))
    for axis, start, end, step in zip(*lists, strict=True):
        size = shape[axis]
        # ONNX exporters write INT32_MAX or INT64_MAX for "to the end" of an axis of unknown size.
        least_end = size if isinstance(size, int) else 2**31 - 1
        if start != 0 or step != 1 or end < least_end:
            return False
    return True


def _has_same_known_shape(node: Node) -> bool:
    """Returns whether a reshape or expand makes the shape that is there."""
    shape = _x(node).type.shape
    if node.op not in (*RESHAPES, "expand") or None in shape:
        return False
    return shape == node.result.type.shape


# -- two moves as one -----------------------------------------------------------------------------


def _merged_transposes(graph: Graph, match: Match) -> Value | None:
    first, second = match["x"].node, match.root
    first_perm = _ints(first.attrs["perm"])
    perm = tuple(first_perm[axis] for axis in _ints(second.attrs["perm"]))
    if perm == tuple(range(len(perm))):
        return _if_same_type(_x(first), second)
    return _merged_op(graph, match, "transpose", _x(first), {"perm": perm})


def _merged_reshapes(graph: Graph, match: Match) -> Value | None:
    """Returns a reshape of what the first of two reshapes takes, where all sizes but one are
    known."""
    first, second = match["x"].node, match.root
    x, shape = _x(first), second.result.type.shape
    if x.type == second.result.type and (None not in shape or _undoes(first, second)):
        return x
    constant = second.operands["shape"].constant if second.op == "reshape" else None
    # A 0 copies a size of the operand, which would be another operand after the merge.
    if constant is not None and (0 not in constant.data or second.attrs["allow_zero"]):
        return _merged_op(graph, match, "reshape", x, dict(second.attrs), second.operands["shape"])
    # One unknown size can be left open as -1; with a size of 0 nothing could be divided for it.
    sizes = [d if isinstance(d, int) else -1 for d in shape]
    if sizes.count(-1) > 1 or 0 in sizes:
        return None
    return _new_reshape(graph, match, x, sizes)


def _new_reshape(graph: Graph, match: Match, x: Value, sizes: list[int]) -> Value | None:
    node = match.root
    known_product = dims.product(tuple(1 if s < 0 else s for s in sizes))
    open_size = dims.divide(dims.product(x.type.shape), known_product)
    shape = tuple(open_size if s < 0 else s for s in sizes)
    quant = x.type.quant
    element = x.type.dtype if quant is None else reshape(quant, x.type.shape, shape)
    if element is None or TensorType(shape, element) != node.result.type:
        return None
    sizes_constant = graph.constant(np.array(sizes, np.int64), name=f"{node.name}.shape")
    origins = (*match["x"].node.origins, *node.origins)
    return graph.add(
        "reshape", {"x": x, "shape": sizes_constant}, types=[node.result.type], origins=origins
    ).result


def _undoes(first: Node, second: Node) -> bool:
    """Returns whether axes are put in and taken out at the same places."""
    pair = (first.op, second.op)
    if pair not in (("unsqueeze", "squeeze"), ("squeeze", "unsqueeze")):
        return False
    rank = max(first.result.type.rank, second.result.type.rank)
    axes = [{a % rank for a in _ints(n.attrs["axes"])} for n in (first, second)]
    return axes[0] == axes[1] and bool(axes[0])


def _merged_pads(graph: Graph, match: Match) -> Value | None:
    first, second = match["x"].node, match.root
    is_same_fill = all(attributes.same(first.attrs[n], second.attrs[n]) for n in ("mode", "value"))
    pads = [_ints(n.attrs["pads"]) for n in (first, second)]
    # Reflected or repeated elements of the first pad are not those of the operand, and negative
    # pads crop.
    if not is_same_fill or first.attrs["mode"] != "constant" or min(*pads[0], *pads[1]) < 0:
        return None
    total = tuple(a + b for a, b in zip(*pads, strict=True))
    return _merged_op(graph, match, "pad", _x(first), {**second.attrs, "pads": total})


def _merged_slices(graph: Graph, match: Match) -> Value | None:
    """Returns one slice for two, along axes of known sizes."""
    first, second = match["x"].node, match.root
    x = _x(first)
    ranges: dict[int, range] = {}
    for node in (first, second):
        lists = (_ints(node.attrs[n]) for n in ("axes", "starts", "ends", "steps"))
        for axis, start, end, step in zip(*lists, strict=True):
            positive_axis, size = axis % x.type.rank, x.type.shape[axis]
            if not isinstance(size, int):
                return None
            # Python's range composes slices: the second one indexes what the first has left.
            current = ranges.get(positive_axis, range(size))
            indices = slice_indices(start, end, step, len(current))
            ranges[positive_axis] = (
                current[indices.start : indices.stop : indices.step] if indices else range(0)
            )
    # The end is stated as one above the last element: an empty range has none, and a reversed
    # one runs down.
    if any(not indices or indices.step < 0 for indices in ranges.values()):
        return None
    axes = tuple(sorted(ranges))
    attrs: dict[str, Attr] = {
        "starts": tuple(ranges[a].start for a in axes),
        "ends": tuple(ranges[a][-1] + 1 for a in axes),
        "axes": axes,
        "steps": tuple(ranges[a].step for a in axes),
    }
    return _merged_op(graph, match, "slice", x, attrs)


# -- what is cut and joined -----------------------------------------------------------------------


def _slice_of(value: Value, axis: int) -> tuple[Value, int, int] | None:
    """Returns what a value is a part of along an axis, from where, to before where."""
    node = value.node
    if node.op == "split" and isinstance(part_axis := node.attrs["axis"], int):
        sizes = _ints(node.attrs["sizes"])
        start = sum(sizes[: value.index])
        fits = part_axis % value.type.rank == axis
        return (_x(node), start, start + sizes[value.index]) if fits else None
    if node.op != "slice" or len(_ints(node.attrs["axes"])) != 1:
        return None
    x = _x(node)
    (part_axis,), (start,), (end,), (step,) = (
        _ints(node.attrs[n]) for n in ("axes", "starts", "ends", "steps")
    )
    size = x.type.shape[part_axis]
    if part_axis % x.type.rank != axis or step != 1 or not isinstance(size, int):
        return None
    part = slice_indices(start, end, step, size)
    return x, part.start, part.stop


def _rejoined_parts(graph: Graph, match: Match) -> Value | None:
    """Returns what was cut, where a concat joins all its parts in their order, maybe next to
    others."""
    node, values = match.root, match.root.variadic("xs")
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    axis %= node.result.type.rank
    merged: list[Value] = []
    position = 0
    while position < len(values):
        joined, count = _complete_parts(values, position, axis)
        merged.append(joined)
        position += count
    if len(merged) == 1:
        return _if_same_type(merged[0], node)
    return None if len(merged) == len(values) else _concat(graph, node, merged, node.origins)


def _complete_parts(values: list[Value], first: int, axis: int) -> tuple[Value, int]:
    """Returns the value whose parts stand from here on, and how many they are; else the one that
    does."""
    part = _slice_of(values[first], axis)
    if part is None or part[1] != 0 or len(values) == 1:
        return values[first], 1
    x, _, end = part
    for count, value in enumerate(values[first + 1 :], 2):
        part = _slice_of(value, axis)
        if part is None or part[0] is not x or part[1] != end:
            break
        end = part[2]
        if x.type.shape[axis] == end:
            return x, count
    return values[first], 1


def _concat(
    graph: Graph, node: Node, parts: list[Value], origins: tuple[Origin, ...]
) -> Value | None:
    operands = {f"xs.{i}": value for i, value in enumerate(parts)}
    try:
        types = infer_result_types("concat", operands, node.attrs)
    except QirError:
        return None
    if types != (node.result.type,):
        return None
    return graph.add("concat", operands, node.attrs, types=types, origins=origins).result


def _operand_cut_out(graph: Graph, match: Match) -> Value | None:
    """Returns the operand of a concat that a slice takes out again."""
    node, joined = match.root, match["x"].node
    axis = joined.attrs["axis"]
    assert isinstance(axis, int)
    part = _slice_of(node.result, axis % node.result.type.rank)
    position = 0
    for value in joined.variadic("xs"):
        size = value.type.shape[axis]
        if part is None or not isinstance(size, int):
            return None
        if (part[1], part[2]) == (position, position + size) and size:
            return _if_same_type(value, node)
        position += size
    return None


def _flattened_concat(graph: Graph, match: Match) -> Value | None:
    """Returns one concat for a concat of concats along one axis."""
    node, values = match.root, match.root.variadic("xs")
    rank, axis = node.result.type.rank, node.attrs["axis"]
    assert isinstance(axis, int)
    parts: list[Value] = []
    origins: list[Origin] = []
    for value in values:
        inner = value.node
        inner_axis = inner.attrs["axis"] if inner.op == "concat" else None
        # An inner concat that others read would be computed twice.
        is_free = value.only_use is not None and not inner.schemes
        if isinstance(inner_axis, int) and inner_axis % rank == axis % rank and is_free:
            parts += inner.variadic("xs")
            origins += inner.origins
        else:
            parts.append(value)
    if len(parts) == len(values):
        return None
    return _concat(graph, node, parts, (*origins, *node.origins))


# -- casts ----------------------------------------------------------------------------------------


def represents_every(wide: DType, narrow: DType) -> bool:
    """Returns whether a type has every number of another, so that a cast to it loses nothing."""
    if wide == narrow:
        return True
    if STRING in (wide, narrow) or wide == BOOL:
        return False
    if narrow == BOOL:
        return wide.is_integer or wide.is_float
    if narrow.is_integer:
        low, high = narrow.bounds
        if wide.is_integer:
            return wide.bounds[0] <= low and high <= wide.bounds[1]
        return wide.is_float and max(-low, high) <= _EXACT_INTEGERS.get(wide.name, 0)
    return narrow.is_float and narrow.name in _CONTAINED_FLOATS.get(wide.name, ())


_EXACT_INTEGERS = {"bf16": 2**8, "f16": 2**11, "f32": 2**24, "f64": 2**53}
"""Up to where a float type has every whole number."""
_CONTAINED_FLOATS = {
    "f64": ("f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "f32": ("f16", "bf16", "f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "f16": ("f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "bf16": ("f8e4m3fn", "f8e5m2", "f4e2m1fn"),
}
"""The float types whose every number a float type has."""


def _cast_types(first: Node, second: Node) -> tuple[DType, DType, DType] | None:
    values = (_x(first), first.result, second.result)
    if any(v.type.quant for v in values):
        return None
    a, b, c = (v.type.dtype for v in values)
    return a, b, c


def _merged_casts(graph: Graph, match: Match) -> Value | None:
    """Returns one cast for two, or none, where the first loses nothing."""
    first, second = match["x"].node, match.root
    types = _cast_types(first, second)
    if types is None or not represents_every(types[1], types[0]):
        return None
    a, b, c = types
    if a == c:
        return _if_same_type(_x(first), second)
    # A float that is cut to an integer and then widened is not what one cast would make.
    is_same_kind = a == BOOL or (a.is_integer and b.is_integer) or (a.is_float and b.is_float)
    return _merged_op(graph, match, "cast", _x(first), {"to": c}) if is_same_kind else None


def _needless_cast(node: Node) -> Value | None:
    return None if _x(node).type.quant else _x(node)


# -- the patterns ---------------------------------------------------------------------------------


_X = Var("x")
_POSSIBLY_IDLE = (
    "identity",
    "dropout",
    "transpose",
    "pad",
    "tile",
    "flip",
    "slice",
    "expand",
    *RESHAPES,
)


def _produced_by(*ops: str) -> Var:
    """Returns what one of these ops has made; other users of it are no hindrance."""
    return _X.check(f"it is made by {' or '.join(ops)}", _made_by(*ops))


def _rewrite(name: str, term: Op, replace: Replacement, doc: str) -> Rewrite:
    return Rewrite(Pattern(name, (term,), codes=True, doc=doc), replace, Change.EXACT, doc)


_REWRITES = (
    _rewrite(
        "nothing-moves",
        op.any_of(*_POSSIBLY_IDLE)(_X, ...),
        _replace_by(_unmoved_operand),
        "nothing moves",
    ),
    _rewrite("one-part", op.concat(_X), _replace_by(_single_part), "one part is the whole"),
    _rewrite("same-type", op.cast(_X), _replace_by(_needless_cast), "it is of that type already"),
    _rewrite(
        "transposes",
        op.transpose(_produced_by("transpose")),
        _merged_transposes,
        "transposes as one",
    ),
    _rewrite(
        "reshapes",
        op.any_of(*RESHAPES)(_produced_by(*RESHAPES), ...),
        _merged_reshapes,
        "reshapes as one",
    ),
    _rewrite("pads", op.pad(_produced_by("pad")), _merged_pads, "pads as one"),
    _rewrite("slices", op.slice(_produced_by("slice")), _merged_slices, "slices as one"),
    _rewrite("parts-joined", op.concat(...), _rejoined_parts, "all parts are the whole"),
    _rewrite("concats", op.concat(...), _flattened_concat, "concats as one"),
    _rewrite(
        "part-of-concat",
        op.slice(_produced_by("concat")),
        _operand_cut_out,
        "a slice takes out what was joined",
    ),
    _rewrite("casts", op.cast(_produced_by("cast")), _merged_casts, "casts as one"),
    TRANSPOSES_APART,
    *IDENTITIES,
)


@dataclass(frozen=True)
class CleanMoves(PatternPass):
    """Removes identity, dropout, and moves, casts and sums without effect; merges two moves.

    Transposes are composed, also where ops on each element are between that nobody else reads;
    `layout` takes them through all others. Reshapes (also flatten, squeeze, unsqueeze) follow the
    last one where all sizes but one are known, what slices cut and concat joins again is what was
    cut. Casts go where the first has every number of the type before it. x * 1, x / 1, x - 0.0, x +
    -0.0 and -(-x) are x; x + 0.0 stays, since it makes 0.0 of -0.0. NaN stays NaN, whatever its
    bits.
    """

    name = "clean-moves"
    rewrites = _REWRITES

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a transpose and the one that undoes it."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %t = transpose(%x) {perm = (1, 0)} : 3x2xf32\n"
            "  %u = transpose(%t) {perm = (1, 0)} : 2x3xf32\n  %y = relu(%u) : 2x3xf32\n"
            "  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)
