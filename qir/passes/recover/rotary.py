"""Rotary embedding: the halves or the neighbours of each head, turned by cosines and sines.

x is [batch, heads, length, size], or [sequences, length, size]; cosines and sines are along length
and size, the same for every head, for every batch or each. What a rotation by halves multiplies
with has two equal halves: a constant that has, or what is made of a concat of something with itself
by ops that go element by element or leave the last axis alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qir.ir.calls import infer_result_types
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.recover.builders import is_compatible, typed_constant
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Pattern, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite

_MAX_DEPTH = 24
_BY_ELEMENT = frozenset("cos sin neg cast identity".split())
"""Ops that make equal halves of equal halves."""


@pattern
def rotate_half(op: Ops, x: Var, cos: Var, sin: Var) -> Term:
    """x * cos + concat(-second half of x, first half of x) * sin."""
    first, second = op.slice(x).named("first"), op.slice(x).named("second")
    turned = op.concat(op.neg(second), first).named("halves")
    return op.add(op.mul(x, cos), op.mul(turned, sin))


@pattern
def rotate_half_of_split(op: Ops, x: Var, cos: Var, sin: Var) -> Term:
    """x * cos + concat(-b, a) * sin, where a and b are the parts of a split."""
    parts = op.split(x).named("parts")
    turned = op.concat(op.neg(parts[1]), parts[0]).named("halves")
    return op.add(op.mul(x, cos), op.mul(turned, sin))


@pattern
def rotate_parts(op: Ops, x: Var, cos: Var, sin: Var) -> Term:
    """concat(a * cos - b * sin, a * sin + b * cos), where a and b are the halves of x."""
    a, b = op.slice(x).named("first"), op.slice(x).named("second")
    low = op.sub(op.mul(a, cos), op.mul(b, sin))
    return op.concat(low, op.add(op.mul(a, sin), op.mul(b, cos))).named("halves")


@pattern
def rotate_parts_of_split(op: Ops, x: Var, cos: Var, sin: Var) -> Term:
    """The same, where a and b are the parts of a split."""
    parts = op.split(x).named("parts")
    low = op.sub(op.mul(parts, cos), op.mul(parts[1], sin))
    return op.concat(low, op.add(op.mul(parts, sin), op.mul(parts[1], cos))).named("halves")


@pattern
def rotate_neighbours(op: Ops, x: Var, cos: Var, sin: Var) -> Term:
    """a * cos - b * sin and a * sin + b * cos in turn, where a and b are every other element."""
    a, b = op.slice(x).named("first"), op.slice(x).named("second")
    low = op.unsqueeze(op.sub(op.mul(a, cos), op.mul(b, sin))).named("even")
    high = op.unsqueeze(op.add(op.mul(a, sin), op.mul(b, cos))).named("odd")
    return op.reshape(op.concat(low, high).named("pairs"), Var("sizes")).named("back")


def _head_size(match: Match) -> int:
    """Returns how many elements a head has; 0 where nobody knows, or it has no pairs."""
    x = match["x"].type
    # RotaryEmbedding takes (batch, places, heads * size) or (batch, heads, places, size).
    size = x.shape[-1] if x.rank in (3, 4) else None
    return size if isinstance(size, int) and size % 2 == 0 and size > 0 else 0


def _are_halves(match: Match) -> bool:
    """Returns whether the parts are the two halves of the last axis, and are joined along it."""
    size, rank = _head_size(match), match["x"].type.rank
    if not size or not _is_last_axis(match.node("halves"), "axis", rank):
        return False
    if "split" in match.name:
        parts = match.node("parts")
        return parts.attrs["sizes"] == (size // 2, size // 2) and _is_last_axis(parts, "axis", rank)
    return _slice_bounds(match) == ((0, size // 2, 1), (size // 2, size, 1))


def _are_pairs(match: Match) -> bool:
    """Returns whether the parts are every other element, put in turn again."""
    size, rank = _head_size(match), match["x"].type.rank
    pairs = match.node("pairs")
    joined = _is_last_axis(pairs, "axis", rank + 1)
    are_separated = all(match.node(n).attrs["axes"] in ((-1,), (rank,)) for n in ("even", "odd"))
    node = match.node("back")
    has_shape_of_x = (
        infer_result_types(node.op, node.operands, node.attrs)[0].shape == match["x"].type.shape
    )
    return (
        bool(size)
        and joined
        and are_separated
        and has_shape_of_x
        and _slice_bounds(match)
        == (
            (0, size, 2),
            (1, size, 2),
        )
    )


def _is_last_axis(node: Node, name: str, rank: int) -> bool:
    axis = node.attrs[name]
    return isinstance(axis, int) and axis % rank == rank - 1


def _slice_bounds(match: Match) -> tuple[tuple[int, ...] | None, ...]:
    """Start, end and step of the two slices along the last axis."""
    slices = (match.find("first"), match.find("second"))
    return tuple(None if node is None else _bounds(node, _head_size(match)) for node in slices)


def _bounds(node: Node, size: int) -> tuple[int, ...] | None:
    rank = node.result.type.rank
    names = ("starts", "ends", "axes", "steps")
    rows = [node.attrs[name] for name in names]
    if any(not isinstance(row, tuple) or len(row) != 1 for row in rows):
        return None
    start, end, axis, step = (row[0] for row in rows if isinstance(row, tuple))
    if not all(isinstance(n, int) for n in (start, end, axis, step)):
        return None
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert isinstance(axis, int)
    assert isinstance(step, int)
    if axis % rank != rank - 1 or step < 1:
        return None
    low, high, by = slice(start, end, step).indices(size)
    # Ends of n - 1 and n name the same elements of x[..., 0::2] where n is even.
    return (low, size if by == 2 and high >= size - 1 and low == 0 else high, by)


# -- cosines and sines ----------------------------------------------------------------------------


def _table_layout(
    value: Value, match: Match, *, full_width: bool, is_declared: bool = False
) -> str:
    """Returns how the numbers are: "rows" for one row a place, "batch" for those of each batch; or
    ""."""
    x, rank = match["x"].type, match["x"].type.rank
    size = _head_size(match) if full_width else _head_size(match) // 2
    shape = (1,) * (rank - value.type.rank) + tuple(value.type.shape)
    if len(shape) != rank or value.type.element != x.element or shape[-1] != size:
        return ""
    # Heads share one table; a table for each head is no operand of the op.
    if shape[-2] != x.shape[-2] or shape[-2] is None or (rank == 4 and shape[1] != 1):
        return ""
    if full_width and not _equal_halves(value, is_declared):
        return ""
    if shape[0] == 1:
        return "rows"
    return "batch" if rank == 4 and shape[0] == x.shape[0] and shape[0] is not None else ""


def _equal_halves(value: Value, is_declared: bool, depth: int = 0) -> bool:
    """Returns whether the first half of the last axis equals the second, by how it was made.

    `given`: an input has such halves, as the user says.
    """
    constant, node = value.constant, value.node
    if constant is not None:
        half = constant.contents.shape[-1] // 2
        return bool(np.array_equal(constant.data[..., :half], constant.data[..., half:]))
    rank = value.type.rank
    if node.op == "concat" and _is_last_axis(node, "axis", rank):
        # torch.cat((freqs, freqs), dim=-1): how most models make the two halves.
        both = node.variadic("xs")
        return len(both) == 2 and both[0] is both[1]
    if node.op == "input":
        return is_declared
    x = node.operands.get("x")
    if depth > _MAX_DEPTH or (x is None and node.op != "mul"):
        return False
    if node.op == "mul":
        # Some models multiply their cosines and sines by one number.
        a, b = node.operands["a"], node.operands["b"]
        table, factor = (
            (a, b) if b.constant is not None and b.constant.contents.size == 1 else (b, a)
        )
        is_number = factor.constant is not None and factor.constant.contents.size == 1
        return is_number and _equal_halves(table, is_declared, depth + 1)
    assert x is not None
    return _keeps_last_axis(node, x) and _equal_halves(x, is_declared, depth + 1)


def _keeps_last_axis(node: Node, x: Value) -> bool:
    """Returns whether an op leaves the elements of the last axis together, in their order."""
    result, rank = node.results[0].type, x.type.rank
    size = result.shape[-1] if result.rank else None
    if not rank or size is None or size != x.type.shape[-1]:
        return False
    if node.op in ("slice", "squeeze", "unsqueeze"):
        axes, full = node.attrs["axes"], result.rank if node.op == "unsqueeze" else rank
        named = [a % full for a in axes if isinstance(a, int)] if isinstance(axes, tuple) else []
        return bool(named) and full - 1 not in named
    if node.op == "gather":
        return not _is_last_axis(node, "axis", rank)
    if node.op == "transpose":
        perm = node.attrs["perm"]
        return isinstance(perm, tuple) and perm[-1] == rank - 1
    return node.op in _BY_ELEMENT or node.op in ("reshape", "expand")


def _table_operand(
    graph: Graph, value: Value, match: Match, layout: str, *, full_width: bool
) -> Value:
    """Returns the numbers as the op takes them: half of each row, without the axes of 1."""
    half, rank = _head_size(match) // 2, value.type.rank
    constant = value.constant
    if constant is not None:
        data = constant.data[..., :half]
        shape = data.shape[-2:] if layout == "rows" else (*data.shape[:1], *data.shape[2:])
        if shape == constant.contents.shape:
            return value
        data = data.reshape(shape)
        return typed_constant(
            data, value, graph, f"{value.name}.half" if full_width else value.name
        )
    if full_width:
        attrs = {"starts": (0,), "ends": (half,), "axes": (rank - 1,), "steps": (1,)}
        value = graph.add("slice", {"x": value}, attrs).result
    unit_axes = (1,) if layout == "batch" else tuple(range(rank - 2))
    return graph.add("squeeze", {"x": value}, {"axes": unit_axes}).result if unit_axes else value


def _replacement(
    *, full_width: bool, interleaved: bool, is_declared: bool
) -> Callable[[Graph, Match], Value]:
    def make(graph: Graph, match: Match) -> Value:
        layout = _table_layout(match["cos"], match, full_width=full_width, is_declared=is_declared)
        names = ("cos", "sin")
        operands = {"x": match["x"]}
        for name in names:
            operands[name] = _table_operand(
                graph, match[name], match, layout, full_width=full_width
            )
        # The op takes a table with a row for each position; all batches start at position 0.
        if layout == "rows":
            first = graph.fresh(f"{match.root.name}.first")
            operands["positions"] = graph.constant(np.zeros(1, np.int64), name=first)
        # With three axes the op asks how many heads the last one holds: here the rotation was of
        # all of it.
        heads = 1 if match["x"].type.rank == 3 else None
        return graph.add("rotary", operands, {"interleaved": interleaved, "heads": heads}).result

    return make


def _has_tables(*, full_width: bool, is_declared: bool) -> Callable[[Match], bool]:
    def fit(match: Match) -> bool:
        layouts = {
            _table_layout(match[n], match, full_width=full_width, is_declared=is_declared)
            for n in ("cos", "sin")
        }
        return (
            len(layouts) == 1
            and "" not in layouts
            and is_compatible(match["x"].type, match.results[0].type)
        )

    return fit


_CUT = ("the parts are the two halves of a head", "the parts are every other element of a head")
_EQUAL = "cos and sin are one row a place, of two equal halves"
_HALF = "cos and sin are one row a place"


def _rewrite(
    rotation: Pattern, *, full_width: bool, interleaved: bool = False, is_declared: bool = False
) -> Rewrite:
    with_parts = rotation.check(_CUT[interleaved], _are_pairs if interleaved else _are_halves)
    with_tables = with_parts.check(
        _EQUAL if full_width else _HALF, _has_tables(full_width=full_width, is_declared=is_declared)
    )
    make = _replacement(full_width=full_width, interleaved=interleaved, is_declared=is_declared)
    return Rewrite(with_tables, make, says="{nodes} is rotary")


REWRITES = (
    _rewrite(rotate_half, full_width=True),
    _rewrite(rotate_half_of_split, full_width=True),
    _rewrite(rotate_parts, full_width=False),
    _rewrite(rotate_parts_of_split, full_width=False),
    _rewrite(rotate_neighbours, full_width=False, interleaved=True),
)
DECLARED_REWRITES = (
    _rewrite(replace(rotate_half, name="rotate-half-given"), full_width=True, is_declared=True),
    _rewrite(
        replace(rotate_half_of_split, name="rotate-split-given"), full_width=True, is_declared=True
    ),
)
"""The same where inputs are said to have two equal halves."""
