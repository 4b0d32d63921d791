"""The flags of the command line, by the names of the arguments that errors of the library say."""

from __future__ import annotations

import re

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=(?:True|'([^'`]*)'|(\d+)))?`")
_FLAGS = {
    "batch": "--batch",
    "check": "--check",
    "check_data": "--check-data",
    "corrections": "--corrections",
    "data": "--data",
    "drop": "--drop",
    "dynamic": "--dynamic",
    "engines": "--compare",
    "feeds": "--feeds",
    "float16": "--float16",
    "format": "--format",
    "force": "--force",
    "io": "--io",
    "isa": "--isa",
    "labels": "--labels",
    "limit": "--limit",
    "lossy": "--lossy",
    "metrics": "--metric",
    "opset": "--opset",
    "profile": "--as",
    "resume": "--resume",
    "rules": "--rule",
    "scales": "--scales",
    "sizes": "--size",
    "sqnr": "--sqnr",
    "statistics": "--stats",
    "steps": "--profile",
    "strict": "--strict",
    "target": "--target",
    "values": "--values",
    "weights": "--weights",
}
"""A word in backticks that is no argument here, such as a field of a file, stays as it is."""


def in_flags(message: str) -> str:
    """Returns a message in which arguments, such as `force=True`, are called as the flags."""
    return _ARGUMENT.sub(_in_flags, message)


def _in_flags(found: re.Match[str]) -> str:
    flag = _FLAGS.get(found[1])
    value = found[2] or found[3]
    return found[0] if flag is None else f"{flag} {value}" if value else flag
