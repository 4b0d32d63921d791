"""One field of TensorFlow Lite's profiles changed: recorded results find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.differential import test_scale_rules
from tests.differential.one_op import computed
from tests.differential.predictions import Count
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    NEWER,
    REFERENCE,
    SAME,
    SYMMETRIC,
    UNREAD,
    VECTORS,
    recorded,
    reference,
    unpadded,
)
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay
from tests.oracles.tflite_cases import SUITES
from tests.oracles.tflite_dynamic import WITHOUT_DELEGATE
from tests.oracles.tflite_more import WITHOUT_REFERENCE
from tests.oracles.tflite_vectors import CHANGED

pytestmark = pytest.mark.long
NAMES = (REFERENCE, SYMMETRIC, DELEGATE, SAME, NEWER)
KERNELS = (REFERENCE, SYMMETRIC)
_UNPADDED = {DELEGATE: False, SAME: True}
"""Profiles that speak of layers that the delegate's defect hits alone, or of no such layers."""


def compared(name: str, suite: str) -> None:
    """Every recorded element."""
    who, folder = "ref" if name in KERNELS else "xnnpack", "tflite"
    if name == NEWER:
        folder = "litert"
    for number, (case, wanted) in enumerate(recorded(VECTORS / folder, suite, who)):
        if _UNPADDED.get(name, unpadded(case)) == unpadded(case):
            Count().add(computed(case, name), wanted, f"{suite} {number}")


def replayed(name: str) -> Replay:
    """All that was recorded of what a profile speaks of."""
    replay = Replay()
    apart = ("unread_same", *WITHOUT_DELEGATE)
    said = [suite for suite in SUITES if name != DELEGATE or not suite.startswith(apart)]
    for suite in {NEWER: CHANGED, SAME: UNREAD.split()}.get(name, said):
        if name not in KERNELS or (suite not in WITHOUT_REFERENCE and reference(suite) == name):
            replay.add(lambda suite=suite: compared(name, suite))  # type: ignore[misc]
    return replay


def agreeing(name: str) -> Callable[[Mutant], None]:
    """Whether a changed profile still gives what was recorded."""
    replay = replayed(name)

    def agrees(mutant: Mutant) -> None:
        if mutant.block == "choose":
            test_scale_rules.test_the_converter_of_tensorflow_lite()
        else:
            replay.agrees()

    return agrees


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_field_is_found_or_listed(name: str) -> None:
    all_found(name, agreeing(name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, agreeing(name))
