"""A profile that foresees other kernels than onnxruntime makes: the comparison finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from qir.profiles import Profile, profile
from tests.differential.onnxruntime import test_blocked_data as blocked
from tests.differential.onnxruntime import test_lines_and_volumes as lines
from tests.differential.onnxruntime import test_ort_moves as moves
from tests.differential.onnxruntime import test_ort_products as products
from tests.differential.onnxruntime import test_qdq_fused as fused
from tests.installed import OPTIMIZED
from tests.mutation.test_native_faults import standing_on

PROFILE = "ort-1.31"
"""The file that lists the groups; later versions stand on it."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What was found with the right profile is not asked again, nor the other way round."""
    fused.report.cache_clear()
    yield
    fused.report.cache_clear()


def without(*chain: str) -> Callable[[Profile], Profile]:
    """A group less."""

    def change(right: Profile) -> Profile:
        left = tuple(g for g in right.own_groups if g.chain != chain)
        assert len(left) < len(right.own_groups)
        return replace(right, own_groups=left)

    return change


def careless(*chain: str) -> Callable[[Profile], Profile]:
    """A group without its conditions."""

    def change(right: Profile) -> Profile:
        made = tuple(replace(g, needs=()) if g.chain == chain else g for g in right.own_groups)
        assert made != right.own_groups
        return replace(right, own_groups=made)

    return change


def unprepared(*steps: str, instead: str = "") -> Callable[[Profile], Profile]:
    """Preparation steps less, or another one instead."""

    def change(right: Profile) -> Profile:
        assert set(steps) & set(right.prepare)
        left = (instead if step in steps else step for step in right.prepare)
        return replace(right, head=replace(right.head, prepare=tuple(filter(None, left))))

    return change


def still(right: Profile) -> Profile:
    """No pair is moved over an op."""
    return replace(right, own_groups=tuple(replace(g, propagates=False) for g in right.own_groups))


def no_rules(right: Profile) -> Profile:
    """None of the rules of its own, that of real weights among them."""
    assert right.rules
    return replace(right, rules=())


def heedless(need: str) -> Callable[[Profile], Profile]:
    """One condition less, of every group that has it."""

    def change(right: Profile) -> Profile:
        made = tuple(
            replace(g, needs=tuple(n for n in g.needs if n != need)) for g in right.own_groups
        )
        assert made != right.own_groups
        return replace(right, own_groups=made)

    return change


def unsigned() -> None:
    for chunk in range(4):
        fused.agrees(chunk, "u8")


def signed() -> None:
    fused.agrees(0, "i8")


def moved() -> None:
    fused.test_a_dequantize_is_moved_behind_what_only_moves_elements(0)


def moved_before() -> None:
    fused.test_a_quantize_is_moved_before_what_only_moves_elements(0)


def beside_few_bits() -> None:
    with TemporaryDirectory() as folder:
        case = blocked.Case()
        blocked.test_data_beside_few_bits_are_rounded_as_onnxruntime_does(case, Path(folder))


def single() -> None:
    products.report.cache_clear()
    try:
        for chunk in range(8):
            products.agrees(chunk)
    finally:
        products.report.cache_clear()


def along() -> None:
    lines.report.cache_clear()
    try:
        lines.agrees(0, "u8")
    finally:
        lines.report.cache_clear()


def chosen() -> None:
    moves.agrees("u8", 4)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("change", "comparison"),
    [
        (without("conv2d"), unsigned),
        (without("conv2d", "relu"), unsigned),
        (without("add"), unsigned),
        (without("softmax"), unsigned),
        (without("conv3d"), along),
        (without("avg_pool1d"), along),
        (without("where"), chosen),
        (careless("conv2d", "relu"), unsigned),
        (careless("conv2d"), signed),
        (no_rules, fused.test_real_weights_become_the_codes_that_onnxruntime_makes_of_them),
        (heedless("left_real"), single),
        (heedless("signed_pair"), single),
        (heedless("bias_codes"), single),
        (heedless("redundant_tail"), single),
        (still, moved),
        (still, moved_before),
    ],
)
def test_it_is_found(change: Callable[[Profile], Profile], comparison: Callable[[], None]) -> None:
    changed = standing_on(change(profile(PROFILE)), OPTIMIZED)
    with changed, pytest.raises(AssertionError, match=r"seed \d+"):
        comparison()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "comparison"),
    [
        (unprepared("unsigned_values"), signed),
        (
            unprepared("merge_pairs"),
            fused.test_two_pairs_in_a_row_are_the_one_that_onnxruntime_makes_of_them,
        ),
        (unprepared("round_data", "round_wide_data"), beside_few_bits),
        (unprepared("join_gemms"), single),
    ],
)
def test_a_preparation_step_less_is_found(
    change: Callable[[Profile], Profile], comparison: Callable[[], None]
) -> None:
    """In the profile of the installed version, whose list counts before those below it."""
    changed = standing_on(change(profile(OPTIMIZED)), OPTIMIZED)
    with changed, pytest.raises(AssertionError, match=r"seed \d+"):
        comparison()
