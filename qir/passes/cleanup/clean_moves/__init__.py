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
from qir.passes.cleanup.clean_moves.identities import NOTHING, THROUGH
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Op, Pattern, Var, op
from qir.rewrite.patterns.rewriting import PatternPass, Replacement, Rewrite

_Find: TypeAlias = Callable[[Node], "Value | None"]


def _made_by(*ops: str) -> Callable[[Value], bool]:
    return lambda value: value.node.op in ops and not value.node.schemes


def _same(found: Value | None, node: Node) -> Value | None:
    """Returns the value, if it may stand for the node's result."""
    return found if found is not None and found.type == node.result.type else None


def _instead(find: _Find) -> Replacement:
    """Returns a value that is there already stands for what matched."""

    def replace(graph: Graph, match: Match) -> Value | None:
        return _same(find(match.root), match.root)

    return replace


def _again(
    graph: Graph,
    match: Match,
    made: str,
    x: Value,
    attrs: dict[str, Attr],
    more: Value | None = None,
) -> Value | None:
    """Returns one op in the place of two; None where it makes another type, as maps of integers may
    be."""
    node, inner = match.root, match["x"].node
    operands = {"x": x} if more is None else {"x": x, "shape": more}
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


def _alone(node: Node) -> Value | None:
    return node.operands["xs.0"] if len(node.operands) == 1 else None


def _unmoved(node: Node) -> Value | None:
    """x, where the op keeps every axis as it is."""
    x, attrs = _x(node), node.attrs
    match node.op:
        case "transpose":
            still = attrs["perm"] == tuple(range(x.type.rank))
        case "pad":
            still = not any(_wholes(attrs["pads"]))
        case "tile":
            still = all(count == 1 for count in _wholes(attrs["repeats"]))
        case "flip" | "unsqueeze":
            still = attrs["axes"] == ()
        case "flatten":
            still = x.type.rank == 2 and attrs["axis"] in (1, -1)
        case "slice":
            still = _takes_all(node)
        case _:
            still = True
    return x if still or _known_same(node) else None


