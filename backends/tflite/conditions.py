"""The conditions under which kernels of TensorFlow Lite and XNNPACK compute a group."""

from __future__ import annotations

from collections.abc import Mapping

from qir.analysis.group_conditions import is_bias_in_accumulator_unit
from qir.ir.dtype import I32, I64
from qir.profiles.conditions import GroupCondition

CONDITIONS: Mapping[str, GroupCondition] = {
    "bias_wide": GroupCondition(
        "the bias is i32 or i64 with |scale - x*w| <= 1e-6 + 0.01*x*w, or a float constant",
        lambda match: is_bias_in_accumulator_unit(match, (I32, I64)),
    ),
}
"""The conditions that profiles of TensorFlow Lite name."""
