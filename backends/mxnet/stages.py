"""What MXNet's kernels do after a layer's sums, where no other runtime does so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qir.ir.dtype import I8, U8, DType
from qir.numerics import Rule
from qir.numerics.rounding import fma
from qir.numerics.stages import Floats, ReluStage, StageFunction, SumBufferStage, SumStage


def _dequantize_first(rule: Rule) -> Rule:
    """Returns the rule of sums that become floats, and quantized values after an activation."""
    return replace(rule, requant=replace(rule.requant, multiplier="divide"))


def _add_ratio(sums: Floats, steps: Floats, factor: Floats) -> Floats:
    if sums.dtype == np.float32:
        return fma(*np.broadcast_arrays(steps, factor, sums))
    return np.asarray(sums + steps * factor)


def _summand_storage(summand: DType, result: DType) -> DType:
    # The sum is written into the summand's buffer, so its storage decides, not the result's.
    return summand if {summand, result} == {U8, I8} else result


STAGES: Mapping[str, StageFunction] = {
    "relu.apart": ReluStage(
        "sums are dequantized first where an activation follows, which are brought to the "
        "result's scale after it",
        _dequantize_first,
    ),
    "sum.ratio": SumStage(
        "quantized values times the ratio of two scales are added in units of the result, in one "
        "rounding where that is float32",
        _add_ratio,
        in_result_units=True,
    ),
    "sum_reads.summand_type": SumBufferStage(
        "a sum is cut to the quantized values of the summand's type, u8 or i8, and their bytes are "
        "the result's",
        storage=_summand_storage,
    ),
}
"""The stage functions that profiles of MXNet name."""
