"""Ops that work element by element, with NumPy's broadcasting."""

from __future__ import annotations

from qir.ir.dims import Dim, Shape, may_be_equal
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType


def broadcast(call: Call, *shapes: Shape) -> Shape:
    """Returns the common shape; raises TypeRuleError where two sizes differ and neither is 1."""
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(_broadcast_dim(call, dims, shapes) for dims in zip(*padded, strict=True))


def _broadcast_dim(call: Call, dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    not_one = [d for d in dims if d != 1]
    if not not_one:
        return 1
    numbers = {d for d in not_one if isinstance(d, int)}
    if len(numbers) > 1:
        raise call.fail(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
    if numbers:
        return numbers.pop()
    # Two different symbolic sizes may be equal, or one of them 1: the result is unknown.
    return not_one[0] if all(d == not_one[0] for d in not_one) else None


def require_same_express(call: Call, *slots: str) -> None:
    """Raises TypeRuleError unless the operands are of one expressed type."""
    kinds = {call.express(s).name for s in slots if s in call.types}
    if len(kinds) > 1:
        raise call.fail(f"operands are of different types: {', '.join(sorted(kinds))}")


def _binary(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "a", "b")
    require_numbers(call, "a")
    return (TensorType(broadcast(call, call.shape("a"), call.shape("b")), call.express("a")),)


def unary(call: Call) -> tuple[TensorType, ...]:
    """Shape and expressed type of x."""
    return (TensorType(call.shape("x"), call.express("x")),)


def require_floats(call: Call, slot: str = "x") -> None:
    """Raises TypeRuleError unless the operand means floats."""
    if not call.express(slot).is_float:
        raise call.fail(f"{slot} is {call.express(slot)}, it takes floats")


def require_bias_type(call: Call, data: str, bias: str) -> None:
    """Raises TypeRuleError unless a bias is of the data's type; next to integers it may count their
    sums."""
    if bias in call.types and call.types[data].quant is None:
        require_same_express(call, data, bias)


def require_numbers(call: Call, slot: str = "x") -> None:
    """Raises TypeRuleError unless the operand means floats or integers."""
    kind = call.express(slot)
    if not (kind.is_float or kind.is_integer):
        raise call.fail(f"{slot} is {kind}, it takes floats or integers")


def number_unary(call: Call) -> tuple[TensorType, ...]:
    """Shape and type of x, which is floats or integers."""
    require_numbers(call)
    return unary(call)


def float_unary(call: Call) -> tuple[TensorType, ...]:
    """Shape and type of x, which is floats."""
    require_floats(call)
    return unary(call)


def _float_binary(call: Call) -> tuple[TensorType, ...]:
    require_floats(call, "a")
    return _binary(call)


def _power(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call, "a")
    require_numbers(call, "b")
    return (TensorType(broadcast(call, call.shape("a"), call.shape("b")), call.express("a")),)


def _variadic(call: Call) -> tuple[TensorType, ...]:
    parts = call.variadic("xs")
    if not parts:
        raise call.fail("it takes an operand or more")
    require_same_express(call, *call.types)
    require_numbers(call, "xs.0")
    return (TensorType(broadcast(call, *(p.shape for p in parts)), parts[0].express),)


def _float_variadic(call: Call) -> tuple[TensorType, ...]:
    types = _variadic(call)
    require_floats(call, "xs.0")
    return types


def keep_element(call: Call, element: QuantType) -> QuantType:
    """The quantized type stays as it is."""
    return element


_AB = (Slot("a"), Slot("b"))
_X = (Slot("x"),)
_XS = (Slot("xs", variadic=True),)
_ELEMENTWISE = Traits(elementwise=True)
_BOUNDS = Traits(elementwise=True, near_zero=True)

OPS = (
    OpSpec("add", _AB, _binary, traits=Traits(commutative=True), doc="a + b"),
    OpSpec("sub", _AB, _binary, doc="a - b"),
    OpSpec("mul", _AB, _binary, traits=Traits(commutative=True), doc="a * b"),
    OpSpec("div", _AB, _binary, traits=Traits(divisor="b"), doc="a / b"),
    OpSpec("relu", _X, number_unary, traits=_BOUNDS, doc="max(x, 0)"),
    OpSpec(
        "clip",
        _X,
        number_unary,
        (AttrSpec("min", "float"), AttrSpec("max", "float")),
        _BOUNDS,
        doc="min(max(x, min), max); a bound that is none does not bind",
    ),
    OpSpec("sigmoid", _X, float_unary, traits=_ELEMENTWISE, doc="1 / (1 + exp(-x))"),
    OpSpec(
        "pow", _AB, _power, traits=Traits(divisor="a"), doc="a to the power b, in the type of a"
    ),
    OpSpec(
        "mod",
        _AB,
        _binary,
        (AttrSpec("fmod", "bool", False),),
        doc="what division leaves, with the sign of b, or of a where fmod says so",
    ),
    OpSpec("floor_div", _AB, _binary, doc="greatest whole number not above a / b"),
    OpSpec("squared_difference", _AB, _binary, traits=Traits(commutative=True), doc="(a - b)^2"),
    OpSpec("atan2", _AB, _float_binary, doc="angle of the point that is at (b, a)"),
    OpSpec("min", _XS, _variadic, traits=Traits(commutative=True), doc="least of all operands"),
    OpSpec(
        "max",
        _XS,
        _variadic,
        traits=Traits(commutative=True, near_zero=True),
        doc="greatest of all operands",
    ),
    OpSpec("sum", _XS, _variadic, traits=Traits(commutative=True), doc="sum of all operands"),
    OpSpec(
        "mean", _XS, _float_variadic, traits=Traits(commutative=True), doc="mean of all operands"
    ),
)

__all__ = [
    "OPS",
    "broadcast",
    "float_unary",
    "keep_element",
    "may_be_equal",
    "number_unary",
    "require_bias_type",
    "require_floats",
    "require_numbers",
    "require_same_express",
    "unary",
]
