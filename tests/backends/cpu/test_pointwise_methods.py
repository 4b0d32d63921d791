"""Methods that compute each element by itself are lookups: the bytes that TensorFlow Lite gave."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from qir.backends.cpu import CpuTarget
from qir.profiles.methods import method_names, plugin_method
from qir.reference import methods
from tests.counting import note
from tests.differential.one_op import graph_of
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    REFERENCE,
    VECTORS,
    recorded,
    unpadded,
)
from tests.oracles.tflite_cases import SUITES, OpCase
from tests.oracles.tflite_dynamic import WITHOUT_DELEGATE
from tests.oracles.tflite_more import WITHOUT_REFERENCE
from tests.sampling import sample

PROFILES = {"ref": REFERENCE, "xnnpack": DELEGATE}


def cases() -> Iterator[tuple[str, str]]:
    for name in SUITES:
        for who, absent in (("ref", WITHOUT_REFERENCE), ("xnnpack", WITHOUT_DELEGATE)):
            # What files of this suite ask for is said by profiles of their own.
            if name not in absent and not name.startswith(("reach_", "unread_")):
                yield name, who


def compiled(case: OpCase, profile: str) -> tuple[np.ndarray, int]:
    """What the engine computes, and how many nodes the reference computes for it."""
    program = CpuTarget().compile(graph_of(case, profile))
    feeds = {slot.replace(".", ""): case.operands[slot].data for slot in case.fed}
    (made,) = program(**feeds).values()
    assert isinstance(made, np.ndarray)
    return made.reshape(case.shape), len(program.fallbacks)


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("name", "who"), list(cases()))
def test_the_engine_gives_the_recorded_bytes(name: str, who: str) -> None:
    """By lookups, by other kernels, or by the reference where there are none."""
    pairs = recorded(VECTORS / "tflite", name, who)
    for case, wanted in sample(f"lookups {name} {who}", pairs, 3):
        if who == "xnnpack" and unpadded(case):
            continue
        found, _ = compiled(case, PROFILES[who])
        note(found, wanted)
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", ["add", "mul", "sub", "hard_swish", "sigmoid", "pad"])
def test_no_step_of_them_is_a_python_call(name: str) -> None:
    for case, _ in recorded(VECTORS / "tflite", name, "xnnpack")[:6]:
        assert compiled(case, DELEGATE)[1] == 0, case.op


def test_methods_that_follow_vectors_are_not_pointwise() -> None:
    """What depends on the place of an element has a number of lanes."""
    for name in method_names():
        method = plugin_method(name)
        if method is not None and "lanes" in method.params:
            assert not methods.is_pointwise(name), name
