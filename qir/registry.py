"""Plugins, found by entry point and loaded when asked for by name; ours like a stranger's."""

from __future__ import annotations

import difflib
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from qir.errors import PluginError

KINDS = {
    "qir.frontends": "frontend",
    "qir.targets": "target",
    "qir.profiles": "profile",
    "qir.passes": "pass",
    "qir.observers": "observer",
    "qir.probes": "probe",
}
"""The groups of entry points, and what each finds."""


@cache
def _points(kind: str) -> dict[str, tuple[EntryPoint, ...]]:
    out: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=kind):
        known = out.get(point.name, ())
        if all(p.value != point.value or _owner(p) != _owner(point) for p in known):
            out[point.name] = (*known, point)
    return out


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def names(kind: str) -> tuple[str, ...]:
    """The names known for a kind, sorted; nothing is imported."""
    return tuple(sorted(_points(kind)))


def owner(kind: str, name: str) -> str:
    """The distribution that brings a plugin."""
    return ", ".join(_owner(p) for p in _points(kind).get(name, ()))


@cache
def find(kind: str, name: str) -> object:
    """Loads the plugin of that name.

    Raises PluginError if there is none, if two distributions claim the name, or if it breaks.
    """
    found = _points(kind).get(name, ())
    short = KINDS.get(kind, kind)
    if not found:
        near = difflib.get_close_matches(name, names(kind), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(names(kind)) or "none (is qir installed?)"
        raise PluginError(f"no {short} {name!r}; {hint}known: {known}")
    if len(found) > 1:
        owners = " and ".join(_owner(p) for p in found)
        raise PluginError(f"{short} {name!r} is claimed by {owners}; remove one of them")
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not what was asked for
            loaded: object = found[0].load()
    except ImportError as error:
        missing = error.name or str(error)
        raise PluginError(f"{short} {name!r} of {_owner(found[0])} needs {missing}") from error
    except SystemExit as error:
        raise PluginError(f"{short} {name!r} of {_owner(found[0])} breaks: it exits") from error
    except Exception as error:
        raise PluginError(f"{short} {name!r} of {_owner(found[0])} breaks: {error}") from error
    return loaded


def forget() -> None:
    """Forgets what was found, so that packages installed since are seen."""
    _points.cache_clear()
    find.cache_clear()
