"""Mathematical functions of one operand, element by element."""

from __future__ import annotations

from qir.ir.ops.elementwise import float_unary, number_unary
from qir.ir.ops.spec import OpSpec, Slot, Traits

_X = (Slot("x"),)

_ON_FLOATS = {
    "exp": "e to the power x",
    "log": "natural logarithm",
    "sqrt": "square root",
    "reciprocal": "1 / x",
    "erf": "error function",
    "floor": "greatest whole number not above x",
    "ceil": "least whole number not below x",
    "round": "nearest whole number, ties to the even one",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tangent",
    "asin": "inverse sine",
    "acos": "inverse cosine",
    "atan": "inverse tangent",
    "sinh": "hyperbolic sine",
    "cosh": "hyperbolic cosine",
    "asinh": "inverse hyperbolic sine",
    "acosh": "inverse hyperbolic cosine",
    "atanh": "inverse hyperbolic tangent",
    "exp2": "2 to the power x",
    "expm1": "exp(x) - 1",
    "log1p": "log(1 + x)",
    "log2": "logarithm to the base 2",
    "log10": "logarithm to the base 10",
    "rsqrt": "1 / square root",
    "square": "x * x",
    "erfc": "1 - error function",
    "trunc": "x without its fraction",
}
_ON_NUMBERS = {
    "abs": "x without its sign",
    "neg": "-x",
    "sign": "-1, 0 or 1",
}

_DIVIDING = frozenset("reciprocal rsqrt log log2 log10".split())
_NEAR_ZERO = frozenset("sqrt square abs neg".split())


def _traits(name: str) -> Traits:
    if name in _DIVIDING:
        return Traits(elementwise=True, divisor="x")
    return Traits(elementwise=True, near_zero=name in _NEAR_ZERO)


OPS = (
    *(
        OpSpec(name, _X, float_unary, traits=_traits(name), doc=doc)
        for name, doc in _ON_FLOATS.items()
    ),
    *(
        OpSpec(name, _X, number_unary, traits=_traits(name), doc=doc)
        for name, doc in _ON_NUMBERS.items()
    ),
)
