"""One condition of a rule of TensorFlow changed: its kernels find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.differential.tensorflow import test_tensorflow_codes as made
from tests.differential.tensorflow import test_tensorflow_uniform as uniform
from tests.differential.tensorflow.kernels import HAS_VNNI, started
from tests.mutation.conditions import all_found, none_found
from tests.mutation.fields import Mutant
from tests.mutation.replay import Replay
from tests.mutation.test_tensorflow_faults import MODES, Runtimes, replayed, replayed_in_mode
from tests.mutation.test_tensorflow_uniform_faults import replayed as replayed_uniform

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI"),
]
CORE = "tf-2.21.core"
NAMES = (CORE, *MODES, uniform.NAME)


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Runtimes]:
    with started() as found:
        yield found


def held(runtimes: Runtimes, name: str) -> Replay:
    """All that the kernels gave of what a profile speaks of."""
    if name in MODES:
        return replayed_in_mode(runtimes, name)
    return replayed(runtimes, name) if name == CORE else replayed_uniform(runtimes[CORE])


def agreeing(runtimes: Runtimes, name: str) -> Callable[[Mutant], None]:
    """Whether a changed profile still gives and claims what the kernels gave."""
    replay = held(runtimes, name)

    def agrees(mutant: Mutant) -> None:
        replay.claimed()
        if "fake_quantize" in mutant.ops:
            made.faked(runtimes[name], name).holds("exact")
        replay.agrees()

    return agrees


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_condition_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    all_found(name, agreeing(runtimes, name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(runtimes: Runtimes, name: str) -> None:
    none_found(name, agreeing(runtimes, name))
