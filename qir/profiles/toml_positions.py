"""Where in a TOML text each key stands, and each item of a list: files of facts tell faults so."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys, and indices of lists and of tables of which there are many."""

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)[ \t]*""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?""""{0,2}|'  # up to two quotes may stand right before the closing three
    r"'''.*?''''{0,2}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}\n#]*")


def value_positions(text: str) -> dict[Path, int]:
    """Returns the line of every key and item of a text that is TOML, from 1."""
    scanner = _Scanner(text)
    scanner.run()
    return scanner.lines


def head_lines(text: str, data: Mapping[str, object], tables: Iterable[str]) -> Mapping[Path, int]:
    """Returns the lines of the heads of tables of which there are many, by name and index.

    It does not go through the values; where something else than such heads begins lines so, or a
    head is written otherwise, it returns nothing.
    """
    lines: dict[Path, int] = {}
    for table in tables:
        heads = re.finditer(rf"^[ \t]*\[\[{table}\]\]", text, re.MULTILINE)
        numbers = [text.count("\n", 0, head.end()) + 1 for head in heads]
        rows = data.get(table, [])
        if not isinstance(rows, list) or len(rows) != len(numbers):
            return {}
        lines |= {(table, index): number for index, number in enumerate(numbers)}
    return lines


def item_at(data: object, path: Path) -> object:
    """Returns what is at a path of a file that was read."""
    for part in path:
        data = data[part]  # type: ignore[index]
    return data


_HEAD = re.compile(r"\s*(\[\[?)\s*([\w-]+)(\.[\w.-]*)?\s*\]")


def misplaced_header(
    text: str, many: Container[str], single: Container[str]
) -> tuple[int, str] | None:
    """Returns the first head with other brackets than its table's, whether or not a text is TOML:
    its line, and how it is written."""
    bare = _STRING.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(bare.split("\n"), 1):
        if found := _HEAD.match(line):
            opening, name, within = found.groups()
            if (opening == "[" or within) and name in many:
                return number, f"{name} is written [[{name}]]"
            if opening == "[[" and name in single:
                return number, f"{name} is written [{name}]"
    return None


@dataclass
class _Scanner:
    """The state of going through a text that is TOML."""

    text: str
    at: int = 0
    table: Path = ()
    lines: dict[Path, int] = field(default_factory=dict)
    _line: tuple[int, int] = (0, 1)
    """A place in the text, and its line."""
    _many: dict[Path, int] = field(default_factory=dict)
    """Of tables of which there are many: the index of the last."""

    def run(self) -> None:
        while self.at < len(self.text.rstrip()):
            self.take(_BLANK)
            if self.at >= len(self.text):
                return
            if self.text[self.at] == "[":
                self.head()
            else:
                self.pair(self.table)

    def take(self, pattern: re.Pattern[str]) -> str:
        """Returns what a pattern meets here, which is passed; nothing where it meets nothing."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def note(self, path: Path, at: int) -> None:
        """A path and all above it, where they are new."""
        before, line = self._line
        line += self.text.count("\n", before, at)
        self._line = at, line
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def key(self) -> Iterator[str]:
        """Yields the parts of a key with dots."""
        while word := self.take(_KEY).strip():
            yield _plain(word)
            if self.text[self.at : self.at + 1] != ".":
                return
            self.at += 1

    def head(self) -> None:
        """The head of a table, or of one of many."""
        start, many = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        path: Path = ()
        parts = list(self.key())
        for index, part in enumerate(parts):
            path = (*path, part)
            if many and index == len(parts) - 1:
                self._many[path] = self._many.get(path, -1) + 1
            if path in self._many:
                path = (*path, self._many[path])
        self.at += 2 if many else 1
        self.table = path
        self.note(path, start)

    def pair(self, table: Path) -> None:
        """A key and its value."""
        start = self.at
        path = (*table, *self.key())
        self.note(path, start)
        self.at = self.text.index("=", self.at) + 1
        self.value(path)

    def value(self, path: Path) -> None:
        self.take(_BLANK)
        opening = self.text[self.at : self.at + 1]
        if opening in ("[", "{"):
            self.at += 1
            self.inside(path, listed=opening == "[")
        elif opening in ("'", '"'):
            self.take(_STRING)
        else:
            self.take(_BARE)

    def inside(self, path: Path, *, listed: bool) -> None:
        """The items of a list, or the pairs of a table written in a line."""
        index = 0
        while self.at < len(self.text):
            self.take(_BLANK)
            if self.text[self.at] in "]}":
                self.at += 1
                return
            start = self.at
            if listed:
                self.note((*path, index), self.at)
                self.value((*path, index))
            else:
                self.pair(path)
            index += 1
            self.take(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
            if self.at == start:
                raise ValueError(f"no TOML at {start}")


def _plain(word: str) -> str:
    """Returns a part of a key without its quotes."""
    if word[0] not in "'\"":
        return word
    return next(iter(tomllib.loads(f"{word} = 0")))
