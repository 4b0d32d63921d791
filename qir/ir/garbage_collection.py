"""Pauses Python's garbage collector while a large graph is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MIN_OBJECTS = 2_000
"""New objects from which searching them takes longer than moving them to the oldest generation."""
_last_full_collection: list[int] = []
"""The number of full collections at the last move, as a list so that functions can set it."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pauses collection inside the block, which would scan the growing graph again and again.

    Many new objects then skip the young generations and wait for the next full collection. That
    happens once between two full collections, so that garbage does not pile up.
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
    """Moves all objects to the oldest generation, where many are new and none are frozen."""
    if gc.get_count()[0] < _MIN_OBJECTS or gc.get_freeze_count():
        return
    past = gc.get_stats()[-1]["collections"]
    if past not in _last_full_collection:
        _last_full_collection[:] = [past]
        # freeze moves every object out of the generations; unfreeze puts them into the oldest.
        gc.freeze()
        gc.unfreeze()
