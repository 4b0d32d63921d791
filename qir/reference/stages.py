"""The stage functions that profiles of several runtimes name, and those of rules without any."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.numerics import quantize
from qir.numerics.rounding import fma
from qir.numerics.stages import (
    BoundsStage,
    CurvesStage,
    Floats,
    ReluStage,
    StageFunction,
    SumBufferStage,
    SumStage,
)
from qir.reference.curves import STEPWISE_FUNCTIONS


def _add_in_two_roundings(sums: Floats, steps: Floats, factor: Floats) -> Floats:
    return np.asarray(sums + steps * factor)


def _add_in_one_rounding(sums: Floats, steps: Floats, factor: Floats) -> Floats:
    return fma(*np.broadcast_arrays(steps, factor, sums))


SHARED: Mapping[str, StageFunction] = {
    "relu.real": ReluStage("an activation bounds the quantized values"),
    "relu.zero_code": ReluStage("the same, for rounding is monotone and zero a quantized value"),
    "sum.real": SumStage("a product is added to dequantized sums", _add_in_two_roundings),
    "sum.fma": SumStage("the same, with one rounding", _add_in_one_rounding),
    "sum_reads.as_is": SumBufferStage("summand and sum have a type each"),
    "ends.quantize": BoundsStage("bounds are quantized as floats are", quantize),
    "curves.rounded": CurvesStage("each function is exact and rounded once"),
    "curves.steps": CurvesStage(
        "silu and mish are computed in float32, step by step, as vector code does",
        STEPWISE_FUNCTIONS,
    ),
}
