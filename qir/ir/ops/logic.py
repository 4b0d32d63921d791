"""Comparisons, logical and bitwise ops, and choosing by a condition."""

from __future__ import annotations

from qir.ir.dtype import BOOL, STRING
from qir.ir.ops.elementwise import (
    broadcast,
    require_floats,
    require_numbers,
    require_same_express,
    unary,
)
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def _compare(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "a", "b")
    if call.op not in ("equal", "not_equal") or call.express("a") not in (BOOL, STRING):
        # Only equality is defined for bool and string.
        require_numbers(call, "a")
    return (TensorType(broadcast(call, call.shape("a"), call.shape("b")), BOOL),)


def _booleans(call: Call) -> None:
    for slot in call.types:
        if call.express(slot) != BOOL:
            raise call.fail(f"{slot} is {call.express(slot)}, it takes bool")


def _logical(call: Call) -> tuple[TensorType, ...]:
    _booleans(call)
    return (TensorType(broadcast(call, call.shape("a"), call.shape("b")), BOOL),)


def _not(call: Call) -> tuple[TensorType, ...]:
    _booleans(call)
    return unary(call)


def _integers(call: Call) -> None:
    for slot in call.types:
        if not call.express(slot).is_integer:
            raise call.fail(f"{slot} is {call.express(slot)}, it takes integers")


def _bits(call: Call) -> tuple[TensorType, ...]:
    _integers(call)
    require_same_express(call, "a", "b")
    if "direction" in call.attrs and call.text_attr("direction") not in ("left", "right"):
        raise call.fail(f"direction {call.text_attr('direction')!r} is neither left nor right")
    shape = broadcast(call, call.shape("a"), call.shape("b"))
    return (TensorType(shape, call.express("a")),)


def _flipped(call: Call) -> tuple[TensorType, ...]:
    _integers(call)
    return unary(call)


def _test(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    return (TensorType(call.shape("x"), BOOL),)


def _where(call: Call) -> tuple[TensorType, ...]:
    if call.express("condition") != BOOL:
        raise call.fail(f"condition is {call.express('condition')}, it takes bool")
    require_same_express(call, "a", "b")
    shape = broadcast(call, *(call.shape(s) for s in ("condition", "a", "b")))
    return (TensorType(shape, call.express("a")),)


_AB = (Slot("a"), Slot("b"))
_X = (Slot("x"),)
_ELEMENTWISE = Traits(elementwise=True)
_COMMUTATIVE = Traits(commutative=True)

OPS = (
    OpSpec("equal", _AB, _compare, traits=_COMMUTATIVE, doc="a = b"),
    OpSpec("not_equal", _AB, _compare, traits=_COMMUTATIVE, doc="a and b differ"),
    OpSpec("less", _AB, _compare, doc="a < b"),
    OpSpec("less_equal", _AB, _compare, doc="a <= b"),
    OpSpec("greater", _AB, _compare, doc="a > b"),
    OpSpec("greater_equal", _AB, _compare, doc="a >= b"),
    OpSpec("logical_and", _AB, _logical, traits=_COMMUTATIVE, doc="both are true"),
    OpSpec("logical_or", _AB, _logical, traits=_COMMUTATIVE, doc="one or both are true"),
    OpSpec("logical_xor", _AB, _logical, traits=_COMMUTATIVE, doc="just one is true"),
    OpSpec("logical_not", _X, _not, traits=_ELEMENTWISE, doc="x is false"),
    OpSpec("bit_and", _AB, _bits, traits=_COMMUTATIVE, doc="bits that both have"),
    OpSpec("bit_or", _AB, _bits, traits=_COMMUTATIVE, doc="bits that one or both have"),
    OpSpec("bit_xor", _AB, _bits, traits=_COMMUTATIVE, doc="bits that just one has"),
    OpSpec("bit_not", _X, _flipped, traits=_ELEMENTWISE, doc="every bit turned over"),
    OpSpec(
        "bit_shift",
        _AB,
        _bits,
        (AttrSpec("direction", "text", required=True),),
        doc="the bits of a moved by b places, left or right",
    ),
    OpSpec("is_nan", _X, _test, traits=_ELEMENTWISE, doc="x is not a number"),
    OpSpec(
        "is_inf",
        _X,
        _test,
        (AttrSpec("negative", "bool", True), AttrSpec("positive", "bool", True)),
        _ELEMENTWISE,
        doc="x is infinite, on the sides that count",
    ),
    OpSpec(
        "where",
        (Slot("condition"), *_AB),
        _where,
        doc="a where the condition holds, else b",
    ),
)
