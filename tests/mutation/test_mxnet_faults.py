"""One field of MXNet's profile changed: a recorded result finds it, or it is listed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qir.numerics import profile
from tests.differential import test_mxnet as recorded
from tests.differential.recorded_mxnet import PROFILE
from tests.mutation.fields import Mutant, survivors
from tests.mutation.indistinct import same

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


@pytest.mark.slow
def test_a_changed_field_is_found_or_listed() -> None:
    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for name in FILES[key]:
            recorded.test_recorded_results_are_foreseen(name)
        if key == "choose":
            recorded.test_scales_are_chosen_from_ranges_of_six_decimals()

    left = survivors(profile(PROFILE), agrees)
    print("LEFT", PROFILE, sorted(left))
    assert left == same(PROFILE)
