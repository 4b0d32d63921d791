"""Finds patterns by name: those of installed passes, and those that a user writes as text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from qir import registry
from qir.errors import InputError, PluginError, UsageError
from qir.rewrite.patterns.conditions import Place
from qir.rewrite.patterns.parser import parse_pattern
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.rewriting import PatternPass
from qir.rewrite.runner.contract import Pass

SUFFIX = ".pattern"


def patterns() -> Iterator[tuple[str, Pattern]]:
    """Yields every pattern of a pass that is installed, by `pass.pattern`; broken passes are left
    out."""
    for name in registry.names("qir.passes"):
        try:
            pass_class = registry.find("qir.passes", name)
        except PluginError:
            continue
        if isinstance(pass_class, type) and issubclass(pass_class, PatternPass):
            for rewrite in pass_class.rewrites:
                yield f"{name}.{rewrite.name}", rewrite.pattern


def places() -> Iterator[tuple[str, Place]]:
    """Yields every place of an installed pass that is written in Python, by `pass.place`."""
    for name in registry.names("qir.passes"):
        try:
            pass_class = registry.find("qir.passes", name)
        except PluginError:
            continue
        if isinstance(pass_class, type) and issubclass(pass_class, Pass):
            for place in pass_class.places:
                yield f"{name}.{place.name}", place


def find_places(text: str) -> list[tuple[str, Place]]:
    """Returns the places of that name, or of the pass of that name; none where there are none."""
    return [(n, place) for n, place in places() if text in (n, n.partition(".")[0])]


def find_patterns(text: str) -> list[Pattern]:
    """Returns every pattern of the pass of that name; else the one that `find_pattern` finds."""
    of_pass = [pattern for name, pattern in patterns() if name.partition(".")[0] == text]
    return of_pass or [find_pattern(text)]


def find_pattern(text: str) -> Pattern:
    """Returns a pattern by its name, a file that holds its text, or the text itself.

    Raises UsageError for a name that none has or that several have, ParseError for text that is
    none.
    """
    # Names have no brackets, so such a text is a pattern itself.
    if "(" in text or "{" in text:
        return parse_pattern(text)
    if text.endswith(SUFFIX):
        return _read_file(Path(text))
    known = dict(patterns())
    if text in known:
        return known[text]
    # A short name is enough where one pass alone has a pattern of that name.
    full_names = [name for name in known if name.partition(".")[2] == text]
    if len(full_names) == 1:
        return known[full_names[0]]
    if full_names:
        raise UsageError(
            f"pattern {text}: {' and '.join(full_names)} have that name; name one in full"
        )
    owner = text.partition(".")[0]
    if owner in registry.names("qir.passes") and not any(k.startswith(f"{owner}.") for k in known):
        registry.find("qir.passes", owner)  # what is wrong with it comes first
        if place_names := [name for name, _ in places() if name.startswith(f"{owner}.")]:
            raise UsageError(f"no place {text!r}; pass {owner} has {' and '.join(place_names)}")
        raise UsageError(
            f"pass {owner} finds its places without patterns; write what it looks for as one,"
            " such as 'relu(conv2d(%x, %w, ...))'"
        )
    all_names = [*known, *(name.partition(".")[2] for name in known)]
    close = difflib.get_close_matches(text, all_names, 1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(
        f"no pattern {text!r}; {suggestion}write one, such as 'relu(conv2d(%x, %w, ...))', or"
        " name one that `qir passes NAME` lists"
    )


def _read_file(path: Path) -> Pattern:
    try:
        return parse_pattern(path.read_text(encoding="utf-8"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"{path}: {reason}") from None
