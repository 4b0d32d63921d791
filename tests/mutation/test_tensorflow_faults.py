"""One field of TensorFlow's profiles changed: its kernels find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from qir.numerics import profile
from tests.differential import test_tensorflow_codes as made
from tests.differential import test_tensorflow_moves as moved
from tests.differential import test_tensorflow_products as products
from tests.differential.kernels_of_tensorflow import HAS_VNNI, SETTINGS, TensorFlow, started
from tests.mutation.fields import Mutant, survivors
from tests.mutation.indistinct import same

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


def both(runtimes: Runtimes, name: str) -> None:
    moved.test_products_of_two_tensors(runtimes, name)


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
    "mul": (both,),
    "relu": (active,),
    "avg_pool2d": (pooled,),
    "conv2d": (convolved,),
    "linear": (multiplied,),
}
"""What a change of a block, or of an op's rule, can show in."""


@pytest.mark.parametrize("name", SETTINGS)
def test_a_changed_field_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    def agrees(mutant: Mutant) -> None:
        key = mutant.ops[0] if mutant.ops else mutant.block
        for check in CHECKS.get(key, ()):
            check(runtimes, name)

    left = survivors(profile(name), agrees)
    print("LEFT", name, sorted(left))
    assert left == same(name)


MODES: Mapping[str, tuple[str, str]] = {
    "tf-2.21.min_first": ("tf-2.21.core", "MIN_FIRST"),
    "tf-2.21.min_combined": ("tf-2.21.core", "MIN_COMBINED"),
    "tf-2.21.onednn.min_first": ("tf-2.21.onednn", "MIN_FIRST"),
}
"""The profiles of modes that a node names, and the runtime and mode that show each."""


@pytest.mark.parametrize("name", MODES)
def test_a_changed_field_of_a_mode_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    def agrees(mutant: Mutant) -> None:
        for kind in moved.BYTES:
            made.test_quantize_v2_from_the_low_end(runtimes, *MODES[name], kind)

    left = survivors(profile(name), agrees)
    print("LEFT", name, sorted(left))
    assert left == same(name)
