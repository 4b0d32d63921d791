"""One condition of a rule of TensorFlow Lite's profiles, or one field of a group, changed: recorded
results find it, or it is listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from qir.errors import QirError
from qir.profiles import profile
from tests.differential.one_op import computed
from tests.differential.predictions import Array, Count
from tests.differential.test_recorded_profiles import as_pairs
from tests.differential.tflite import test_tflite_groups as layers
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    NEWER,
    REFERENCE,
    SAME,
    SYMMETRIC,
    VALID,
    VECTORS,
    recorded,
    reference,
)
from tests.mutation.conditions import all_found, none_found
from tests.mutation.fields import Mutant
from tests.mutation.replay import Replay
from tests.mutation.test_tflite_faults import replayed
from tests.oracles.tflite_cases import SUITES, OpCase
from tests.oracles.tflite_more import WITHOUT_REFERENCE

pytestmark = pytest.mark.long
Agrees = Callable[[Mutant], None]
SINGLE = "tflite-2.21.single"
SOFTMAX = "softmax"
"""The suites of what is the same however multipliers are rounded."""
_EACH = 2
"""How many cases of each suite, chain and storage are written as pairs."""


def chain_of(case: OpCase) -> tuple[str, ...]:
    """The ops of a case, as groups name them."""
    tail = {"": (), "relu": ("relu",)}.get(case.activation, ("clip",))
    return (case.op, *tail)


def pairs() -> Iterator[tuple[OpCase, Array]]:
    """Recorded cases on integers that are one kernel again when they are written as pairs."""
    chains = {row.chain for row in profile(REFERENCE).own_groups if row.result == "codes"}
    for suite in SUITES:
        if suite in WITHOUT_REFERENCE or reference(suite) != REFERENCE:
            continue
        seen: dict[tuple[object, ...], int] = {}
        for case, wanted in recorded(VECTORS / "tflite", suite, "ref"):
            key = chain_of(case), *(of.data.dtype for of in (*case.operands.values(), case.out))
            seen[key] = seen.get(key, 0) + 1
            coded = all(of.scale is not None for s, of in case.operands.items() if s != "bias")
            if key[0] in chains and coded and case.out.scale and seen[key] <= _EACH:
                try:
                    whole, found = as_pairs(case, REFERENCE)
                except QirError:
                    continue
                if whole and np.array_equal(found, wanted):  # type: ignore[arg-type]
                    yield case, wanted


def kernels(cases: list[tuple[OpCase, Array]], chain: tuple[str, ...]) -> None:
    """AssertionError where a case written as pairs is no kernel any more, or another."""
    for case, wanted in cases:
        if chain_of(case) == chain:
            whole, found = as_pairs(case, REFERENCE)
            assert whole
            assert np.array_equal(found, wanted)  # type: ignore[arg-type]


REALS = {"linear": "dynamic_linear dynamic_linear_i4", "conv2d": "dynamic_conv dynamic_conv_i4"}
"""The suites of layers of floats by integers."""


def compared(name: str, suite: str, who: str) -> None:
    for number, (case, wanted) in enumerate(recorded(VECTORS / "tflite", suite, who)):
        Count().add(computed(case, name), wanted, f"{suite} {number}")


def held(name: str) -> Replay:
    """All that was recorded of what a profile speaks of."""
    if name not in (VALID, SINGLE):
        return replayed(name)
    replay, start = Replay(), "unread_valid" if name == VALID else SOFTMAX
    who = "xnnpack" if name == VALID else "ref"
    for suite in (suite for suite in SUITES if suite.startswith(start)):
        replay.add(partial(compared, name, suite, who))
    return replay


def agreeing(name: str) -> Agrees:
    """Whether a changed profile still gives, groups and claims what was recorded."""
    replay = held(name)
    cases = list(pairs()) if name == REFERENCE else []

    def agrees(mutant: Mutant) -> None:
        if mutant.block != "group":
            replay.claimed()
            replay.agrees()
            return
        kernels(cases, mutant.ops)
        for suite in REALS.get(mutant.ops[0], "dynamic_matmul").split():
            if len(mutant.ops) == 1 and mutant.ops[0] in ("linear", "conv2d", "matmul"):
                layers.test_layers_of_reals_are_grouped_as_the_kernels_they_are(suite, "ref")
        if mutant.ops == ("concat",):
            for of, made in ((0.25, 0.25), (0.5, 0.25), (0.25, 0.5)):
                layers.test_what_a_runtime_cannot_join_is_no_kernel_of_its(
                    REFERENCE, of, made, of == made
                )

    return agrees


NAMES = (REFERENCE, SYMMETRIC, DELEGATE, SAME, VALID, NEWER, SINGLE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_condition_is_found_or_listed(name: str) -> None:
    all_found(name, agreeing(name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, agreeing(name))
