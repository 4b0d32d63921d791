"""Attention and rotary embedding in float64; results are rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.ops.attention import SHOWN
from qir.reference.operands import Array, Float64Array, require_floats, round_to_dtype
from qir.reference.product import product
from qir.reference.recurrent import NOWHERE, Places


@np.errstate(all="ignore")
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_k: Array | None = None,
    past_v: Array | None = None,
    lengths: Array | None = None,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    left: int = -1,
    right: int = -1,
    precision: DType | None = None,
    present: bool = False,
    qk: str = "none",
    inner: Places = NOWHERE,
) -> tuple[Array, ...]:
    """Returns what q finds in v by way of k; raises OpError for operands that do not fit."""
    require_floats("attention", q=q, k=k, v=v, past_k=past_k, past_v=past_v)
    if qk not in SHOWN:
        raise OpError(f"attention: qk {qk!r} is none of {', '.join(SHOWN)}")
    has_three_axes = q.ndim == 3
    queries = _split_heads("attention", "q", q, heads)
    keys = _split_heads("attention", "k", k, kv_heads or (heads if has_three_axes else None))
    values = _split_heads("attention", "v", v, kv_heads or (heads if has_three_axes else None))
    past_length = 0 if past_k is None else past_k.shape[2]
    keys, values = _after_past("past_k", past_k, keys), _after_past("past_v", past_v, values)
    _check_shapes(queries, keys, values)
    # Grouped-query attention: `groups` heads of q share one head of k and v.
    groups = queries.shape[1] // keys.shape[1]
    factor = 1 / math.sqrt(queries.shape[3] or 1) if scale is None else scale
    raw = _grouped_product(queries, np.swapaxes(keys, 2, 3), groups) * factor
    raw = _round_at(inner, "scores", raw)
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    allowed = _window(raw.shape, past_length, lengths, causal=causal, left=left, right=right)
    masked = _apply_mask(capped, mask, allowed)
    probs = _round_at(inner, "probs", _softmax(masked, q, precision))
    context = _grouped_product(probs, values, groups)
    # Inputs of three axes have their heads side by side in the last axis, and so has the result.
    width = queries.shape[1] * values.shape[3]
    y = np.swapaxes(context, 1, 2).reshape(*q.shape[:2], width) if has_three_axes else context
    results = [y, *([keys, values] if present else [])]
    qk_results = {"raw": raw, "capped": capped, "masked": masked, "probs": probs}
    results += [qk_results[qk]] if qk in qk_results else []
    return tuple(np.asarray(round_to_dtype(data, q.dtype), order="C") for data in results)


def _round_at(inner: Places, place: str, x: Float64Array) -> Float64Array:
    rounded = inner.get(place)
    return x if rounded is None else rounded(x)


def _split_heads(op: str, slot: str, x: Array, heads: int | None) -> Float64Array:
    """x as [batch, heads, length, size]."""
    float64_x = x.astype(np.float64, copy=False)
    if x.ndim == 4 and heads in (None, x.shape[1]):
        return float64_x
    if x.ndim == 4:
        raise OpError(f"{op}: {slot} has {x.shape[1]} heads, not {heads}")
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise OpError(f"{op}: {slot} is {list(x.shape)}, which {heads} heads cannot share")
    return np.swapaxes(float64_x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)


def _after_past(slot: str, past: Array | None, x: Float64Array) -> Float64Array:
    """x after its past."""
    if past is None:
        return x
    shape = (*x.shape[:2], *past.shape[2:3], *x.shape[3:])
    if past.shape != shape:
        raise OpError(f"attention: {slot} is {list(past.shape)}, it should be {list(shape)}")
    return np.concatenate([past.astype(np.float64, copy=False), x], axis=2)


def _check_shapes(q: Float64Array, k: Float64Array, v: Float64Array) -> None:
    is_consistent = (
        q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
    )
    if not is_consistent or not k.shape[1] or q.shape[1] % k.shape[1]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise OpError(f"attention: q, k and v do not fit: {shapes} by batch, heads, length, size")


def _grouped_product(a: Float64Array, b: Float64Array, groups: int) -> Float64Array:
    """a @ b, each head of b serving so many heads of a."""
    if not groups:  # a has no head
        return product(a, b[:, :0]).astype(np.float64, copy=False)
    if groups == 1:
        return product(a, b).astype(np.float64, copy=False)
    batch, heads, rows, columns = a.shape
    by_group = a.reshape(batch, heads // groups, groups, rows, columns)
    products = product(by_group, b[:, :, None])
    return products.reshape(batch, heads, rows, b.shape[-1]).astype(np.float64, copy=False)


def _window(
    shape: tuple[int, ...],
    past_length: int,
    lengths: Array | None,
    *,
    causal: bool,
    left: int,
    right: int,
) -> NDArray[np.bool_]:
    """Returns which keys each query may look at, by their places alone."""
    batch, _, rows, total = shape
    counts = np.full(batch, total)
    start = np.full(batch, past_length)
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
            raise OpError(f"attention: lengths are {lengths.dtype} {list(lengths.shape)}")
        counts = lengths.astype(np.int64)
        # With lengths the queries are the last ones of each sequence.
        start = counts - rows
    query_places = (start[:, None] + np.arange(rows))[:, None, :, None]
    key_places = np.arange(total)
    allowed = np.broadcast_to(key_places < counts[:, None, None, None], (batch, 1, rows, total))
    if causal:
        allowed = allowed & (key_places <= query_places)
    if left >= 0:
        allowed = allowed & (key_places >= query_places - left)
    if right >= 0:
        allowed = allowed & (key_places <= query_places + right)
    return allowed


def _apply_mask(
    scores: Float64Array, mask: Array | None, allowed: NDArray[np.bool_]
) -> Float64Array:
    """Returns the scores with the mask added, -inf where nothing is looked at."""
    if mask is None:
        return np.where(allowed, scores, -np.inf)
    total = scores.shape[-1]
    missing_keys = total - mask.shape[-1] if mask.ndim else 0
    if missing_keys < 0:
        raise OpError(f"attention: mask is for {mask.shape[-1]} keys, there are {total}")
    if mask.dtype == np.bool_:
        bias = np.where(mask, 0.0, -np.inf)
    else:
        require_floats("attention", mask=mask)
        bias = mask.astype(np.float64, copy=False)
    if missing_keys:
        # Keys that the mask does not reach are not looked at.
        bias = np.pad(
            bias, [(0, 0)] * (bias.ndim - 1) + [(0, missing_keys)], constant_values=-np.inf
        )
    try:
        bias = np.broadcast_to(bias, scores.shape)
    except ValueError:
        shapes = f"{list(mask.shape)} does not broadcast to {list(scores.shape)}"
        raise OpError(f"attention: mask {shapes}") from None
    # Not scores + bias alone: an infinite score plus -inf would be NaN.
    return np.where(allowed & (bias != -np.inf), scores + bias, -np.inf)


def _softmax(scores: Float64Array, like: Array, precision: DType | None) -> Float64Array:
    """Each row's weights; a row of nothing but -inf has none."""
    is_narrower = precision is not None and precision.bits < 8 * like.dtype.itemsize
    if precision is not None and is_narrower:
        scores = round_to_dtype(scores, precision.carrier).astype(np.float64)
    row_max = scores.max(-1, keepdims=True, initial=-np.inf)
    # A row in which nothing may be looked at has maximum -inf: 0 is subtracted, and all weights are
    # 0.
    exponentials = np.exp(scores - np.where(row_max == -np.inf, 0.0, row_max))
    total = exponentials.sum(-1, keepdims=True)
    probs: Float64Array = exponentials / np.where(total == 0, 1.0, total)
    if precision is not None and is_narrower:
        probs = round_to_dtype(probs, precision.carrier).astype(np.float64)
    return probs


