"""Runs whole suites, which name their profiles, under a profile with other rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qir.profiles import Profile, library


@contextmanager
def override_profile(other: Profile) -> Iterator[None]:
    """Puts a profile in the place of the installed one of its name, in all threads."""
    read = library._READ_PROFILES
    previous = read.get(other.name)
    read[other.name] = other
    try:
        yield
    finally:
        # Those that were read meanwhile may extend it, and would keep its rules.
        for name in [n for n, p in read.items() if any(layer is other for layer in p.layers)]:
            del read[name]
        if previous is not None:
            read[other.name] = previous
