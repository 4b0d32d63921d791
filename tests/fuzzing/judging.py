"""What counts as a clear answer: a value, or one line in QIR's own words."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qir.errors import QirError

LONGEST = 240
Made = TypeVar("Made")
PYTHON = re.compile(
    r"NoneType|(Key|Index|Type|Value|Attribute|Overflow|Memory|Recursion)Error|unhashable"
    r"|object has no attribute|object is not|not subscriptable|not iterable|codec can't"
    r"|positional argument|keyword argument|<class|to unpack|ufunc|np\.|numpy|invalid literal"
    r"|too large to convert|cannot reshape|index out of range|indices must be|fromhex|\(char \d"
    r"|could not (convert|be) |must be (str|int|real)|unsupported operand|has no len"
    r"|onnx: is damaged: "
)
"""What Python and NumPy say, and QIR does not."""
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[%@]\S+")


class Broken(AssertionError):
    """What must not be."""


@dataclass(frozen=True)
class Try:
    """One case: its own source of chance, a folder to write to, and what it shares with others."""

    rng: random.Random
    folder: Path
    block: str
    """Seed of what neighbouring cases break, each in its own way."""


def clear(error: QirError, longest: int = LONGEST) -> None:
    """Broken if an error is not one short line, or speaks Python."""
    said = str(error)
    if "\n" in said or len(said) > longest:
        raise Broken(f"an error of {len(said)} characters: {said[:400]!r}") from error
    if found := PYTHON.search(QUOTED.sub("", said)):
        raise Broken(f"an error that says {found[0]!r}: {said!r}") from error


def refused(make: Callable[[], Made], longest: int = LONGEST) -> Made | None:
    """What is made; None where it is refused, clearly."""
    try:
        return make()
    except QirError as error:
        clear(error, longest)
        return None
