"""One field of TensorFlow's profiles changed: its kernels find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from qir.numerics import profile
from tests.differential import test_tensorflow_codes as made
from tests.differential import test_tensorflow_moves as moved
from tests.differential import test_tensorflow_products as products
from tests.differential.kernels_of_tensorflow import HAS_VNNI, TensorFlow, started
from tests.mutation.fields import Mutant, survivors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI"),
]
Runtimes = Mapping[str, TensorFlow]
Check = Callable[[Runtimes, str], None]


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Runtimes]:
    """Runtimes that remember what they were asked."""
    with started() as found:
        yield found


def quantized(runtimes: Runtimes, name: str) -> None:
    for kind in moved.BYTES:
        for how in made.ROUNDS:
            for narrow in (False, True):
                trials = range(2, 10)
                count, _ = made.quantized(
                    name, runtimes[name], kind, how, narrow=narrow, trials=trials
                )
                count.holds("exact")


def dequantized(runtimes: Runtimes, name: str) -> None:
    for kind in moved.BYTES:
        for mode in ("SCALED", "MIN_FIRST", "MIN_COMBINED"):
            made.test_dequantize(runtimes, name, kind, mode)


def requantized(runtimes: Runtimes, name: str) -> None:
    for kind in moved.BYTES:
        moved.test_requantize(runtimes, name, kind)


def joined(runtimes: Runtimes, name: str) -> None:
    op = "QuantizedConcat" if name.endswith("core") else "QuantizedConcatV2"
    moved.test_concat(runtimes, name, op, "quint8")


def pooled(runtimes: Runtimes, name: str) -> None:
    moved.test_pools(runtimes, name, "avg_pool2d", "qint8")


def active(runtimes: Runtimes, name: str) -> None:
    for kind in ("quint8", "qint32"):
        moved.test_activations(runtimes, "QuantizedRelu6", kind)


def convolved(runtimes: Runtimes, name: str) -> None:
    for form in products.CONVOLUTIONS:
        count, _ = products.compared(runtimes[name], form, flat=False, trials=4)
        count.holds("exact")


def multiplied(runtimes: Runtimes, name: str) -> None:
    for form in products.PRODUCTS:
        count, _ = products.compared(runtimes[name], form, flat=True, trials=12)
        count.holds("exact")


def chosen(runtimes: Runtimes, name: str) -> None:
    made.chosen(name)


def faked(runtimes: Runtimes, name: str) -> None:
    made.faked(runtimes[name], name).holds(FAKED)


FAKED = "within:1:0.062"
"""What is counted today: a change that makes it more is found."""
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "quantize": (quantized,),
    "choose": (chosen, quantized, multiplied),
    "fake_quantize": (faked,),
    "dequantize": (dequantized,),
    "requantize": (requantized,),
    "concat": (joined,),
    "relu": (active,),
    "avg_pool2d": (pooled,),
    "conv2d": (convolved,),
    "linear": (multiplied,),
}
"""What a change of a block, or of an op's rule, can show in."""
_ENDS = "where the ends are codes, it is the same"
_ZERO = "no code but 0 stands for zero"
_CODES = {
    "concat method = reals": "steps of 2^-24 of a range: no code lay so near a tie",
    "quantize.bounds = storage": "narrow codes have the gain of their own ends",
    "quantize.clip = codes": _ENDS,
    "quantize.clip = reals_first": _ENDS,
    "quantize.compute = f64_reciprocal": "a quotient rounded from float64 is that of float32",
    "quantize.round = half_up": "of halves below zero that no node states none was asked",
    "quantize.zero = after": _ZERO,
    "quantize.zero = before": _ZERO,
    "quantize.zero = fused": _ZERO,
}
_SUMS = {
    f"{op} {field}": why
    for op in ("conv2d", "linear")
    for field, why in (
        ("requant.clip = reals", _ENDS),
        ("requant.zero = after", _ZERO),
        ("requant.zero = before", _ZERO),
    )
}
_STATED = "even away half_up half_down up down zero floor ceil".split()
SAME: Mapping[str, Mapping[str, str]] = {
    "tf-2.21.core": {
        "choose.range = as_is": "a range is widened by more than to zero",
        "choose.store = f64": "a quotient made in float32 stays what it is",
        "fake_quantize quantize.clip = range_first": _ENDS,
        "fake_quantize quantize.round = away": "with the zero point in it, no half is below zero",
        "fake_quantize quantize.clip = reals_first": _ENDS,
        "max_pool2d method = reals": "codes of one map pass through reals unchanged",
        **_CODES,
    },
    "tf-2.21.onednn": {
        "concat method = reals": _CODES["concat method = reals"],
        "conv2d acc.pairs = exact": "of older processors, not measured",
        **_SUMS,
        **{
            f"quantize quantize.clip = {clip}": _ENDS
            for clip in ("codes", "range_first", "reals_first")
        },
        **{f"quantize quantize.round = {how}": "the node states it" for how in _STATED},
    },
}
"""What nothing tells apart, and why."""


@pytest.mark.parametrize("name", SAME)
def test_a_changed_field_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for check in CHECKS.get(key, ()):
            check(runtimes, name)

    assert survivors(profile(name), agrees) == set(SAME[name])
