"""How XNNPACK's kernels quantize the bounds of a clamping activation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.numerics import Affine, Rule
from qir.numerics.rounding import ROUNDINGS
from qir.numerics.stages import BoundsStage, Float32s, StageFunction


def _steps(bounds: Float32s, out: Affine) -> Float32s:
    with np.errstate(all="ignore"):
        return np.asarray(bounds / out.scale.astype(np.float32))


def _round_away_then_add(bounds: Float32s, out: Affine, _: Rule) -> NDArray[np.generic]:
    steps = _steps(bounds, out).astype(np.float64)
    return np.asarray(ROUNDINGS["away"](steps) + out.zero.astype(np.float32))


def _add_then_round_to_even(bounds: Float32s, out: Affine, _: Rule) -> NDArray[np.generic]:
    return np.asarray(np.rint(_steps(bounds, out) + out.zero.astype(np.float32)))


STAGES: Mapping[str, StageFunction] = {
    "ends.away": BoundsStage(
        "bounds are divided by the scale in float32 and rounded, halves away from zero, before the "
        "zero point is added",
        _round_away_then_add,
    ),
    "ends.even": BoundsStage(
        "bounds are divided by the scale in float32 and rounded to nearest even after the zero "
        "point is added",
        _add_then_round_to_even,
    ),
}
"""The stage functions that profiles of TensorFlow Lite and XNNPACK name."""