@np.errstate(all="ignore")
def rotary(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    *,
    interleaved: bool = False,
    dim: int = 0,
    heads: int | None = None,
) -> Array:
    """x with pairs of elements turned by their place; OpError for operands that do not fit."""
    require_floats("rotary", x=x, cos=cos, sin=sin)
    float64_x = _split_heads("rotary", "x", x, heads)
    rotated = dim or float64_x.shape[3]
    if rotated % 2 or rotated > float64_x.shape[3]:
        raise OpError(
            f"rotary: {rotated} of {float64_x.shape[3]} elements cannot be turned in pairs"
        )
    shape = (float64_x.shape[0], float64_x.shape[2], rotated // 2)
    c, s = (_angles(n, table, positions, shape) for n, table in (("cos", cos), ("sin", sin)))
    rotated_part, half = float64_x[..., :rotated], rotated // 2
    first = rotated_part[..., ::2] if interleaved else rotated_part[..., :half]
    second = rotated_part[..., 1::2] if interleaved else rotated_part[..., half:]
    # The rotation by the angle of each pair: (x, y) -> (x cos - y sin, x sin + y cos).
    pair = [c * first - s * second, s * first + c * second]
    new_part = (
        np.stack(pair, -1).reshape(rotated_part.shape) if interleaved else np.concatenate(pair, -1)
    )
    out = np.concatenate([new_part, float64_x[..., rotated:]], -1)
    out = np.swapaxes(out, 1, 2).reshape(x.shape) if x.ndim == 3 else out
    return np.asarray(round_to_dtype(out, x.dtype), order="C")


def _angles(
    slot: str, table: Array, positions: Array | None, shape: tuple[int, int, int]
) -> Float64Array:
    """Returns one number a pair, [batch, 1, length, pairs]."""
    float64_table = table.astype(np.float64, copy=False)
    if positions is None:
        angles = float64_table
    else:
        if positions.dtype.kind not in "iu" or positions.shape not in ((1,), shape[:2]):
            raise OpError(f"rotary: positions are {positions.dtype} {list(positions.shape)}")
        rows = positions.astype(np.int64)
        rows = rows if rows.ndim == 2 else np.broadcast_to(rows + np.arange(shape[1]), shape[:2])
        if float64_table.ndim != 2 or (
            rows.size and not 0 <= rows.min() <= rows.max() < len(float64_table)
        ):
            raise OpError(f"rotary: {slot} is {list(table.shape)}, positions are outside of it")
        angles = float64_table[rows]
    if angles.shape != shape:
        raise OpError(f"rotary: {slot} gives {list(angles.shape)}, it should be {list(shape)}")
    return angles[:, None]


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "attention": attention,
    "rotary": rotary,
}
