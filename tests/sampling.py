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


def sample(name: str, cases: Sequence[T], most: int) -> list[T]:
    """Returns `most` of the cases in their order, drawn by the seed and a name; or all of them."""
    if _WHOLE in os.environ or len(cases) <= most:
        return list(cases)
    drawn = random.Random(f"{os.environ.get(_SEED, '')} {name}").sample(range(len(cases)), most)
    return [cases[i] for i in sorted(drawn)]


def select(items: list[pytest.Item], most: int | None = None) -> list[pytest.Item]:
    """Takes the cases out of `items` that a `sampled` mark leaves out, and returns them.

    With `most`, no test keeps more cases than that, marked or not; but a `whole` mark keeps all.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out: set[pytest.Item] = set()
    for name, each in cases.items():
        if each[0].get_closest_marker("whole"):
            continue
        mark = each[0].get_closest_marker("sampled")
        limits = [*(mark.args if mark else ()), *([] if most is None else [most])]
        if limits:
            out |= set(each) - set(sample(name, each, min(limits)))
    items[:] = [item for item in items if item not in out]
    return list(out)


def closing_lines() -> list[str]:
    """Returns the line that says how the same cases are drawn again."""
    if _WHOLE in os.environ:
        return []
    return [f"sampled tests drew their cases by SEED={os.environ[_SEED]}; make test-all runs all"]
