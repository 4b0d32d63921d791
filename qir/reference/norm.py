"""Normalization and softmax."""

from __future__ import annotations

import math

import numpy as np

from qir.errors import OpError
from qir.reference.operands import (
    Array,
    Float64Array,
    normalize_axis,
    require_floats,
    round_to_dtype,
    to_float64,
)
from qir.reference.sum_order import lane_sum


@np.errstate(all="ignore")
def batch_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    var: Array,
    *,
    eps: float = 1e-5,
    axis: int = 1,
) -> Array:
    """(x - mean) / sqrt(var + eps) * gamma + beta, channel by channel; OpError for misfits."""
    require_floats("batch_norm", x=x, gamma=gamma, beta=beta, mean=mean, var=var)
    axis = normalize_axis("batch_norm", axis, x.ndim)
    count = x.shape[axis]
    for slot, row in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        if row.shape != (count,):
            raise OpError(f"batch_norm: {slot} has {list(row.shape)}, x has {count} channels")
    shape = [count if i == axis else 1 for i in range(x.ndim)]
    g, b, m, v = (to_float64(row).reshape(shape) for row in (gamma, beta, mean, var))
    centered: Array = np.subtract(to_float64(x), m)
    slope: Array = np.divide(g, np.sqrt(np.add(v, eps)))
    out: Array = np.add(np.multiply(centered, slope), b)
    return np.asarray(round_to_dtype(out, x.dtype), order="C")


