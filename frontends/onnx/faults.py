"""Describes what is wrong with a file in one line."""

from __future__ import annotations

from pathlib import Path

from qir.errors import InputError, Refused

_LINE = 230


def printable(text: str, width: int = 60) -> str:
    """Returns the text on one line, its middle left out where it is long."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    if len(shown) <= width:
        return shown
    half = (width - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def line(path: Path, place: str, what: str) -> str:
    """File, place and fault, in that order, under 240 characters."""
    head = f"{printable(str(path), 80)}: {f'{printable(place, 70)}: ' if place else ''}"
    return head + printable(what, _LINE - len(head))


def fault(path: Path, place: str, what: str) -> InputError:
    """Returns the error for a file that is damaged or not what it says."""
    return InputError(line(path, place, what))


def refusal(path: Path, place: str, what: str) -> Refused:
    """Returns the error for a file that is sound and cannot be said in the language."""
    return Refused(line(path, place, what))
