"""One field of MXNet's profile changed: a recorded result finds it, or it is listed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qir.numerics import profile
from tests.differential import test_mxnet as recorded
from tests.differential.recorded_mxnet import PROFILE
from tests.mutation.fields import Mutant, survivors

FILES: Mapping[str, tuple[str, ...]] = {
    "quantize": ("quantize_v2",),
    "dequantize": ("dequantize",),
    "requantize": ("requantize",),
    "conv2d": ("fused_conv", "conv"),
    "linear": ("fused_linear", "fused_linear_codes"),
    "add": ("add",),
    "concat": ("concat",),
    "batch_norm": ("batch_norm",),
    "avg_pool2d": ("pooling",),
    "max_pool2d": ("pooling", "act"),
    "choose": ("quantize_v2", "add", "concat", "fused_conv", "fused_linear"),
}
"""The recorded results that a change of a block, or of an op's rule, can show in."""
_ENDS = "where the ends are codes, it is the same"
_ZERO = "no code but 0 stands for zero"
_READ = "it is rounded to the sum's unit either way"
SAME: Mapping[str, str] = {
    "choose.range = widen_to_zero": "the farther end of a range does not move",
    "concat method = reals": "no recorded code lay so near a tie",
    "conv2d bias.domain = given_acc": _READ,
    "conv2d bias.domain = rescaled_acc": _READ,
    "conv2d choose.decimals = 3": "weights' ranges were multiples of an eighth",
    "conv2d requant.clip = reals": _ENDS,
    "conv2d requant.input = acc_then_bias": "sums were whole below 2^24",
    "conv2d requant.zero = after": _ZERO,
    "conv2d requant.zero = before": _ZERO,
    "dequantize.by = q*s+plus": _ZERO,
    "dequantize.by = q*s-z*s": _ZERO,
    "dequantize.compute = f64": "one product, rounded once",
    "linear bias.domain = given_acc": _READ,
    "linear bias.domain = rescaled_acc": _READ,
    "linear choose.decimals = 3": "weights' ranges were multiples of an eighth, or are declared",
    "linear requant.clip = reals": _ENDS,
    "linear requant.input = acc_then_bias": "sums were whole below 2^24",
    "linear requant.multiplier = f64": "a float32 factor in float64 is the same",
    "linear requant.multiplier = q15": "ranges were such that multipliers are powers of two",
    "linear requant.multiplier = q31": "sums were short enough to be exact either way",
    "linear requant.zero = after": _ZERO,
    "linear requant.zero = before": _ZERO,
    "max_pool2d method = reals": "codes of one map pass through reals unchanged",
    "quantize.bounds = storage": "bounds are those of the storage",
    "quantize.clip = range_first": _ENDS,
    "quantize.clip = reals_first": _ENDS,
    "quantize.compute = f64_reciprocal": "a quotient rounded from float64 is that of float32",
    "quantize.zero = after": _ZERO,
    "quantize.zero = before": _ZERO,
    "quantize.zero = fused": _ZERO,
}
"""What nothing recorded tells apart, and why."""


@pytest.mark.slow
def test_a_changed_field_is_found_or_listed() -> None:
    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for name in FILES[key]:
            recorded.test_recorded_results_are_foreseen(name)
        if key == "choose":
            recorded.test_scales_are_chosen_from_ranges_of_six_decimals()

    assert survivors(profile(PROFILE), agrees) == set(SAME)
