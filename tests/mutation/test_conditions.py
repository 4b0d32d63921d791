"""One condition of a rule, or one field of a group, changed: it is found, or listed with the
reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qir.profiles import profile
from tests.backends.mxnet.networks import NETWORKS
from tests.differential import test_recorded_profiles as pairs
from tests.differential.ipex import test_ipex_groups as ipex_groups
from tests.differential.ipex import test_ipex_kernels as kernels
from tests.differential.ipex import test_ipex_programs as programs
from tests.differential.ipex import test_ipex_vectors as ipex
from tests.differential.ipex.programs import FAMILIES, PROCESSORS
from tests.differential.mxnet import test_mxnet as mxnet
from tests.differential.mxnet import test_mxnet_groups as mxnet_groups
from tests.differential.mxnet import test_mxnet_written as mxnet_written
from tests.differential.mxnet.recorded import PREDICTED
from tests.differential.mxnet.recorded import PROFILE as MXNET
from tests.differential.onnxruntime import test_qonnx_vectors as qonnx
from tests.mutation import test_native_faults as native
from tests.mutation.conditions import SAME, Asks, all_found, asks, changes, none_found, told_apart
from tests.mutation.fields import Mutant
from tests.mutation.replay import Replay
from tests.mutation.test_ipex_faults import CHECKS, layers, real_layers
from tests.mutation.test_native_conditions import NAMES as NATIVE
from tests.mutation.test_onnxruntime_conditions import NAMES as ONNXRUNTIME
from tests.mutation.test_tensorflow_conditions import NAMES as TENSORFLOW
from tests.mutation.test_tflite_conditions import NAMES as TFLITE
from tests.overriding import override_profile

pytestmark = pytest.mark.slow
Agrees = Callable[[Mutant], None]


def mxnet_agrees() -> Agrees:
    """Whether a changed profile still gives, groups and claims what was recorded of MXNet."""
    right = profile(MXNET)
    with asks(right.name) as held:
        for name in PREDICTED:
            mxnet.test_recorded_results_are_predicted(name)

    def agrees(mutant: Mutant) -> None:
        other = told_apart(held, right, mutant.profile)
        if mutant.block == "group":
            for name in mxnet_groups.HELD:
                mxnet_groups.agree(name)
            mxnet_groups.test_what_gives_codes_of_another_range_is_no_kernel_on_codes()
            mxnet_groups.test_means_of_whole_images_are_kernels_where_they_keep_the_range()
            for name in NETWORKS:
                mxnet_written.test_networks_that_were_written_give_the_bytes_of_mxnet(name)
        elif other:
            for name in PREDICTED:
                if mxnet.rule_of(name) in mutant.ops:
                    mxnet.test_recorded_results_are_predicted(name)

    return agrees


def _ipex_held() -> Asks:
    """What all that was recorded of the extension asks its profile."""
    with asks(ipex.PROFILE) as held:
        for check in dict.fromkeys(check for one in CHECKS.values() for check in one):
            check()
        for family in FAMILIES:
            if family != "apart":
                programs.foresee(family)
    for isa in PROCESSORS:
        with asks(ipex.PROFILE, isa) as more, override_profile(profile(ipex.PROFILE).on(isa)):
            programs.foresee(isa)
        held |= more
    with asks(ipex.PROFILE, "amx") as more, override_profile(profile(ipex.PROFILE).on("amx")):
        kernels.foresee_layers()
    return held | more


def ipex_agrees() -> Agrees:
    """Whether a changed profile still gives, groups and claims what was recorded of IPEX."""
    right, held = profile(ipex.PROFILE), _ipex_held()

    def agrees(mutant: Mutant) -> None:
        other = told_apart(held, right, mutant.profile)
        if mutant.block == "group":
            for family in FAMILIES:
                if family not in ipex_groups.UNGROUPED:
                    ipex_groups.agree(family)
            ipex_groups.apart()
            if mutant.ops[0] == "matmul":
                programs.foresee("three_axes")
            if mutant.ops[0] == "linear":
                for case in ("linear", "linear_relu"):
                    pairs.test_pairs_are_grouped_to_the_kernels_of_ipex(case)
        if not other:
            return
        for isa in PROCESSORS:
            with override_profile(mutant.profile.on(isa)):
                programs.foresee(isa)
        for op in mutant.ops:
            for check in CHECKS.get(op, (layers, real_layers)):
                check()

    return agrees


def qonnx_agrees() -> Agrees:
    """Whether a changed profile still gives and claims what was recorded of QONNX."""
    right = profile(qonnx.PROFILE)
    with asks(right.name) as held:
        qonnx.all_agree()

    def agrees(mutant: Mutant) -> None:
        if told_apart(held, right, mutant.profile):
            qonnx.all_agree()

    return agrees


def plain_agrees() -> Agrees:
    """Whether a changed profile of onnxruntime without its optimizer claims what is compared."""
    replay = Replay()
    replay.add(native.probed, native)

    def agrees(mutant: Mutant) -> None:
        with native.standing_on(mutant.profile, native.PLAIN):  # a later version extends it
            replay.claimed()
            replay.agrees()

    return agrees


AGREES: dict[str, Callable[[], Agrees]] = {
    MXNET: mxnet_agrees,
    ipex.PROFILE: ipex_agrees,
    qonnx.PROFILE: qonnx_agrees,
    "ort-1.31.noopt": plain_agrees,
}
"""The comparisons of each profile that is whole."""


def test_every_profile_with_a_list_is_changed() -> None:
    assert AGREES.keys() | {*TFLITE, *TENSORFLOW, *ONNXRUNTIME, *NATIVE} == SAME.keys()
    for name, table in SAME.items():
        made = [mutant.said for mutant in changes(profile(name))]
        assert len(set(made)) == len(made)
        assert not table.keys() - set(made)
        assert all(why and why != "?" for why in table.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", AGREES)
def test_a_changed_condition_is_found_or_listed(name: str) -> None:
    all_found(name, AGREES[name]())


@pytest.mark.long
@pytest.mark.parametrize("name", AGREES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, AGREES[name]())
