"""Settings of a library that are changed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def temporary_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Sets an attribute inside a `with` block, in all threads, and puts back what it was."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
