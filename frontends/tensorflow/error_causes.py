"""Extracts the cause from multi-line errors of TensorFlow and Keras."""

from __future__ import annotations

import re

_ANSI_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_LAYER_TRACE = re.compile(r"Exception encountered when calling (\S+?)\.?$")
_NAMED_ERROR = re.compile(r"\w+(Error|Exception): ")
_MAX_LENGTH = 300


def error_cause(error: Exception) -> str:
    """Returns the line that names the cause; Keras puts that of a layer after a traceback."""
    lines = [line.strip() for line in _ANSI_COLORS.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for index, line in enumerate(lines[:-1]):
        if match := _LAYER_TRACE.search(line):
            return f"{match[1]}: {lines[index + 1]}"[:_MAX_LENGTH]
    # AutoGraph puts a traceback of the user's code before the message.
    if lines[0] != "in user code:":
        return lines[0][:_MAX_LENGTH]
    error_lines = [line for line in lines if _NAMED_ERROR.match(line)]
    return (error_lines or lines)[-1][:_MAX_LENGTH]
