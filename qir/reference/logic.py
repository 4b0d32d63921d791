"""Comparisons, logical and bitwise ops, and choosing by a condition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.errors import OpError
from qir.reference.operands import Array, common_dtype, require_floats, to_float64


def _check_broadcast(op: str, *operands: Array) -> None:
    try:
        np.broadcast_shapes(*(x.shape for x in operands))
    except ValueError:
        shapes = " and ".join(str(list(x.shape)) for x in operands)
        raise OpError(f"{op}: {shapes} do not broadcast") from None


def _compare(op: str, function: np.ufunc) -> Callable[[Array, Array], Array]:
    """NaN is unlike everything, and neither less nor greater; texts are compared by their bytes."""

    def run(a: Array, b: Array) -> Array:
        # Truth values and texts have equality but no order.
        has_equality = a.dtype == b.dtype and op in ("equal", "not_equal")
        if not (has_equality and a.dtype.kind in "bO"):
            common_dtype(op, a=a, b=b)
        _check_broadcast(op, a, b)
        if a.dtype.kind == "O":
            a, b = _texts(a), _texts(b)
        with np.errstate(invalid="ignore"):
            return np.asarray(function(a, b), np.bool_)

    return run


def _texts(x: Array) -> Array:
    # Texts are compared by their UTF-8 bytes, as runtimes store them.
    out = np.empty(x.shape, object)
    for at, text in np.ndenumerate(x):
        out[at] = text if isinstance(text, bytes) else str(text).encode(errors="surrogatepass")
    return out


def _for_dtypes(op: str, function: np.ufunc, letters: str, named: str) -> Callable[..., Array]:
    def run(*operands: Array, **slots: Array) -> Array:
        all_operands = (*operands, *slots.values())
        for x in all_operands:
            if x.dtype.kind not in letters or x.dtype != all_operands[0].dtype:
                kinds = " and ".join(str(g.dtype) for g in all_operands)
                raise OpError(f"{op}: operands are {kinds}, it takes {named}")
        _check_broadcast(op, *all_operands)
        return np.asarray(function(*all_operands))

    return run


def _logical(op: str, function: np.ufunc) -> Callable[..., Array]:
    return _for_dtypes(op, function, "b", "bool")


def _bits(op: str, function: np.ufunc) -> Callable[..., Array]:
    return _for_dtypes(op, function, "iu", "integers of one type")


def bit_shift(a: Array, b: Array, *, direction: str) -> Array:
    """Shifts the bits of a by b places; all are lost beyond its width. OpError for misfits."""
    if direction not in ("left", "right"):
        raise OpError(f"bit_shift: direction {direction!r} is neither left nor right")
    return _bits("bit_shift", np.left_shift if direction == "left" else np.right_shift)(a, b)


def is_nan(x: Array) -> Array:
    """Returns whether each element is not a number; raises OpError unless x is float."""
    require_floats("is_nan", x=x)
    return np.asarray(np.isnan(x), np.bool_)


def is_inf(x: Array, *, negative: bool = True, positive: bool = True) -> Array:
    """Returns whether each element is infinite on the sides that count; raises OpError unless x is
    float."""
    require_floats("is_inf", x=x)
    value = to_float64(x)
    low = np.equal(value, -np.inf) if negative else np.zeros(x.shape, np.bool_)
    high = np.equal(value, np.inf) if positive else np.zeros(x.shape, np.bool_)
    return np.asarray(low | high)


def where(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition holds, else b; OpError for misfits."""
    if condition.dtype != np.bool_ or a.dtype != b.dtype:
        kinds = f"condition is {condition.dtype}, a {a.dtype}, b {b.dtype}"
        raise OpError(f"where: {kinds}; it takes bool and one type")
    _check_broadcast("where", condition, a, b)
    return np.where(condition, a, b)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "equal": _compare("equal", np.equal),
    "not_equal": _compare("not_equal", np.not_equal),
    "less": _compare("less", np.less),
    "less_equal": _compare("less_equal", np.less_equal),
    "greater": _compare("greater", np.greater),
    "greater_equal": _compare("greater_equal", np.greater_equal),
    "logical_and": _logical("logical_and", np.logical_and),
    "logical_or": _logical("logical_or", np.logical_or),
    "logical_xor": _logical("logical_xor", np.logical_xor),
    "logical_not": _logical("logical_not", np.logical_not),
    "bit_and": _bits("bit_and", np.bitwise_and),
    "bit_or": _bits("bit_or", np.bitwise_or),
    "bit_xor": _bits("bit_xor", np.bitwise_xor),
    "bit_not": _bits("bit_not", np.invert),
    "bit_shift": bit_shift,
    "is_nan": is_nan,
    "is_inf": is_inf,
    "where": where,
}
