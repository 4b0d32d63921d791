"""Arithmetic that leaves every bit, and transposes with such ops between as each element has."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ledger import Change
from qir.rewrite.axis_permutation import composed, is_identity, permuted_type
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Op, Pattern, Var, op
from qir.rewrite.patterns.rewriting import Replacement, Rewrite

_CONVERSIONS = frozenset({"cast", "quantize", "dequantize"})
_BINARY_OPS = frozenset("add sub mul div pow min max".split())
"""Ops of two operands, of which one number may be the other."""
_MAX_OPS_BETWEEN = 64


def _is_constant_number(value: Value, *, wanted: int, negative: bool = False) -> bool:
    """Returns whether it is a constant of plain numbers, all of them that one, which no training
    moves."""
    constant = value.constant
    if (
        constant is None
        or constant.type.quant
        or value.node.attrs["trainable"]
        or not constant.contents.size
    ):
        return False
    element, data = constant.type.dtype, constant.data.reshape(-1)
    if not (element.is_float or element.is_integer) or data[0] != wanted:
        return False
    # Compared by the sign bit, since -0.0 == 0.0.
    signs = np.signbit(data.astype(np.float64)) if element.is_float else negative
    return bool(np.all(data == wanted) and np.all(signs == negative))


def _is_one(value: Value) -> bool:
    return _is_constant_number(value, wanted=1)


def _is_positive_zero(value: Value) -> bool:
    """0, and of floats the one without a sign: x - 0.0 is x, for -0.0 too."""
    return _is_constant_number(value, wanted=0)


def _is_negative_zero(value: Value) -> bool:
    """0, and of floats the one with a sign: -0.0 + 0.0 would be 0.0."""
    return _is_constant_number(value, wanted=0, negative=True)


def _unchanged_x(graph: Graph, match: Match) -> Value | None:
    """x, where the result has its type and is not quantized."""
    x, old = match["x"], match.results[0]
    return x if x.type == old.type and not x.type.quant else None


def _without_transposes(graph: Graph, match: Match) -> Value | None:
    """Returns the ops between two transposes, moved to the operand of the first one and permuted by
    both."""
    root = match.root
    between = _between(root.operands["x"])
    if not between:
        return None
    # `between` goes up from the second transpose, so its last op reads the first one.
    first = _flow(between[-1]).node
    perms = [_perm(node) for node in (first, root)]
    combined = composed(*perms)
    # Where another transpose stays, it must replace the first one and not stand next to it.
    if first.schemes or not (is_identity(combined) or first.result.only_use):
        return None
    value = first.operands["x"]
    moved_types = [permuted_type(node.result.type, perms[1]) for node in between]
    start_type = permuted_type(value.type, combined)
    if start_type is None or None in moved_types or moved_types[0] != root.result.type:
        return None
    if not is_identity(combined):
        origins = (*first.origins, *root.origins)
        attrs = {"perm": combined}
        value = graph.add(
            "transpose", {"x": value}, attrs, types=[start_type], origins=origins
        ).result
    for node, moved_type in zip(between[::-1], moved_types[::-1], strict=True):
        assert moved_type is not None
        old = _flow(node)
        operands = {
            slot: value if operand is old else operand for slot, operand in node.operands.items()
        }
        copied = graph.add(node.op, operands, node.attrs, types=[moved_type], origins=node.origins)
        if node.profile is not None:
            graph.set_profile(copied, node.profile)
        value = copied.result
    return value


def _perm(node: Node) -> tuple[int, ...]:
    perm = node.attrs["perm"]
    assert isinstance(perm, tuple)
    return tuple(axis for axis in perm if isinstance(axis, int))


def _between(value: Value) -> list[Node]:
    """Returns the ops from a value down to a transpose, each with one reader; none where one is
    another."""
    nodes: list[Node] = []
    while value.node.op != "transpose":
        node = value.node
        if (
            len(nodes) == _MAX_OPS_BETWEEN
            or value.only_use is None
            or not _is_elementwise_with_number(node)
        ):
            return []
        nodes.append(node)
        value = _flow(node)
    return nodes


def _flow(node: Node) -> Value:
    """Returns the operand that is no constant."""
    return next(v for v in node.operands.values() if v.constant is None)


def _is_elementwise_with_number(node: Node) -> bool:
    """Returns whether an op works on each element by itself, with no more than one number next to
    it."""
    if node.schemes or node.bodies or node.stages or node.inner or len(node.results) != 1:
        return False
    constants = [v.constant for v in node.operands.values()]
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    if constants.count(None) != 1 or any(
        quant and quant.granularity is not None for quant in quants
    ):
        return False
    if any(array is not None and array.type.rank for array in constants):
        return False
    is_elementwise = node.op in _CONVERSIONS or spec(node.op).traits.elementwise
    return is_elementwise if len(constants) == 1 else node.op in _BINARY_OPS and not any(quants)


# -- the rewrites ---------------------------------------------------------------------------------


_X = Var("x")
_ONE = Var("one").check("is 1 everywhere", _is_one)
_ZERO = Var("zero").check("is 0 everywhere, without a sign", _is_positive_zero)
_NEGATIVE_ZERO = Var("zero").check("is 0 everywhere, -0.0 where it is float", _is_negative_zero)
_BACK = Var("x").check(
    "elementwise ops without other uses make it from a transpose",
    lambda value: bool(_between(value)),
)


def _negates_exactly(value: Value) -> bool:
    """Returns whether negating twice gives it back: of integers, where the type fills its bytes."""
    element = value.type.dtype
    return element.is_float or (element.is_integer and element.bits in (8, 16, 32, 64))


def _rewrite(name: str, term: Op | Either, replace: Replacement, doc: str) -> Rewrite:
    return Rewrite(Pattern(name, (term,), doc=doc), replace, Change.EXACT, doc)


IDENTITIES = (
    _rewrite("times-one", op.mul(_X, _ONE) | op.div(_X, _ONE), _unchanged_x, "times 1 is nothing"),
    _rewrite(
        "plus-nothing", op.sub(_X, _ZERO) | op.add(_X, _NEGATIVE_ZERO), _unchanged_x, "adds nothing"
    ),
    _rewrite(
        "negated-twice",
        op.neg(op.neg(_X.check("fills its type", _negates_exactly))),
        _unchanged_x,
        "negated twice is itself",
    ),
)
"""Arithmetic that leaves every bit as it is."""
TRANSPOSES_APART = Rewrite(
    Pattern(
        "transposes-apart",
        (op.transpose(_BACK),),
        codes=True,
        doc="transposes as one, through ops on each element",
    ),
    _without_transposes,
    Change.EXACT,
    "transposes as one, through ops on each element",
)
