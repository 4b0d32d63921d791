"""A profile that puts torch's tensors elsewhere in memory, or groups what torch has no kernel for:
the comparisons find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qir.profiles import Profile, profile
from tests.differential.torch import test_torch_groups as groups
from tests.differential.torch import test_torch_layers as layers
from tests.differential.torch import test_torch_memory as memory
from tests.differential.torch.profile_in_use import named
from tests.differential.torch.test_torch_groups import pytestmark as here
from tests.overriding import override_profile

from .test_grouping_faults import heedless, still, unprepared

pytestmark = here


@pytest.mark.parametrize(
    ("engine", "change"),
    [
        ("fbgemm", unprepared("channels_last")),
        ("qnnpack", unprepared("channels_last_moved_clips", instead="channels_last")),
    ],
)
def test_it_is_found(engine: str, change: Callable[[Profile], Profile]) -> None:
    wrong = change(profile(named(engine)))
    with override_profile(wrong), pytest.raises(AssertionError, match=r"seed \d+"):
        memory.agrees(engine)


def stating_groups() -> Profile:
    """The profile of fbgemm with all its groups as its own: those of a later torch inherit them."""
    right = profile(named("fbgemm"))
    return replace(right, own_groups=right.groups)


def test_views_that_leave_integers_behind_are_found() -> None:
    with override_profile(still(stating_groups())), pytest.raises(AssertionError):
        groups.test_views_without_codes_of_their_own_are_views_of_codes("fbgemm")


def test_scales_that_no_kernel_takes_are_found() -> None:
    wrong = heedless("one_scale")(stating_groups())
    with override_profile(wrong), pytest.raises(AssertionError, match="no kernel"):
        layers.test_a_transposed_convolution_of_a_scale_each_channel_is_qnnpacks_alone(2)
