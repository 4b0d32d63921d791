"""Matrix products."""

from __future__ import annotations

import numpy as np

from qir.errors import OpError
from qir.reference.operands import Array, common_dtype, require_rank, round_to_dtype, to_float64
from qir.reference.product import product


@np.errstate(all="ignore")
def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Array:
    """a @ b + bias by NumPy's rules, the last two axes swapped first; OpError for misfits."""
    common_dtype("matmul", a=a, b=b, bias=bias)
    if not a.ndim or not b.ndim:
        raise OpError(f"matmul: {'b' if a.ndim else 'a'} is a scalar")
    left, right = _transpose_if(to_float64(a), trans_a), _transpose_if(to_float64(b), trans_b)
    is_row, is_column = left.ndim == 1, right.ndim == 1
    # NumPy's rule: a vector counts as one row on the left, one column on the right.
    left = left[None] if is_row else left
    right = right[:, None] if is_column else right
    _check_inner_sizes("matmul", left, right)
    try:
        np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise OpError(
            f"matmul: the leading axes of {list(a.shape)} and {list(b.shape)} do not broadcast"
        ) from None
    out = product(left, right)
    out = out[..., 0, :] if is_row else out
    out = out[..., 0] if is_column else out
    return _finish("matmul", "bias", out, bias, a)


@np.errstate(all="ignore")
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Array:
    """alpha * a @ b + beta * c; c is not read where beta is 0. OpError for misfits."""
    kind = common_dtype("gemm", a=a, b=b, c=c)
    require_rank("gemm", "a", a, 2)
    require_rank("gemm", "b", b, 2)
    left, right = _transpose_if(to_float64(a), trans_a), _transpose_if(to_float64(b), trans_b)
    _check_inner_sizes("gemm", left, right)
    out = product(left, right)
    if not kind.is_float and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise OpError(f"gemm: alpha {alpha} and beta {beta} must be whole numbers for {kind}")
    out = _scale_product(out, alpha)
    # BLAS's rule: with beta 0 a NaN or infinity in c does not count.
    addend = None if c is None or beta == 0 else _scale_product(to_float64(c), beta)
    return _finish("gemm", "c", out, addend, a)


@np.errstate(all="ignore")
def linear(x: Array, w: Array, bias: Array | None = None) -> Array:
    """x @ w.T + bias with w [out, in], over any leading axes of x; OpError for misfits."""
    common_dtype("linear", x=x, w=w, bias=bias)
    require_rank("linear", "w", w, 2)
    if not x.ndim:
        raise OpError("linear: x is a scalar")
    if x.shape[-1] != w.shape[1]:
        raise OpError(f"linear: x has {x.shape[-1]} features, w wants {w.shape[1]}")
    count = x.size // x.shape[-1] if x.shape[-1] else int(np.prod(x.shape[:-1]))
    out = product(to_float64(x).reshape(count, x.shape[-1]), to_float64(w).T)
    return _finish("linear", "bias", out.reshape(*x.shape[:-1], len(w)), bias, x)


def _transpose_if(m: Array, turn: bool) -> Array:
    return m.swapaxes(-1, -2) if turn and m.ndim > 1 else m


def _check_inner_sizes(op: str, a: Array, b: Array) -> None:
    if a.shape[-1] != b.shape[-2]:
        raise OpError(f"{op}: a has {a.shape[-1]} columns, b has {b.shape[-2]} rows")


def _scale_product(m: Array, factor: float) -> Array:
    if factor == 1:
        return m
    if m.dtype == np.float64:
        out: Array = np.multiply(m, factor)
        return out
    # A whole factor outside the integer type still means its value there: wrap it.
    bits = 8 * m.dtype.itemsize
    wrapped = np.array(int(factor) % (1 << bits), np.dtype(f"u{m.dtype.itemsize}"))
    scaled: Array = np.multiply(m, wrapped.view(m.dtype))
    return scaled


def _finish(op: str, slot: str, out: Array, addend: Array | None, like: Array) -> Array:
    """Returns the sum rounded to the type of the operands; raises OpError if the shift does not
    fit."""
    if addend is not None:
        try:
            fits = np.broadcast_shapes(out.shape, addend.shape) == out.shape
        except ValueError:
            fits = False
        if not fits:
            raise OpError(
                f"{op}: {slot} {list(addend.shape)} does not broadcast to {list(out.shape)}"
            )
        total: Array = np.add(out, to_float64(addend))
        out = total
    return np.asarray(round_to_dtype(out, like.dtype), order="C")
