"""Mutations are looked for on cases that do not change from day to day."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixed_sample() -> Iterator[None]:
    """Draws sampled cases by one seed: what no case tells apart is a list of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEED", "20261123")
        yield
