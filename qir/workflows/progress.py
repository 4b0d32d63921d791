"""How a workflow reports its steps while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Tell = Callable[..., None]
"""Takes the number of steps done, their total, and perhaps the current op."""
Progress = Callable[[str], AbstractContextManager[Tell]]
"""Gives, for the name of a stage, what the stage reports its steps to."""


@contextmanager
def silent(stage: str) -> Iterator[Tell]:
    """Reports nothing."""
    yield lambda *done: None
