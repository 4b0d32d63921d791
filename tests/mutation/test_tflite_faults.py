"""One field of TensorFlow Lite's profiles changed: recorded results find it, or it is listed."""

from __future__ import annotations

from functools import cache

import pytest

from qir.numerics import profile
from tests.differential.test_tflite_vectors import (
    DELEGATE,
    NEWER,
    REFERENCE,
    VECTORS,
    WITHIN,
    Array,
    agree,
    nearly_agree,
    recorded,
    unpadded,
)
from tests.mutation.fields import Mutant, survivors
from tests.mutation.indistinct import same
from tests.oracles.tflite_cases import SUITES, Case

NAMES = {
    "sigmoid": ("sigmoid", "tanh"),
    "conv2d": ("conv", "conv_ties", "depthwise", "conv16", "conv16_ties"),
    "linear": ("linear", "linear_ties", "linear16", "linear16_ties"),
    "avg_pool2d": ("avg_pool",),
    "max_pool2d": ("max_pool", "resize_nearest"),
    "reduce_mean": ("mean",),
}
"""The suites of an op where they are not its own name."""
BLOCKS = {
    "quantize": ("quantize", "tanh", "pad", "conv", "linear"),
    "dequantize": ("dequantize", "tanh", "pad"),
}


@cache
def pairs(folder: str, name: str, who: str) -> list[tuple[Case, Array]]:
    return [p for p in recorded(VECTORS / folder, name, who) if who == "ref" or not unpadded(p[0])]


def suites(mutant: Mutant) -> tuple[str, ...]:
    """Those that a change can show in."""
    if not mutant.ops:
        return BLOCKS.get(mutant.block, (*NAMES["conv2d"], *NAMES["linear"]))
    found = [s for op in mutant.ops for s in NAMES.get(op, (op,)) if s in SUITES]
    if "/i16" in mutant.said:
        found = [f"{s}16" if f"{s}16" in SUITES else s for s in found]
    return tuple(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [REFERENCE, DELEGATE])
def test_a_changed_field_is_found_or_listed(name: str) -> None:
    who = "ref" if name == REFERENCE else "xnnpack"

    def agrees(mutant: Mutant) -> None:
        if mutant.block == "choose":
            return  # nothing recorded chooses scales
        for suite in suites(mutant):
            if name == DELEGATE and suite in WITHIN:
                nearly_agree(suite)
            else:
                agree(pairs("tflite", suite, who), name)

    left = survivors(profile(name), agrees)
    print("LEFT", name, sorted(left))
    assert left == same(name)


def test_what_litert_changed_is_found() -> None:
    changed = ("sigmoid", "mean")

    def agrees(mutant: Mutant) -> None:
        for suite in (s for s in suites(mutant) if s in changed):
            agree(pairs("litert", suite, "xnnpack"), NEWER)

    assert survivors(profile(NEWER), agrees) == same(NEWER)
