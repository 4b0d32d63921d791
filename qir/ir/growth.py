"""Making much that stays, without Python looking through it for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def growth() -> Iterator[None]:
    """No search for cycles inside, which would look at all that was made again and again."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()
