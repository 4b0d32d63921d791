"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qir.errors import OpError
from qir.reference.elementwise import cut_divide
from qir.reference.operands import Array, axis_of, element, narrow, wide


@np.errstate(all="ignore")
def reduce_mean(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
    """The mean over the axes, all of them if none is named; integers cut toward zero.

    Over nothing it is NaN, and for integers OpError; so are axes that x has not, or has twice.
    """
    kind = element("reduce_mean", "x", x)
    over = tuple(axis_of("reduce_mean", a, x.ndim) for a in axes) or tuple(range(x.ndim))
    if len(set(over)) < len(over):
        raise OpError(f"reduce_mean: axes {tuple(axes)} name one axis twice")
    count = math.prod(x.shape[a] for a in over)
    total = np.asarray(np.sum(wide(x), axis=over, keepdims=keep))
    if kind.is_float:
        return narrow(np.asarray(np.divide(total, np.float64(count))), x.dtype)
    if not count and total.size:
        raise OpError(f"reduce_mean: x {list(x.shape)} has nothing to average on axes {over}")
    return cut_divide(total, np.array(max(count, 1), total.dtype)).astype(x.dtype)
