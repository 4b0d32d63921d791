"""Errors of files: one line with the file, the location in it and what is wrong."""

from __future__ import annotations

from pathlib import Path

from qir.errors import InputError, Refused

_MAX_LINE_LENGTH = 230


def printable(text: str, width: int = 60) -> str:
    """Returns the text on one line, shortened in the middle to `width`."""
    text_shown = "".join(c if c.isprintable() else "?" for c in text)
    if len(text_shown) <= width:
        return text_shown
    half = (width - 3) // 2
    return f"{text_shown[:half]}...{text_shown[-half:]}"


def error_line(path: Path, location: str, what: str) -> str:
    """Returns file, location and message, in that order, in less than 240 characters."""
    prefix = f"{printable(str(path), 80)}: {f'{printable(location, 70)}: ' if location else ''}"
    return prefix + printable(what, _MAX_LINE_LENGTH - len(prefix))


def input_error(path: Path, location: str, what: str) -> InputError:
    """Returns the error for a damaged or contradictory file."""
    return InputError(error_line(path, location, what))


def refused_error(path: Path, location: str, what: str) -> Refused:
    """Returns the error for a valid file that the language cannot express."""
    return Refused(error_line(path, location, what))
