"""What is made at once is not searched for garbage, and does not pile up when it is dropped."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from qir.ir import garbage_collection as module
from qir.ir.garbage_collection import pause_garbage_collection


class Knot:
    """An object that only a search finds to be garbage."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()
    monkeypatch.setattr(module, "_MIN_OBJECTS", 2000)
    yield
    gc.enable()
    gc.collect()


def searches() -> int:
    return sum(each["collections"] for each in gc.get_stats())


def grown() -> tuple[list[list[int]], weakref.ref[Knot]]:
    """Much that stays, made beside a knot that does not."""
    with pause_garbage_collection():
        assert not gc.isenabled()
        return [[i] for i in range(5000)], weakref.ref(Knot())


@pytest.mark.slow
def test_much_that_was_made_is_left_for_the_next_whole_search() -> None:
    before = searches()
    kept, knot = grown()
    for _ in range(200):
        kept.append([])
    assert searches() == before
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert knot() is not None
    gc.collect()
    assert knot() is None
    assert len(kept) == 5200


def test_what_is_made_and_dropped_again_and_again_is_found() -> None:
    knots = [grown()[1] for _ in range(60)]
    assert sum(knot() is None for knot in knots) > 30


@pytest.mark.slow
def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        kept, _ = grown()
        assert kept
        assert gc.get_freeze_count() > 0.9 * frozen
    finally:
        gc.unfreeze()


def test_a_search_that_was_off_stays_off() -> None:
    gc.disable()
    grown()
    assert not gc.isenabled()
