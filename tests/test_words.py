"""Docstrings, messages and pages use the terms of the field: quantized values, granularity."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("qir", "backends", "frontends")
PAGES = (
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
)
OLD = re.compile(
    r"\b(codes|(every|each|no) code|reals|foreseen|grains?|told|tells|behind|in front|beside|"
    r"foresees?|half way)\b"
)
QUOTED = re.compile(r"`[^`]*`|\b(?:\w+-reals|codes-in-bounds)\b|\"[^\"]*\"|'[^']*'")
"""What files and commands contain is quoted."""
Texts = Callable[[Path], Iterator[tuple[int, str]]]
KEYS = re.compile(
    r"\\ball \(|values\|codes\||one of: codes, real|claim says how far|formula}\]}\.|"
    r"filed, obeyed, told|largest, codes|^ ?codes ?\[?$|plus, from or codes|"
    r"\(\?P<grain>|^ ?grain $|^\| `\w+\.\w+` \||runs no code"
)
"""Lines that list words of files: of evidence, of profiles, of the JSON that verbs print."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file: its docstrings, and other texts of several words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if not re.search(r"^\s*(graph \w+|%\w+ = |\[\[?\w+\]?\]$|\w+ = )", node.value, re.M):
                yield node.lineno, node.value


def old_words(path: Path, read: Texts) -> list[str]:
    """Returns the lines of a file's texts that have an old word."""
    found = []
    for line, text in read(path):
        for said in text.splitlines():
            if OLD.search(QUOTED.sub("", said)) and not KEYS.search(said):
                found.append(f"{path.relative_to(ROOT)}:{line}: {said.strip()}")
    return found


def compiled_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the strings of several words in a Cython file."""
    source = path.read_text(encoding="utf-8")
    for found in re.finditer(r'"""(.*?)"""|"([^"\n]* [^"\n]*)"', source, re.S):
        yield source.count("\n", 0, found.start()) + 1, found[1] or found[2]


def page_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a page outside its fenced blocks."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield number, line


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_has_an_old_word(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [said for path in files for said in old_words(path, texts)]
    compiled = sorted((ROOT / folder).rglob("*.pyx"))
    found += [said for path in compiled for said in old_words(path, compiled_texts)]
    assert not found, "\n".join(["see docs/glossary.md for the words:", *found])


def test_no_page_has_an_old_word() -> None:
    assert len(PAGES) > 50
    found = [said for path in PAGES for said in old_words(path, page_texts)]
    assert not found, "\n".join(["see docs/glossary.md for the words:", *found])
