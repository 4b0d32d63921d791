"""One field of the profile of Intel's extension changed: it is found, or listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from qir.errors import QirError
from qir.profiles import profile
from tests.differential.ipex import test_ipex_kernels as kernels
from tests.differential.ipex import test_ipex_programs as programs
from tests.differential.ipex import test_ipex_vectors as recorded
from tests.differential.ipex.programs import PROCESSORS
from tests.mutation.fields import Mutant, mutants
from tests.mutation.indistinct import all_found, none_found
from tests.overriding import override_profile

Check = Callable[[], None]
pytestmark = pytest.mark.long


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


def behind_pools() -> None:
    for case, window in (("relu", 1), ("flatten", 2)):
        recorded.test_what_stands_behind_a_pool_is_predicted(case, window)


def adaptive_pools() -> None:
    for case in ("adaptive_avgpool", "adaptive_avgpool1"):
        recorded.test_adaptive_pools_are_predicted(case)


def activations() -> None:
    recorded.test_layers_are_predicted("linear_gelu")


def predicted(*families: str) -> Check:
    def check() -> None:
        for family in families:
            programs.foresee(family)

    return check


CHECKS: Mapping[str, tuple[Check, ...]] = {
    "quantize": (edges,),
    "dequantize": (recorded.test_what_becomes_real_at_the_end_is_predicted,),
    "stage": (sums, layers, activations, predicted("sums", "linear", "conv2d")),
    "choose": (recorded.test_scales_are_chosen_as_by_its_observers,),
    "add": (predicted("added"), recorded.test_sums_of_codes_are_predicted),
    "avg_pool2d": (pools,),
    "max_pool2d": (pools, behind_pools),
    "relu": (behind_pools,),
    "adaptive_avg_pool": (adaptive_pools, predicted("means")),
    "matmul": (predicted("three_axes", "products", "attention"), layers, real_layers),
    "embedding_bag": (kernels.test_sums_of_rows_of_codes_are_predicted,),
    "requantize": (kernels.test_interactions_of_rows_are_predicted,),
    "lstm": (kernels.test_recurrent_layers_are_predicted,),
    "pad": (kernels.test_images_with_the_other_side_around_them_are_predicted,),
    "conv1d": (predicted("lines"),),
    "conv_transpose1d": (predicted("transposed"),),
    **dict.fromkeys(("softmax", "layer_norm"), (predicted("norms"),)),
}
"""What a change of a block, or of an op's rule, can show in; else the layers."""


_ONE_TAP = "a product has one tap"
_KEPT = "only weights of convolutions are halved"
_ALIKE: Mapping[str, str] = {
    "linear acc.pairs = saturate_taps": _ONE_TAP,
    "linear acc.pairs = saturate_rows": _ONE_TAP,
    "linear acc.pairs = halve_signed": _KEPT,
}
OTHERS: Mapping[str, Mapping[str, str]] = {
    "avx512": {
        **_ALIKE,
        "linear (data i8) acc.pairs = saturate_taps": _ONE_TAP,
        "linear (data i8) acc.pairs = saturate_rows": _ONE_TAP,
        "linear (data i8) acc.pairs = halve_signed": _KEPT,
        "matmul acc.pairs = saturate_taps": _ONE_TAP,
        "matmul acc.pairs = saturate_rows": _ONE_TAP,
        "matmul acc.pairs = halve_signed": _KEPT,
    },
    "avx2": _ALIKE,
}
"""Changes of rules for other processors that nothing finds, with the reason."""


def agrees(mutant: Mutant) -> None:
    """AssertionError where a changed profile gives what was not recorded."""
    key = mutant.ops[0] if mutant.ops else mutant.block
    for check in CHECKS.get(key, (layers, real_layers, predicted("lines", "products"))):
        check()


def test_a_changed_field_is_found_or_listed() -> None:
    all_found(recorded.PROFILE, agrees)


@pytest.mark.long
def test_what_is_listed_is_not_found() -> None:
    none_found(recorded.PROFILE, agrees)


def test_a_changed_field_of_a_processor_with_amx_is_found() -> None:
    left = set()
    for mutant in mutants(profile(recorded.PROFILE), isa="amx"):
        with override_profile(mutant.profile.on("amx")):
            try:
                kernels.foresee_layers()
                left.add(mutant.said)
            except (AssertionError, QirError):
                continue
    assert not left


@pytest.mark.parametrize("isa", PROCESSORS)
def test_a_changed_field_of_another_processor_is_found_or_listed(isa: str) -> None:
    left = set()
    for mutant in mutants(profile(recorded.PROFILE), isa=isa):
        with override_profile(mutant.profile.on(isa)):
            try:
                programs.foresee(isa)
                left.add(mutant.said)
            except (AssertionError, QirError):
                continue
    assert left == set(OTHERS[isa])
