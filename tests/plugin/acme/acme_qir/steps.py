"""A scale rule, which makes every scale a power of two, and a stage function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.numerics import Affine, Rule
from qir.numerics.scale_rules import ScaleRequest, ScaleRule
from qir.numerics.stages import BoundsStage

Array = NDArray[np.generic]


def _shift(low: Array, high: Array, request: ScaleRequest) -> tuple[Array, Array]:
    least = np.minimum(low.astype(np.float64), 0)
    most = np.maximum(high.astype(np.float64), 0)
    qmin, qmax = request.bounds
    if request.symmetric:
        step = np.maximum(-least, most) / ((qmax - qmin) // 2)
    else:
        step = (most - least) / (qmax - qmin)
    scale = np.exp2(np.ceil(np.log2(np.maximum(step, 2.0**-40))))
    middle = np.full(scale.shape, (qmin + qmax + 1) // 2)
    return scale, middle if request.symmetric else np.clip(
        qmin - np.rint(least / scale), qmin, qmax
    )


def _up(bounds: NDArray[np.float32], out: Affine, rule: Rule) -> Array:
    return np.asarray(np.ceil(bounds / out.scale) + out.zero)


SHIFT = ScaleRule(function=_shift, formula="scale = 2^ceil(log2((rmax-rmin)/255))")
STAGES = {"ends.acme_up": BoundsStage("bounds are rounded up", _up)}
