"""Docstrings and messages say what the field says: quantized values, floats, granularity."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("qir/profiles", "qir/cli", "qir/_kernels"),
    *("backends/cpu", "backends/torch", "backends/tensorflow"),
    *("frontends/onnx", "frontends/torch", "frontends/tensorflow", "frontends/mxnet"),
)
OLD = re.compile(
    r"\b(codes|(every|each|no) code|reals|foreseen|grains?|told|tells|behind|in front)\b"
)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']*'")
"""What files and commands contain is quoted."""
KEYS = re.compile(
    r"all codes? for|\\ball code|one of: codes, real|claim says how far|formula}\]}\.|"
    r"filed, obeyed, told|largest, codes"
)
"""Lines that list words of files: of evidence, of profiles, of the JSON that verbs print."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file: its docstrings, and other texts of several words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if not re.search(r"^\s*(graph \w+|%\w+ = |\[\[?\w+\]?\]$|\w+ = )", node.value, re.M):
                yield node.lineno, node.value


def old_words(path: Path) -> list[str]:
    """Where a file says an old word, and in which line of the text."""
    found = []
    for line, text in texts(path):
        for said in text.splitlines():
            if OLD.search(QUOTED.sub("", said)) and not KEYS.search(said):
                found.append(f"{path.relative_to(ROOT)}:{line}: {said.strip()}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_has_an_old_word(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [said for path in files for said in old_words(path)]
    assert not found, "\n".join(["see docs/glossary.md for the words:", *found])
