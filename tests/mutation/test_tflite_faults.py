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


REFERENCE_SAME = {
    "acc.overflow = saturate": "no sum of 8-bit codes was long enough to overflow",
    **{
        f"bias.{field}": "the files hold biases that count in the unit of the sums"
        for field in (
            "compute = f32",
            "domain = rescaled_acc",
            "domain = rounded_acc",
            "round = even",
        )
    },
    **{
        f"{op} method = reals": "codes of one map pass through reals unchanged"
        for op in ("concat", "max_pool2d", "reshape")
    },
    "softmax method = reals": "no quotient lay close enough to a tie",
    "dequantize.compute = f64": "one product, rounded once",
    **{
        f"linear{kind} requant.multiplier = {value}": "numbers closer than any recorded tie"
        for kind, values in (("", ("divide", "exact", "q31")), ("/i16", ("divide", "exact")))
        for value in values
    },
    "linear/i16 acc.type = f32": "as many bits as the results need",
    "linear/i16 requant.round = half_up": "no negative tie",
    "quantize.bounds = storage": "bounds are those of the storage",
    "quantize.clip = range_first": "where the ends are codes, it is the same",
    "quantize.clip = reals_first": "where the ends are codes, it is the same",
    "quantize.zero = pair": "where the zero point is whole, it is the same",
    "requant.clip = reals": "fixed point has no reals",
    **{
        f"requant.order = {order}": "float64 has more bits than the multiplier"
        for order in ("(x*w)*(1/y)", "gy/gx/gw", "x*(w/y)")
    },
    **{
        f"{op} quantize.by = {by}": "a scale that is a power of two"
        for op in ("sigmoid", "tanh")
        for by in ("divide", "gain", "span")
    },
}
DELEGATE_SAME = {
    "conv2d requant.clip = codes": "where the ends are codes, it is the same",
    "linear requant.clip = codes": "where the ends are codes, it is the same",
    **{
        f"quantize{kind} quantize.by = gain": "1 / s is the gain where no range is declared"
        for kind in ("", "/i16")
    },
    **{
        f"sigmoid quantize.by = {by}": "a scale that is a power of two"
        for by in ("divide", "gain", "span")
    },
    "sigmoid quantize.zero = fused": "a product with a power of two is not rounded",
}
SAME = {REFERENCE: REFERENCE_SAME, DELEGATE: DELEGATE_SAME}
"""What nothing recorded tells apart, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_a_changed_field_is_found_or_listed(name: str) -> None:
    who = "ref" if name == REFERENCE else "xnnpack"

    def agrees(mutant: Mutant) -> None:
        for suite in suites(mutant):
            if name == DELEGATE and suite in WITHIN:
                nearly_agree(suite)
            else:
                agree(pairs("tflite", suite, who), name)

    assert survivors(profile(name), agrees, but=("choose",)) == set(SAME[name])


def test_what_litert_changed_is_found() -> None:
    changed = ("sigmoid", "mean")

    def agrees(mutant: Mutant) -> None:
        for suite in (s for s in suites(mutant) if s in changed):
            agree(pairs("litert", suite, "xnnpack"), NEWER)

    assert survivors(profile(NEWER), agrees) == set()
