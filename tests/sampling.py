"""Draws samples of exhaustive tests: `make test` runs a few cases a day, `make test-all` every one.

What is drawn follows from the environment variable SEED, the date by default, and from the name of
the test; so it is the same in all worker processes. `pytest --whole` draws everything, and so does
`--counts`, whose numbers must not change from day to day.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
_SEED = "SEED"
_WHOLE = "QIR_WHOLE"


def begin(*, whole: bool) -> None:
    """Fixes the seed for this process and for the workers that it starts."""
    os.environ.setdefault(_SEED, datetime.date.today().strftime("%Y%m%d"))
    if whole:
        os.environ[_WHOLE] = "1"


def sample(name: str, cases: Sequence[T], at_most: int) -> list[T]:
    """Returns `at_most` of the cases in their order, drawn by the seed and a name; or all."""
    if _WHOLE in os.environ or len(cases) <= at_most:
        return list(cases)
    drawn = random.Random(f"{os.environ.get(_SEED, '')} {name}").sample(range(len(cases)), at_most)
    return [cases[i] for i in sorted(drawn)]


def select(items: list[pytest.Item], at_most: int | None = None) -> list[pytest.Item]:
    """Takes the cases out of `items` that a `sampled` mark leaves out, and returns them.

    With `at_most`, no test keeps more cases than that, marked or not; but a `whole` mark keeps all.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, cases_of_test in cases.items():
        if cases_of_test[0].get_closest_marker("whole"):
            continue
        sampled = cases_of_test[0].get_closest_marker("sampled")
        limits = [*(sampled.args if sampled else ()), *([] if at_most is None else [at_most])]
        if limits:
            left_out |= set(cases_of_test) - set(sample(name, cases_of_test, min(limits)))
    items[:] = [item for item in items if item not in left_out]
    return list(left_out)


def closing_lines() -> list[str]:
    """Returns the line that says how the same cases are drawn again."""
    if _WHOLE in os.environ:
        return []
    return [f"sampled tests drew their cases by SEED={os.environ[_SEED]}; make test-all runs all"]