def _wholes(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


def _takes_all(node: Node) -> bool:
    shape = _x(node).type.shape
    lists = (_wholes(node.attrs[n]) for n in ("axes", "starts", "ends", "steps"))
    for axis, start, end, step in zip(*lists, strict=True):
        size = shape[axis]
        far = size if isinstance(size, int) else 2**31 - 1
        if start != 0 or step != 1 or end < far:
            return False
    return True


def _known_same(node: Node) -> bool:
    """Returns whether a reshape or expand makes the shape that is there."""
    shape = _x(node).type.shape
    if node.op not in (*RESHAPES, "expand") or None in shape:
        return False
    return shape == node.result.type.shape


# -- two moves as one -----------------------------------------------------------------------------


def _permuted(graph: Graph, match: Match) -> Value | None:
    first, second = match["x"].node, match.root
    before = _wholes(first.attrs["perm"])
    perm = tuple(before[axis] for axis in _wholes(second.attrs["perm"]))
    if perm == tuple(range(len(perm))):
        return _same(_x(first), second)
    return _again(graph, match, "transpose", _x(first), {"perm": perm})


def _reshaped(graph: Graph, match: Match) -> Value | None:
    """Returns a reshape of what the first of two reshapes takes, where all sizes but one are
    known."""
    first, second = match["x"].node, match.root
    x, shape = _x(first), second.result.type.shape
    if x.type == second.result.type and (None not in shape or _undone(first, second)):
        return x
    constant = second.operands["shape"].constant if second.op == "reshape" else None
    if constant is not None and (0 not in constant.data or second.attrs["allow_zero"]):
        return _again(graph, match, "reshape", x, dict(second.attrs), second.operands["shape"])
    sizes = [d if isinstance(d, int) else -1 for d in shape]
    if sizes.count(-1) > 1 or 0 in sizes:
        return None
    return _new_reshape(graph, match, x, sizes)


def _new_reshape(graph: Graph, match: Match, x: Value, sizes: list[int]) -> Value | None:
    node = match.root
    wanted = dims.product(tuple(1 if s < 0 else s for s in sizes))
    whole = dims.divide(dims.product(x.type.shape), wanted)
    shape = tuple(whole if s < 0 else s for s in sizes)
    quant = x.type.quant
    element = x.type.dtype if quant is None else reshape(quant, x.type.shape, shape)
    if element is None or TensorType(shape, element) != node.result.type:
        return None
    known = graph.constant(np.array(sizes, np.int64), name=f"{node.name}.shape")
    origins = (*match["x"].node.origins, *node.origins)
    return graph.add(
        "reshape", {"x": x, "shape": known}, types=[node.result.type], origins=origins
    ).result


def _undone(first: Node, second: Node) -> bool:
    """Returns whether axes are put in and taken out at the same places."""
    pair = (first.op, second.op)
    if pair not in (("unsqueeze", "squeeze"), ("squeeze", "unsqueeze")):
        return False
    rank = max(first.result.type.rank, second.result.type.rank)
    axes = [{a % rank for a in _wholes(n.attrs["axes"])} for n in (first, second)]
    return axes[0] == axes[1] and bool(axes[0])


def _padded(graph: Graph, match: Match) -> Value | None:
    first, second = match["x"].node, match.root
    same = all(attributes.same(first.attrs[n], second.attrs[n]) for n in ("mode", "value"))
    pads = [_wholes(n.attrs["pads"]) for n in (first, second)]
    if not same or first.attrs["mode"] != "constant" or min(*pads[0], *pads[1]) < 0:
        return None
    both = tuple(a + b for a, b in zip(*pads, strict=True))
    return _again(graph, match, "pad", _x(first), {**second.attrs, "pads": both})


def _sliced(graph: Graph, match: Match) -> Value | None:
    """Returns one slice for two, along axes of known sizes."""
    first, second = match["x"].node, match.root
    x = _x(first)
    taken: dict[int, range] = {}
    for node in (first, second):
        lists = (_wholes(node.attrs[n]) for n in ("axes", "starts", "ends", "steps"))
        for axis, start, end, step in zip(*lists, strict=True):
            at, size = axis % x.type.rank, x.type.shape[axis]
            if not isinstance(size, int):
                return None
            held = taken.get(at, range(size))
            part = slice_indices(start, end, step, len(held))
            taken[at] = held[part.start : part.stop : part.step] if part else range(0)
    if any(not part or part.step < 0 for part in taken.values()):
        return None
    axes = tuple(sorted(taken))
    attrs: dict[str, Attr] = {
        "starts": tuple(taken[a].start for a in axes),
        "ends": tuple(taken[a][-1] + 1 for a in axes),
        "axes": axes,
        "steps": tuple(taken[a].step for a in axes),
    }
    return _again(graph, match, "slice", x, attrs)


# -- what is cut and joined -----------------------------------------------------------------------


def _part(value: Value, axis: int) -> tuple[Value, int, int] | None:
    """Returns what a value is a part of along an axis, from where, to before where."""
    node = value.node
    if node.op == "split" and isinstance(at := node.attrs["axis"], int):
        sizes = _wholes(node.attrs["sizes"])
        start = sum(sizes[: value.index])
        fits = at % value.type.rank == axis
        return (_x(node), start, start + sizes[value.index]) if fits else None
    if node.op != "slice" or len(_wholes(node.attrs["axes"])) != 1:
        return None
    x = _x(node)
    (at,), (start,), (end,), (step,) = (
        _wholes(node.attrs[n]) for n in ("axes", "starts", "ends", "steps")
    )
    size = x.type.shape[at]
    if at % x.type.rank != axis or step != 1 or not isinstance(size, int):
        return None
    part = slice_indices(start, end, step, size)
    return x, part.start, part.stop


def _joined(graph: Graph, match: Match) -> Value | None:
    """Returns what was cut, where a concat joins all its parts in their order, maybe next to
    others."""
    node, values = match.root, match.root.variadic("xs")
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    axis %= node.result.type.rank
    out: list[Value] = []
    at = 0
    while at < len(values):
        whole, count = _run(values, at, axis)
        out.append(whole)
        at += count
    if len(out) == 1:
        return _same(out[0], node)
    return None if len(out) == len(values) else _concat(graph, node, out, node.origins)


def _run(values: list[Value], first: int, axis: int) -> tuple[Value, int]:
    """Returns the value whose parts stand from here on, and how many they are; else the one that
    does."""
    found = _part(values[first], axis)
    if found is None or found[1] != 0 or len(values) == 1:
        return values[first], 1
    x, _, end = found
    for count, value in enumerate(values[first + 1 :], 2):
        found = _part(value, axis)
        if found is None or found[0] is not x or found[1] != end:
            break
        end = found[2]
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


def _cut_out(graph: Graph, match: Match) -> Value | None:
    """Returns the operand of a concat that a slice takes out again."""
    node, joined = match.root, match["x"].node
    axis = joined.attrs["axis"]
    assert isinstance(axis, int)
    part = _part(node.result, axis % node.result.type.rank)
    at = 0
    for value in joined.variadic("xs"):
        size = value.type.shape[axis]
        if part is None or not isinstance(size, int):
            return None
        if (part[1], part[2]) == (at, at + size) and size:
            return _same(value, node)
        at += size
    return None


def _flat(graph: Graph, match: Match) -> Value | None:
    """Returns one concat for a concat of concats along one axis."""
    node, values = match.root, match.root.variadic("xs")
    rank, axis = node.result.type.rank, node.attrs["axis"]
    assert isinstance(axis, int)
    out: list[Value] = []
    origins: list[Origin] = []
    for value in values:
        inner = value.node
        at = inner.attrs["axis"] if inner.op == "concat" else None
        alone = value.only_use is not None and not inner.schemes
        if isinstance(at, int) and at % rank == axis % rank and alone:
            out += inner.variadic("xs")
            origins += inner.origins
        else:
            out.append(value)
    if len(out) == len(values):
        return None
    return _concat(graph, node, out, (*origins, *node.origins))


# -- casts ----------------------------------------------------------------------------------------


def holds(wide: DType, narrow: DType) -> bool:
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
        return wide.is_float and max(-low, high) <= _WHOLE.get(wide.name, 0)
    return narrow.is_float and narrow.name in _FLOATS.get(wide.name, ())


_WHOLE = {"bf16": 2**8, "f16": 2**11, "f32": 2**24, "f64": 2**53}
"""Up to where a float type has every whole number."""
_FLOATS = {
    "f64": ("f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "f32": ("f16", "bf16", "f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "f16": ("f8e4m3fn", "f8e5m2", "f4e2m1fn"),
    "bf16": ("f8e4m3fn", "f8e5m2", "f4e2m1fn"),
}
"""The float types whose every number a float type has."""


def _kinds(first: Node, second: Node) -> tuple[DType, DType, DType] | None:
    values = (_x(first), first.result, second.result)
    if any(v.type.quant for v in values):
        return None
    a, b, c = (v.type.dtype for v in values)
    return a, b, c


def _cast(graph: Graph, match: Match) -> Value | None:
    """Returns one cast for two, or none, where the first loses nothing."""
    first, second = match["x"].node, match.root
    kinds = _kinds(first, second)
    if kinds is None or not holds(kinds[1], kinds[0]):
        return None
    a, b, c = kinds
    if a == c:
        return _same(_x(first), second)
    alike = a == BOOL or (a.is_integer and b.is_integer) or (a.is_float and b.is_float)
    return _again(graph, match, "cast", _x(first), {"to": c}) if alike else None


def _uncast(node: Node) -> Value | None:
    return None if _x(node).type.quant else _x(node)


# -- the patterns ---------------------------------------------------------------------------------


_X = Var("x")
_STILL = ("identity", "dropout", "transpose", "pad", "tile", "flip", "slice", "expand", *RESHAPES)


def _made(*ops: str) -> Var:
    """Returns what one of these ops has made; other users of it are no hindrance."""
    return _X.check(f"it is made by {' or '.join(ops)}", _made_by(*ops))


def _rewrite(name: str, term: Op, replace: Replacement, doc: str) -> Rewrite:
    return Rewrite(Pattern(name, (term,), codes=True, doc=doc), replace, Change.EXACT, doc)


_REWRITES = (
    _rewrite("nothing-moves", op.any_of(*_STILL)(_X, ...), _instead(_unmoved), "nothing moves"),
    _rewrite("one-part", op.concat(_X), _instead(_alone), "one part is the whole"),
    _rewrite("same-type", op.cast(_X), _instead(_uncast), "it is of that type already"),
    _rewrite("transposes", op.transpose(_made("transpose")), _permuted, "transposes as one"),
    _rewrite(
        "reshapes",
        op.any_of(*RESHAPES)(_made(*RESHAPES), ...),
        _reshaped,
        "reshapes as one",
    ),
    _rewrite("pads", op.pad(_made("pad")), _padded, "pads as one"),
    _rewrite("slices", op.slice(_made("slice")), _sliced, "slices as one"),
    _rewrite("parts-joined", op.concat(...), _joined, "all parts are the whole"),
    _rewrite("concats", op.concat(...), _flat, "concats as one"),
    _rewrite(
        "part-of-concat", op.slice(_made("concat")), _cut_out, "a slice takes out what was joined"
    ),
    _rewrite("casts", op.cast(_made("cast")), _cast, "casts as one"),
    THROUGH,
    *NOTHING,
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
