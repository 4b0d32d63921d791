"""One field of MXNet's profile changed: a recorded result finds it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backends.mxnet.networks import NETWORKS
from tests.differential.mxnet import test_mxnet as recorded
from tests.differential.mxnet import test_mxnet_written as written
from tests.differential.mxnet.recorded import PREDICTED, PROFILE, cases
from tests.differential.predictions import Count
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay

pytestmark = pytest.mark.slow


def compared(name: str) -> None:
    """Every element of a recorded file, floats too."""
    for number, (said, arrays) in enumerate(cases(name)):
        Count().add(PREDICTED[name](said, arrays), arrays["y"], f"{name} {number}")


def agreeing() -> Callable[[Mutant], None]:
    """Whether a changed profile still gives what was recorded."""
    replay = Replay()
    replay.add(recorded.test_means_of_whole_images_are_mxnets)
    for name in PREDICTED:
        replay.add(lambda name=name: compared(name))  # type: ignore[misc]

    def agrees(mutant: Mutant) -> None:
        if mutant.block == "choose":
            recorded.test_scales_are_chosen_from_ranges_of_six_decimals()
        replay.agrees()
        for name in NETWORKS:
            written.test_networks_that_were_written_give_the_bytes_of_mxnet(name)

    return agrees


def test_a_changed_field_is_found_or_listed() -> None:
    all_found(PROFILE, agreeing())


@pytest.mark.long
def test_what_is_listed_is_not_found() -> None:
    none_found(PROFILE, agreeing())
