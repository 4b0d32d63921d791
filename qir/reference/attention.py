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
    flat = q.ndim == 3
    asked = _headed("attention", "q", q, heads)
    keys = _headed("attention", "k", k, kv_heads or (heads if flat else None))
    values = _headed("attention", "v", v, kv_heads or (heads if flat else None))
    before = 0 if past_k is None else past_k.shape[2]
    keys, values = _behind("past_k", past_k, keys), _behind("past_v", past_v, values)
    _fit(asked, keys, values)
    groups = asked.shape[1] // keys.shape[1]
    factor = 1 / math.sqrt(asked.shape[3] or 1) if scale is None else scale
    raw = _grouped(asked, np.swapaxes(keys, 2, 3), groups) * factor
    raw = _at(inner, "scores", raw)
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    allowed = _window(raw.shape, before, lengths, causal=causal, left=left, right=right)
    masked = _masked(capped, mask, allowed)
    probs = _at(inner, "probs", _softmax(masked, q, precision))
    made = _grouped(probs, values, groups)
    wide = asked.shape[1] * values.shape[3]
    y = np.swapaxes(made, 1, 2).reshape(*q.shape[:2], wide) if flat else made
    results = [y, *([keys, values] if present else [])]
    shown = {"raw": raw, "capped": capped, "masked": masked, "probs": probs}
    results += [shown[qk]] if qk in shown else []
    return tuple(np.asarray(round_to_dtype(data, q.dtype), order="C") for data in results)


def _at(inner: Places, place: str, x: Float64Array) -> Float64Array:
    rounded = inner.get(place)
    return x if rounded is None else rounded(x)


def _headed(op: str, slot: str, x: Array, heads: int | None) -> Float64Array:
    """x as [batch, heads, length, size]."""
    full = x.astype(np.float64, copy=False)
    if x.ndim == 4 and heads in (None, x.shape[1]):
        return full
    if x.ndim == 4:
        raise OpError(f"{op}: {slot} has {x.shape[1]} heads, not {heads}")
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise OpError(f"{op}: {slot} is {list(x.shape)}, which {heads} heads cannot share")
    return np.swapaxes(full.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)


def _behind(slot: str, past: Array | None, x: Float64Array) -> Float64Array:
    """x after its past."""
    if past is None:
        return x
    shape = (*x.shape[:2], *past.shape[2:3], *x.shape[3:])
    if past.shape != shape:
        raise OpError(f"attention: {slot} is {list(past.shape)}, it should be {list(shape)}")
    return np.concatenate([past.astype(np.float64, copy=False), x], axis=2)


def _fit(q: Float64Array, k: Float64Array, v: Float64Array) -> None:
    fits = q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3]
    if not fits or not k.shape[1] or q.shape[1] % k.shape[1]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise OpError(f"attention: q, k and v do not fit: {shapes} by batch, heads, length, size")


