"""Arithmetic that leaves every bit, and transposes with such ops between as each element has."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ledger import Change
from qir.rewrite.axis_permutation import composed, still, turned_type
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Op, Pattern, Var, op
from qir.rewrite.patterns.rewriting import Replacement, Rewrite

_CODES = frozenset({"cast", "quantize", "dequantize"})
_BOTH = frozenset("add sub mul div pow min max".split())
"""Ops of two operands, of which one number may be the other."""
_LONGEST = 64


def _number(value: Value, *, wanted: int, minus: bool = False) -> bool:
    """Returns whether it is a constant of plain numbers, all of them that one, which no training
    moves."""
    held = value.constant
    if held is None or held.type.quant or value.node.attrs["trainable"] or not held.contents.size:
        return False
    kind, data = held.type.dtype, held.data.reshape(-1)
    if not (kind.is_float or kind.is_integer) or data[0] != wanted:
        return False
    signs = np.signbit(data.astype(np.float64)) if kind.is_float else minus
    return bool(np.all(data == wanted) and np.all(signs == minus))


def _one(value: Value) -> bool:
    return _number(value, wanted=1)


def _zero(value: Value) -> bool:
    """0, and of floats the one without a sign: x - 0.0 is x, for -0.0 too."""
    return _number(value, wanted=0)


def _no_addend(value: Value) -> bool:
    """0, and of floats the one with a sign: -0.0 + 0.0 would be 0.0."""
    return _number(value, wanted=0, minus=True)


def _kept(graph: Graph, match: Match) -> Value | None:
    """x, where the result has its type and is not quantized."""
    x, old = match["x"], match.results[0]
    return x if x.type == old.type and not x.type.quant else None


def _unturned(graph: Graph, match: Match) -> Value | None:
    """Returns the ops between two transposes, which are on what the first one takes, turned by
    both."""
    root = match.root
    between = _between(root.operands["x"])
    if not between:
        return None
    first = _flow(between[-1]).node
    perms = [_perm(node) for node in (first, root)]
    whole = composed(*perms)
    if first.schemes or not (still(whole) or first.result.only_use):
        return None
    value = first.operands["x"]
    kinds = [turned_type(node.result.type, perms[1]) for node in between]
    start = turned_type(value.type, whole)
    if start is None or None in kinds or kinds[0] != root.result.type:
        return None
    if not still(whole):
        origins = (*first.origins, *root.origins)
        attrs = {"perm": whole}
        value = graph.add("transpose", {"x": value}, attrs, types=[start], origins=origins).result
    for node, kind in zip(between[::-1], kinds[::-1], strict=True):
        assert kind is not None
        old = _flow(node)
        operands = {slot: value if held is old else held for slot, held in node.operands.items()}
        made = graph.add(node.op, operands, node.attrs, types=[kind], origins=node.origins)
        if node.profile is not None:
            graph.set_profile(made, node.profile)
        value = made.result
    return value


def _perm(node: Node) -> tuple[int, ...]:
    given = node.attrs["perm"]
    assert isinstance(given, tuple)
    return tuple(axis for axis in given if isinstance(axis, int))


def _between(value: Value) -> list[Node]:
    """Returns the ops from a value down to a transpose, each with one reader; none where one is
    another."""
    found: list[Node] = []
    while value.node.op != "transpose":
        node = value.node
        if len(found) == _LONGEST or value.only_use is None or not _each(node):
            return []
        found.append(node)
        value = _flow(node)
    return found


def _flow(node: Node) -> Value:
    """Returns the operand that is no constant."""
    return next(v for v in node.operands.values() if v.constant is None)


def _each(node: Node) -> bool:
    """Returns whether an op works on each element by itself, with no more than one number next to
    it."""
    if node.schemes or node.bodies or node.stages or node.inner or len(node.results) != 1:
        return False
    held = [v.constant for v in node.operands.values()]
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    if held.count(None) != 1 or any(quant and quant.granularity is not None for quant in quants):
        return False
    if any(array is not None and array.type.rank for array in held):
        return False
    alone = node.op in _CODES or spec(node.op).traits.elementwise
    return alone if len(held) == 1 else node.op in _BOTH and not any(quants)


# -- the rewrites ---------------------------------------------------------------------------------


_X = Var("x")
_ONE = Var("one").check("is 1 everywhere", _one)
_ZERO = Var("zero").check("is 0 everywhere, without a sign", _zero)
_MINUS = Var("zero").check("is 0 everywhere, -0.0 where it is float", _no_addend)
_BACK = Var("x").check(
    "elementwise ops without other uses make it from a transpose",
    lambda value: bool(_between(value)),
)


def _whole(value: Value) -> bool:
    """Returns whether negating twice gives it back: of integers, where the type fills its bytes."""
    kind = value.type.dtype
    return kind.is_float or (kind.is_integer and kind.bits in (8, 16, 32, 64))


def _rewrite(name: str, term: Op | Either, replace: Replacement, doc: str) -> Rewrite:
    return Rewrite(Pattern(name, (term,), doc=doc), replace, Change.EXACT, doc)


NOTHING = (
    _rewrite("times-one", op.mul(_X, _ONE) | op.div(_X, _ONE), _kept, "times 1 is nothing"),
    _rewrite("plus-nothing", op.sub(_X, _ZERO) | op.add(_X, _MINUS), _kept, "adds nothing"),
    _rewrite(
        "negated-twice",
        op.neg(op.neg(_X.check("fills its type", _whole))),
        _kept,
        "negated twice is itself",
    ),
)
"""Arithmetic that leaves every bit as it is."""
THROUGH = Rewrite(
    Pattern(
        "transposes-apart",
        (op.transpose(_BACK),),
        codes=True,
        doc="transposes as one, through ops on each element",
    ),
    _unturned,
    Change.EXACT,
    "transposes as one, through ops on each element",
)
