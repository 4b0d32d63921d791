"""Errors of files: one line with the file, the place in it and what is wrong."""

from __future__ import annotations

from pathlib import Path

from qir.errors import InputError, Refused

_MAX_LINE_LENGTH = 230


def printable(text: str, width: int = 60) -> str:
    """Returns the text on one line, shortened in the middle to `width`."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    if len(shown) <= width:
        return shown
    half = (width - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def error_line(path: Path, place: str, what: str) -> str:
    """Returns file, place and message, in that order, in less than 240 characters."""
    head = f"{printable(str(path), 80)}: {f'{printable(place, 70)}: ' if place else ''}"
    return head + printable(what, _MAX_LINE_LENGTH - len(head))


def input_error(path: Path, place: str, what: str) -> InputError:
    """Returns the error for a damaged or contradictory file."""
    return InputError(error_line(path, place, what))


def refused_error(path: Path, place: str, what: str) -> Refused:
    """Returns the error for a valid file that the language cannot express."""
    return Refused(error_line(path, place, what))
