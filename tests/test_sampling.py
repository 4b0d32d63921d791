"""Samples of cases: as many as are asked for, the same for one seed, others for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.sampling import sample, select


def test_one_seed_draws_the_same_and_another_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QIR_WHOLE", raising=False)
    cases = range(1000)
    drawn: list[Sequence[int]] = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("SEED", seed)
        drawn.append(sample("a test", cases, 10))
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(each) == 10 and sorted(each) == each for each in drawn)
    monkeypatch.setenv("QIR_WHOLE", "1")
    assert sample("a test", cases, 10) == list(cases)


class Item:
    """What `select` asks of a test: its name, and its mark."""

    def __init__(self, nodeid: str, mark: pytest.MarkDecorator | None = None) -> None:
        self.nodeid = nodeid
        self.mark = mark

    def get_closest_marker(self, name: str) -> object:
        """The mark that was given."""
        return self.mark.mark if self.mark and self.mark.name == name else None


@pytest.mark.parametrize(
    ("most", "left"), [(None, (3, 5, 4, 1)), (2, (2, 2, 4, 1)), (4, (3, 4, 4, 1))]
)
def test_marks_and_the_option_leave_as_many_cases_as_they_say(
    monkeypatch: pytest.MonkeyPatch, most: int | None, left: tuple[int, ...]
) -> None:
    monkeypatch.delenv("QIR_WHOLE", raising=False)
    items: list[Any] = [Item(f"marked[{i}]", pytest.mark.sampled(3)) for i in range(10)]
    items += [Item(f"plain[{i}]") for i in range(5)] + [Item("alone")]
    items += [Item(f"whole[{i}]", pytest.mark.whole) for i in range(4)]
    out = select(items, most)
    names = [item.nodeid.partition("[")[0] for item in items]
    assert tuple(map(names.count, ("marked", "plain", "whole", "alone"))) == left
    assert len(out) + len(items) == 20
