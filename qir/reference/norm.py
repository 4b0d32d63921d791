"""Normalization and softmax."""

from __future__ import annotations

import numpy as np

from qir.errors import OpError
from qir.reference.operands import Array, axis_of, floats, narrow, wide


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
    floats("batch_norm", x=x, gamma=gamma, beta=beta, mean=mean, var=var)
    axis = axis_of("batch_norm", axis, x.ndim)
    count = x.shape[axis]
    for slot, row in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        if row.shape != (count,):
            raise OpError(f"batch_norm: {slot} has {list(row.shape)}, x has {count} channels")
    shape = [count if i == axis else 1 for i in range(x.ndim)]
    g, b, m, v = (wide(row).reshape(shape) for row in (gamma, beta, mean, var))
    centred: Array = np.subtract(wide(x), m)
    slope: Array = np.divide(g, np.sqrt(np.add(v, eps)))
    out: Array = np.add(np.multiply(centred, slope), b)
    return np.asarray(narrow(out, x.dtype), order="C")


@np.errstate(all="ignore")
def softmax(x: Array, *, axis: int = -1) -> Array:
    """exp(x - max) / sum along the axis; NaN and +inf make their row NaN. OpError for misfits."""
    floats("softmax", x=x)
    axis = axis_of("softmax", axis, x.ndim)
    value = wide(x).astype(np.float64, copy=False)
    powers = np.exp(value - value.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(narrow(powers / powers.sum(axis=axis, keepdims=True), x.dtype), order="C")


@np.errstate(all="ignore")
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """x - max - log(sum of exp(x - max)) along the axis; OpError for misfits."""
    floats("log_softmax", x=x)
    axis = axis_of("log_softmax", axis, x.ndim)
    value = wide(x).astype(np.float64, copy=False)
    shifted = value - value.max(axis=axis, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(narrow(shifted - np.log(total), x.dtype), order="C")
