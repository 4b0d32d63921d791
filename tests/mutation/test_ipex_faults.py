"""One field of the profile of Intel's extension changed: it is found, or listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from qir.numerics import profile
from tests.differential import test_ipex_vectors as recorded
from tests.mutation.fields import Mutant, survivors

Check = Callable[[], None]


def layers() -> None:
    for case in ("conv", "linear", "conv_relu", "depthwise", "linear_wide"):
        recorded.test_layers_are_predicted(case)


def real_layers() -> None:
    for case in ("conv_float", "linear_float"):
        recorded.test_layers_with_real_results_are_predicted(case)


def edges() -> None:
    for case in ("quantize", "quantize_random"):
        recorded.test_what_is_quantized_at_the_edge_is_predicted(case)


def sums() -> None:
    for case in ("conv_add", "conv_add_relu"):
        recorded.test_sums_in_a_convolution_are_predicted(case)


def pools() -> None:
    for case in recorded.POOLS:
        recorded.test_pools_are_predicted(case)


def adaptive_pools() -> None:
    for case in ("adaptive_avgpool", "adaptive_avgpool1"):
        recorded.test_adaptive_pools_are_predicted(case)


def activations() -> None:
    recorded.test_layers_are_predicted("linear_gelu")


CHECKS: Mapping[str, tuple[Check, ...]] = {
    "quantize": (edges,),
    "dequantize": (recorded.test_what_becomes_real_at_the_end_is_predicted,),
    "stage": (sums, layers, activations),
    "choose": (recorded.test_scales_are_chosen_as_by_its_observers,),
    "add": (recorded.test_sums_of_codes_are_predicted,),
    "avg_pool2d": (pools,),
    "max_pool2d": (pools,),
    "adaptive_avg_pool": (adaptive_pools,),
}
"""What a change of a block, or of an op's rule, can show in; else the layers."""
_EXACT = "sums of these lengths are whole below 2^24"
SAME: Mapping[str, str] = {
    "acc.overflow = saturate": "no sum was long enough to overflow",
    "acc.type = f32": _EXACT,
    "acc.type = i64": _EXACT,
    "bias.compute = f64": "a real bias is added as it is",
    "choose.levels = ()": "half the span of all codes is that level",
    "choose.range = as_is": "every observed range holds zero",
    "choose.small = none": "no observed range was so small",
    "choose.store = f64": "a quotient made in float32 stays what it is",
    "choose.zero = best_end": "both ends gave one zero point",
    "choose.zero = round(qmin-min/s)": "no quotient lay on a tie",
    "dequantize.compute = f64": "one product, rounded once",
    "max_pool2d method = reals": "codes of one map pass through reals unchanged",
    "quantize.bounds = storage": "bounds are those of the storage",
    "quantize.by = gain": "1 / s is the gain of a type without a declared range",
    "quantize.clip = range_first": "where the ends are codes, it is the same",
    "quantize.clip = reals_first": "where the ends are codes, it is the same",
    "quantize.compute = f64_reciprocal": "1 / s in float64, rounded, is 1 / s in float32",
    "quantize.zero = pair": "where the zero point is whole, it is the same",
    "requant.clip = reals": "where the ends are codes, it is the same",
    "requant.order = (x*w)*gy": "the gain is 1 / s too",
    "stage.relu = zero_code": "rounding is monotone",
}
"""What nothing recorded tells apart, and why."""


@pytest.mark.slow
def test_a_changed_field_is_found_or_listed() -> None:
    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for check in CHECKS.get(key, (layers, real_layers)):
            check()

    assert survivors(profile(recorded.PROFILE), agrees) == set(SAME)