def _grouped(a: Float64Array, b: Float64Array, groups: int) -> Float64Array:
    """a @ b, each head of b serving so many heads of a."""
    if not groups:  # a has no head
        return product(a, b[:, :0]).astype(np.float64, copy=False)
    if groups == 1:
        return product(a, b).astype(np.float64, copy=False)
    batch, heads, rows, columns = a.shape
    parts = a.reshape(batch, heads // groups, groups, rows, columns)
    made = product(parts, b[:, :, None])
    return made.reshape(batch, heads, rows, b.shape[-1]).astype(np.float64, copy=False)


def _window(
    shape: tuple[int, ...],
    before: int,
    lengths: Array | None,
    *,
    causal: bool,
    left: int,
    right: int,
) -> NDArray[np.bool_]:
    """Returns which keys each query may look at, by their places alone."""
    batch, _, rows, total = shape
    counts = np.full(batch, total)
    start = np.full(batch, before)
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
            raise OpError(f"attention: lengths are {lengths.dtype} {list(lengths.shape)}")
        counts = lengths.astype(np.int64)
        start = counts - rows
    at = (start[:, None] + np.arange(rows))[:, None, :, None]
    key = np.arange(total)
    allowed = np.broadcast_to(key < counts[:, None, None, None], (batch, 1, rows, total))
    if causal:
        allowed = allowed & (key <= at)
    if left >= 0:
        allowed = allowed & (key >= at - left)
    if right >= 0:
        allowed = allowed & (key <= at + right)
    return allowed


def _masked(scores: Float64Array, mask: Array | None, allowed: NDArray[np.bool_]) -> Float64Array:
    """Returns the scores with the mask added, -inf where nothing is looked at."""
    if mask is None:
        return np.where(allowed, scores, -np.inf)
    total = scores.shape[-1]
    short = total - mask.shape[-1] if mask.ndim else 0
    if short < 0:
        raise OpError(f"attention: mask is for {mask.shape[-1]} keys, there are {total}")
    if mask.dtype == np.bool_:
        added = np.where(mask, 0.0, -np.inf)
    else:
        require_floats("attention", mask=mask)
        added = mask.astype(np.float64, copy=False)
    if short:
        added = np.pad(added, [(0, 0)] * (added.ndim - 1) + [(0, short)], constant_values=-np.inf)
    try:
        added = np.broadcast_to(added, scores.shape)
    except ValueError:
        shapes = f"{list(mask.shape)} does not broadcast to {list(scores.shape)}"
        raise OpError(f"attention: mask {shapes}") from None
    return np.where(allowed & (added != -np.inf), scores + added, -np.inf)


def _softmax(scores: Float64Array, like: Array, precision: DType | None) -> Float64Array:
    """Each row's weights; a row of nothing but -inf has none."""
    narrower = precision is not None and precision.bits < 8 * like.dtype.itemsize
    if precision is not None and narrower:
        scores = round_to_dtype(scores, precision.carrier).astype(np.float64)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    raised = np.exp(scores - np.where(most == -np.inf, 0.0, most))
    total = raised.sum(-1, keepdims=True)
    probs: Float64Array = raised / np.where(total == 0, 1.0, total)
    if precision is not None and narrower:
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
    full = _headed("rotary", "x", x, heads)
    turned = dim or full.shape[3]
    if turned % 2 or turned > full.shape[3]:
        raise OpError(f"rotary: {turned} of {full.shape[3]} elements cannot be turned in pairs")
    shape = (full.shape[0], full.shape[2], turned // 2)
    c, s = (_angles(n, table, positions, shape) for n, table in (("cos", cos), ("sin", sin)))
    part, half = full[..., :turned], turned // 2
    first = part[..., ::2] if interleaved else part[..., :half]
    second = part[..., 1::2] if interleaved else part[..., half:]
    pair = [c * first - s * second, s * first + c * second]
    rows = np.stack(pair, -1).reshape(part.shape) if interleaved else np.concatenate(pair, -1)
    out = np.concatenate([rows, full[..., turned:]], -1)
    out = np.swapaxes(out, 1, 2).reshape(x.shape) if x.ndim == 3 else out
    return np.asarray(round_to_dtype(out, x.dtype), order="C")


def _angles(
    slot: str, table: Array, positions: Array | None, shape: tuple[int, int, int]
) -> Float64Array:
    """Returns one number a pair, [batch, 1, length, pairs]."""
    full = table.astype(np.float64, copy=False)
    if positions is None:
        found = full
    else:
        if positions.dtype.kind not in "iu" or positions.shape not in ((1,), shape[:2]):
            raise OpError(f"rotary: positions are {positions.dtype} {list(positions.shape)}")
        at = positions.astype(np.int64)
        at = at if at.ndim == 2 else np.broadcast_to(at + np.arange(shape[1]), shape[:2])
        if full.ndim != 2 or (at.size and not 0 <= at.min() <= at.max() < len(full)):
            raise OpError(f"rotary: {slot} is {list(table.shape)}, positions are outside of it")
        found = full[at]
    if found.shape != shape:
        raise OpError(f"rotary: {slot} gives {list(found.shape)}, it should be {list(shape)}")
    return found[:, None]


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "attention": attention,
    "rotary": rotary,
}
