"""What an error of TensorFlow or Keras says, in one line."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LAYER = re.compile(r"Exception encountered when calling (\S+?)\.?$")
_NAMED = re.compile(r"\w+(Error|Exception): ")
_MOST = 300


def cause(error: Exception) -> str:
    """Returns the line that names the fault; a layer's stands after the trace of the calls."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for at, line in enumerate(lines[:-1]):
        if found := _LAYER.search(line):
            return f"{found[1]}: {lines[at + 1]}"[:_MOST]
    if lines[0] != "in user code:":
        return lines[0][:_MOST]
    named = [line for line in lines if _NAMED.match(line)]
    return (named or lines)[-1][:_MOST]
