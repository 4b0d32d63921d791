"""Making much that stays, without Python looking through it for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MIN_OBJECTS = 200_000
"""Objects that are worth setting aside."""
_last_full_collection: list[int] = []
"""How many whole searches there had been when much was last set aside."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """No search for cycles inside, which would look at all that was made again and again.

    Much that was made is not looked through at the end either, but left for the next search of
    everything; once between two such searches, so that what is dropped does not pile up.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            _move_to_oldest_generation()
            gc.enable()


def _move_to_oldest_generation() -> None:
    """Makes all there is old, where much is new and nobody froze anything."""
    if gc.get_count()[0] < _MIN_OBJECTS or gc.get_freeze_count():
        return
    past = gc.get_stats()[-1]["collections"]
    if past not in _last_full_collection:
        _last_full_collection[:] = [past]
        gc.freeze()
        gc.unfreeze()