@np.errstate(all="ignore")
def softmax(x: Array, *, axis: int = -1) -> Array:
    """exp(x - max) / sum along the axis; NaN and +inf make their row NaN. OpError for misfits."""
    require_floats("softmax", x=x)
    axis = normalize_axis("softmax", axis, x.ndim)
    value = to_float64(x).astype(np.float64, copy=False)
    # Subtracting the maximum keeps exp from overflowing and changes no quotient.
    powers = np.exp(value - value.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(
        round_to_dtype(powers / powers.sum(axis=axis, keepdims=True), x.dtype), order="C"
    )


@np.errstate(all="ignore")
def lp_normalize(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x / the p-norm of its axis, 0 where that is 0; OpError for misfits."""
    require_floats("lp_normalize", x=x)
    axis = normalize_axis("lp_normalize", axis, x.ndim)
    if p not in (1, 2):
        raise OpError(f"lp_normalize: p is {p}, it must be 1 or 2")
    value = to_float64(x).astype(np.float64, copy=False)
    sums = np.sum(np.abs(value) ** p, axis=axis, keepdims=True)
    length = sums if p == 1 else np.sqrt(sums)
    return np.asarray(
        round_to_dtype(np.where(length == 0, 0.0, value / length), x.dtype), order="C"
    )


@np.errstate(all="ignore")
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """x - max - log(sum of exp(x - max)) along the axis; OpError for misfits."""
    require_floats("log_softmax", x=x)
    axis = normalize_axis("log_softmax", axis, x.ndim)
    value = to_float64(x).astype(np.float64, copy=False)
    shifted = value - value.max(axis=axis, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(round_to_dtype(shifted - np.log(total), x.dtype), order="C")


@np.errstate(all="ignore")
def layer_norm(
    x: Array, gamma: Array, beta: Array | None = None, *, axis: int = -1, eps: float = 1e-5
) -> Array:
    """(x - mean) / sqrt(variance + eps) over the axes from `axis` on, times gamma, plus beta.

    Raises OpError where gamma or beta does not broadcast to those axes, or for no floats.
    """
    require_floats("layer_norm", x=x, gamma=gamma, beta=beta)
    first_axis = normalize_axis("layer_norm", axis, x.ndim)
    result = np.multiply(
        _normalize(to_float64(x), first_axis, eps), _broadcast_row("layer_norm", "gamma", gamma, x)
    )
    if beta is not None:
        result = np.add(result, _broadcast_row("layer_norm", "beta", beta, x))
    return round_to_dtype(np.asarray(result), x.dtype)


@np.errstate(all="ignore")
def rms_norm(x: Array, gamma: Array, *, axis: int = -1, eps: float = 1e-5) -> Array:
    """x / sqrt(mean of squares + eps) over the axes from `axis` on, times gamma; OpError for
    misfits."""
    require_floats("rms_norm", x=x, gamma=gamma)
    axes = tuple(range(normalize_axis("rms_norm", axis, x.ndim), x.ndim))
    value = to_float64(x).astype(np.float64, copy=False)
    root_mean_square = np.sqrt(np.mean(value * value, axis=axes, keepdims=True) + eps)
    return round_to_dtype(
        np.asarray(value / root_mean_square * _broadcast_row("rms_norm", "gamma", gamma, x)),
        x.dtype,
    )


@np.errstate(all="ignore")
def group_norm(x: Array, gamma: Array, beta: Array, *, groups: int, eps: float = 1e-5) -> Array:
    """Each group of channels to mean 0 and variance 1, times gamma, plus beta, which are one
    number a channel; OpError for misfits."""
    require_floats("group_norm", x=x, gamma=gamma, beta=beta)
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise OpError(f"group_norm: x {list(x.shape)} does not split into {groups} groups")
    return _normalize_groups("group_norm", x, gamma, beta, groups, eps)


@np.errstate(all="ignore")
def instance_norm(x: Array, gamma: Array, beta: Array, *, eps: float = 1e-5) -> Array:
    """Each channel to mean 0 and variance 1, times gamma, plus beta; OpError for misfits."""
    require_floats("instance_norm", x=x, gamma=gamma, beta=beta)
    if x.ndim < 3:
        raise OpError(f"instance_norm: x {list(x.shape)} has no axes after the channels")
    return _normalize_groups("instance_norm", x, gamma, beta, x.shape[1], eps)


@np.errstate(all="ignore")
def lrn(
    x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Array:
    """x / (bias + alpha / size * squares of the `size` channels around) ^ beta; OpError for
    misfits."""
    require_floats("lrn", x=x)
    if x.ndim < 3 or size < 1:
        raise OpError(f"lrn: size {size}, x {list(x.shape)}")
    value = to_float64(x).astype(np.float64, copy=False)
    # An even size has one channel more after than before, as ONNX's LRN.
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    count, total = x.shape[1], np.zeros(x.shape)
    for channel in range(count):
        around = value[:, max(channel - before, 0) : channel + after + 1]
        total[:, channel] = np.sum(around * around, axis=1)
    return round_to_dtype(np.asarray(value / (bias + alpha / size * total) ** beta), x.dtype)


def _normalize(x: Array, first_axis: int, eps: float) -> Float64Array:
    """Mean 0 and variance 1 over the axes from `first_axis` on; sums as `lane_sum` adds them."""
    count = math.prod(x.shape[first_axis:])
    value = x.astype(np.float64, copy=False).reshape(*x.shape[:first_axis], count)
    # Two passes, the mean first: E[x^2] - E[x]^2 would cancel.
    centered = value - lane_sum(value) / count
    normalized = centered / np.sqrt(lane_sum(centered * centered) / count + eps)
    return np.asarray(normalized.reshape(x.shape))


def _normalize_groups(
    op: str, x: Array, gamma: Array, beta: Array, groups: int, eps: float
) -> Array:
    count = x.shape[1]
    for slot, row in (("gamma", gamma), ("beta", beta)):
        if row.shape != (count,):
            raise OpError(f"{op}: {slot} has {list(row.shape)}, x has {count} channels")
    group_size = math.prod(x.shape[1:]) // max(groups, 1)
    by_group = to_float64(x).reshape(x.shape[0], groups, group_size)
    normalized = _normalize(by_group, 2, eps).reshape(x.shape)
    shape = (count, *(1,) * (x.ndim - 2))
    return round_to_dtype(
        np.add(
            np.multiply(normalized, to_float64(gamma).reshape(shape)),
            to_float64(beta).reshape(shape),
        ),
        x.dtype,
    )


def _broadcast_row(op: str, slot: str, row: Array, x: Array) -> Float64Array:
    try:
        np.broadcast_to(row, x.shape)
    except ValueError:
        raise OpError(
            f"{op}: {slot} {list(row.shape)} does not broadcast to {list(x.shape)}"
        ) from None
    return to_float64(row).astype(np.float64, copy=False)
