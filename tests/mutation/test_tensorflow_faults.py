"""One field of TensorFlow's profiles changed: its kernels find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from qir.errors import QirError
from qir.profiles import profile
from tests.differential.tensorflow import test_tensorflow_codes as made
from tests.differential.tensorflow import test_tensorflow_min_first as from_low
from tests.differential.tensorflow import test_tensorflow_moves as moved
from tests.differential.tensorflow import test_tensorflow_products as products
from tests.differential.tensorflow import test_tensorflow_sums as sums
from tests.differential.tensorflow.kernels import HAS_VNNI, SETTINGS, TensorFlow, started
from tests.mutation.fields import Mutant, mutants
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay
from tests.overriding import override_profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI"),
]
Runtimes = Mapping[str, TensorFlow]
Check = Callable[[Runtimes, str], None]


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Runtimes]:
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


def along_an_axis(runtimes: Runtimes, name: str) -> None:
    for kind in moved.BYTES:
        for how in made.ROUNDS:
            made.test_quantize_v2_along_an_axis(runtimes, name, kind, how, narrow=False)


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
    for op in ("avg_pool2d", "max_pool2d"):
        moved.test_pools(runtimes, name, op, "qint8")


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


def summed(runtimes: Runtimes, name: str) -> None:
    sums.multiplied(runtimes[name], name, range(6)).holds("exact")
    sums.convolved(runtimes[name], name, range(8)).holds("exact")


BOTH: tuple[Check, ...] = (quantized, along_an_axis, joined, pooled, summed)
ONLY: Mapping[str, tuple[Check, ...]] = {
    "tf-2.21.onednn": (*BOTH, convolved, multiplied),
    "tf-2.21.core": (
        *BOTH,
        dequantized,
        requantized,
        active,
        lambda runtimes, name: moved.test_two_tensors(runtimes, name, "QuantizedMul"),
        lambda runtimes, name: moved.test_two_tensors(runtimes, name, "QuantizedAdd"),
    ),
}
"""What of its kernels can tell fields of a profile apart."""


def replayed(runtimes: Runtimes, name: str) -> Replay:
    """All that the kernels gave of what a profile speaks of."""
    replay = Replay()
    for check in ONLY[name]:
        replay.add(lambda check=check: check(runtimes, name))  # type: ignore[misc]
    return replay


def agreeing(runtimes: Runtimes, name: str) -> Callable[[Mutant], None]:
    """Whether a changed profile still gives what the kernels gave."""
    replay = replayed(runtimes, name)

    def agrees(mutant: Mutant) -> None:
        if mutant.block == "choose":
            made.chosen(name)
        elif "fake_quantize" in mutant.ops:
            made.faked(runtimes[name], name).holds("exact")
            return
        replay.agrees()

    return agrees


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_changed_field_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    all_found(name, agreeing(runtimes, name))


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_listed_is_not_found(runtimes: Runtimes, name: str) -> None:
    none_found(name, agreeing(runtimes, name))


SAME_THERE = {
    *(f"{op} requant.clip = reals" for op in ("conv2d", "linear")),
    *(f"{op} requant.zero = {when}" for op in ("conv2d", "linear") for when in ("after", "before")),
    "conv2d stage.sum_reads = summand_type",
    "linear acc.pairs = halve_signed",
    "linear acc.pairs = saturate_rows",
    "linear acc.pairs = saturate_taps",
}
"""Where the ends are integers, and zero is code 0, it is the same; only convolutions halve weights;
a row has the pairs of taps that it has of channels; behind sums is a relu, whose integers are the
same bytes in either type."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", products.ISAS)
def test_a_changed_field_of_another_processor_is_found(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    """On a oneDNN that takes this processor for one without VNNI."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", products.ISAS[isa])
    name, replay = products.NAME, Replay()
    held, runtime = profile(name), TensorFlow(onednn=True)
    try:
        with override_profile(held.on(isa)):
            replay.add(lambda: convolved({name: runtime}, name))
            replay.add(lambda: multiplied({name: runtime}, name))
    finally:
        runtime.close()
    left = set()
    for mutant in mutants(held, isa=isa):
        with override_profile(mutant.profile.on(isa)):
            try:
                replay.agrees()
            except (AssertionError, QirError, ValueError):
                continue
        left.add(mutant.said)
    assert left == SAME_THERE, sorted(left ^ SAME_THERE)


MODES: Mapping[str, tuple[str, str]] = {
    "tf-2.21.min_first": ("tf-2.21.core", "MIN_FIRST"),
    "tf-2.21.min_combined": ("tf-2.21.core", "MIN_COMBINED"),
    "tf-2.21.onednn.min_first": ("tf-2.21.onednn", "MIN_FIRST"),
}
"""The profiles of modes that a node names, and the runtime and mode that show each."""


def replayed_in_mode(runtimes: Runtimes, name: str) -> Replay:
    """All that the kernels gave in a mode."""
    replay = Replay()
    for kind in moved.BYTES:
        replay.add(
            lambda kind=kind: made.test_quantize_v2_from_the_low_end(  # type: ignore[misc]
                runtimes, *MODES[name], kind
            )
        )
        if name.endswith("min_combined"):
            replay.add(
                lambda kind=kind: made.test_quantize_v2_from_the_low_end_along_an_axis(  # type: ignore[misc]
                    runtimes, MODES[name][0], kind
                )
            )
    if name == from_low.NAME:
        for form in from_low.FORMS:
            replay.add(
                lambda form=form: (  # type: ignore[misc]
                    from_low.compared(runtimes["tf-2.21.onednn"], *form)[0].holds("exact")
                )
            )
    return replay


def in_mode(runtimes: Runtimes, name: str) -> Callable[[Mutant], None]:
    replay = replayed_in_mode(runtimes, name)
    return lambda mutant: replay.agrees()


@pytest.mark.parametrize("name", MODES)
def test_a_changed_field_of_a_mode_is_found_or_listed(runtimes: Runtimes, name: str) -> None:
    all_found(name, in_mode(runtimes, name))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODES)
def test_what_is_listed_of_a_mode_is_not_found(runtimes: Runtimes, name: str) -> None:
    none_found(name, in_mode(runtimes, name))
