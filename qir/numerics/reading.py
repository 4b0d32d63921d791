"""Profile files: TOML in, checked field by field, each error with its line; and out again."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from qir.errors import ProfileError
from qir.ir.attrs import Attr
from qir.numerics.fields import (
    BLOCKS,
    TEXTS,
    Levels,
    Method,
    field_types,
    fits,
    said,
)
from qir.numerics.profile import (
    NEEDS,
    Entry,
    Field,
    Group,
    Head,
    Profile,
    When,
    clashes,
)

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json]"
Find: TypeAlias = Callable[[str], Profile]

_HEAD_WORDS = {
    "isa": ("any", "avx2", "avx512", "vnni", "amx"),
    "groups": ("own", "inherited"),
    "signed": ("kept", "private_unsigned"),
    "doubled": ("kept", "merged"),
}
_HEAD_TEXTS = ("name", "extends", "backend", "versions", *_HEAD_WORDS, "evidence")
_HEAD = (*_HEAD_TEXTS, "settings", "notes")
_LONGEST = 239
_RULE = ("op", "when", *BLOCKS, *TEXTS, "method", "evidence")
_GROUP = ("chain", "when", "needs", "result", "propagates", "claim", "evidence")
_WHEN = ("storage", "grain", "attrs", "isa")


def load(path: Path, find: Find | None = None, *, above: tuple[str, ...] = ()) -> Profile:
    """Reads a profile file; `find` gives what it extends, by name; else its neighbours are asked.

    `above` are the profiles on whose behalf it is read. Raises ProfileError naming file, line and
    what would do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    line = (*above, path.stem)

    def found(name: str) -> Profile:
        if name in line:
            raise ProfileError(f"{path.name}: {' extends '.join((*line, name))}, in a circle")
        return find(name) if find else load(path.parent / f"{name}.toml", above=line)

    return parse(text, path.name, found)


def parse(text: str, name: str, find: Find | None = None) -> Profile:
    """Reads a profile from text; `name` stands in errors. ProfileError as `load`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ProfileError(f"{name}: its tables are nested too deep") from error
    return _Reader(name, text, find).profile(data)


@dataclass
class _Place:
    """Where in the file one is: a table, and which one of its kind."""

    table: str = ""
    index: int = 0


@dataclass
class _Reader:
    name: str
    text: str
    find: Find | None
    place: _Place = field(default_factory=_Place)

    # -- errors ---------------------------------------------------------------------------------

    def error(self, key: str, message: str) -> ProfileError:
        said = f"{self.name}, line {self.line(key)}: {message}"
        return ProfileError(said if len(said) <= _LONGEST else f"{said[: _LONGEST - 3]}...")

    def line(self, key: str = "") -> int:
        """The line of a key in the present table, else the line of the table itself."""
        lines = self.text.splitlines()
        start, end = self._extent(lines)
        pattern = re.compile(rf"""(?:^|[{{,\s])["']?{re.escape(key)}["']?\s*=""")
        if key:
            for number in range(start, end):
                if pattern.search(lines[number].split("#")[0]):
                    return number + 1
        return start + 1

    def _extent(self, lines: list[str]) -> tuple[int, int]:
        heads = [i for i, line in enumerate(lines) if line.lstrip().startswith("[")]
        # Inside a list a line may start with a bracket too; a table's name tells them apart.
        heads = [i for i in heads if re.match(r"\s*\[\[?[\w.\-\" ]+\]\]?\s*(#|$)", lines[i])]
        if not self.place.table:
            return 0, heads[0] if heads else len(lines)
        named = [i for i in heads if lines[i].strip(" []\t").split("]")[0] == self.place.table]
        if self.place.index >= len(named):
            return 0, len(lines)
        start = named[self.place.index]
        return start, next((i for i in heads if i > start), len(lines))

    def known(self, keys: Iterable[str], allowed: Iterable[str], what: str) -> None:
        names = list(allowed)
        for key in keys:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
                raise self.error(key, f"no {what} {key!r}; {hint}")

    # -- parts ----------------------------------------------------------------------------------

    def profile(self, data: dict[str, Json]) -> Profile:
        self.known(data, (*_HEAD, *BLOCKS, *TEXTS, "rule", "group"), "key")
        head = self.head(data)
        base = None
        if head.extends:
            if self.find is None:
                raise self.error("extends", f"{head.extends!r} is not at hand")
            base = self.find(head.extends)
        defaults = self.blocks({k: v for k, v in data.items() if k in (*BLOCKS, *TEXTS)}, top=True)
        rules = tuple(self.rule(row, i) for i, row in enumerate(self.rows(data, "rule")))
        groups = tuple(self.group(row, i) for i, row in enumerate(self.rows(data, "group")))
        for a, b in clashes(rules):
            raise ProfileError(
                f"{self.name}: the rules of lines {a.line} and {b.line} both apply to some "
                f"{', '.join(sorted(set(a.ops) & set(b.ops)) or a.ops)}, neither more specific"
            )
        return Profile(head, defaults, rules, groups, base, self.text)

    def rows(self, data: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise self.error(key, f"{key} is written [[{key}]]")
        return [row for row in value if isinstance(row, dict)]

    def head(self, data: Mapping[str, Json]) -> Head:
        texts = {k: self.word(k, data[k]) for k in _HEAD_TEXTS if k in data}
        if not texts.get("name"):
            raise self.error("name", "a profile has a name")
        for key, words in _HEAD_WORDS.items():
            if texts.get(key, words[0]) not in words:
                raise self.error(key, f"{key} is one of {', '.join(words)}")
        settings = data.get("settings", {})
        if not isinstance(settings, dict):
            raise self.error("settings", 'settings is a table, such as {optimizer = "all"}')
        found = {k: self.word(k, v) for k, v in settings.items()}
        return Head(**texts, settings=found, notes=self.words("notes", data.get("notes", [])))

    def blocks(
        self, data: Mapping[str, Json], *, top: bool = False
    ) -> dict[tuple[str, str], Field]:
        out: dict[tuple[str, str], Field] = {}
        for block, value in data.items():
            if top and isinstance(value, dict):
                self.place = _Place(block) if self._has_table(block) else _Place()
            if block in TEXTS:
                out["", block] = self.value(block, TEXTS[block], value)
                continue
            if not isinstance(value, dict):
                raise self.error(block, f"{block} is a table of fields")
            kinds = field_types(block)
            self.known(value, kinds, f"field of {block}:")
            for name, item in value.items():
                out[block, name] = self.value(name, kinds[name], item, block)
        if top:
            self.place = _Place()
        return out

    def _has_table(self, block: str) -> bool:
        return re.search(rf"^\s*\[{block}\]", self.text, re.MULTILINE) is not None

    def value(self, name: str, kind: object, value: Json, block: str = "") -> Field:
        full = f"{block}.{name}" if block else name
        if name == "levels":
            return self.levels(full, value)
        if not fits(kind, value):
            raise self.error(name, f"{full} = {value!r}; it is one of: {said(kind)}")
        assert isinstance(value, str | bool)
        return value

    def levels(self, full: str, value: Json) -> Levels:
        table = value if isinstance(value, dict) else {"*": value}
        out: list[tuple[str, float]] = []
        for key, level in table.items():
            if isinstance(level, bool) or not isinstance(level, int | float) or level <= 0:
                raise self.error("levels", f"{full} holds numbers above zero, not {level!r}")
            out.append((key, float(level)))
        return tuple(out)

    def rule(self, row: dict[str, Json], index: int) -> Entry:
        self.place = _Place("rule", index)
        self.known(row, _RULE, "key of a rule:")
        ops = self.words("op", row.get("op", []))
        if not ops:
            raise self.error("", 'a rule has an op, or "*"')
        said_ = self.blocks({k: v for k, v in row.items() if k in (*BLOCKS, *TEXTS)})
        if "method" in row:
            said_["", "method"] = self.method(row["method"])
        if "evidence" in row:
            said_["", "evidence"] = self.word("evidence", row["evidence"])
        return Entry(ops, self.when(row.get("when", {})), said_, self.line())

    def method(self, value: Json) -> Method | None:
        if value == "none":
            return None
        if isinstance(value, str):
            return Method(value)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise self.error("method", "method is a name, or a table with a name and parameters")
        params: dict[str, str | int | float | bool] = {}
        for key, item in value.items():
            if isinstance(item, list | dict):
                raise self.error("method", f"method parameter {key} is a word or a number")
            if key != "name":
                params[key] = item
        return Method(str(value["name"]), params)

    def group(self, row: dict[str, Json], index: int) -> Group:
        self.place = _Place("group", index)
        self.known(row, _GROUP, "key of a group:")
        chain = self.words("chain", row.get("chain", []))
        needs = self.words("needs", row.get("needs", []))
        if not chain:
            raise self.error("", "a group has a chain of ops")
        self.known(needs, NEEDS, "condition")
        result = self.word("result", row.get("result", "codes"))
        if result not in ("codes", "real"):
            raise self.error("result", f"result = {result!r}; it is one of: codes, real")
        claim = self.value("claim", TEXTS["claim"], row.get("claim", "unknown"))
        moves = row.get("propagates", False)
        if not isinstance(moves, bool):
            raise self.error("propagates", "propagates is true or false")
        return Group(
            chain,
            self.when(row.get("when", {})),
            needs,
            result,
            moves,
            str(claim),
            self.word("evidence", row.get("evidence", "")),
            self.line(),
        )

    def when(self, value: Json) -> When:
        if not isinstance(value, dict):
            raise self.error("when", "when is a table of conditions")
        self.known(value, _WHEN, "condition")
        storage = value.get("storage", {})
        slots = storage if isinstance(storage, dict) else {"data": storage}
        attrs = value.get("attrs", {})
        if not isinstance(attrs, dict):
            raise self.error("attrs", "attrs is a table of attributes and values")
        return When(
            {slot: self.words("storage", kinds) for slot, kinds in slots.items()},
            self.words("grain", value.get("grain", [])),
            {name: self.attr(name, item) for name, item in attrs.items()},
            self.words("isa", value.get("isa", [])),
        )

    def attr(self, name: str, value: Json) -> Attr:
        if isinstance(value, dict):
            raise self.error(name, f"attribute {name} is a word, a number or a list")
        return tuple(self.attr(name, v) for v in value) if isinstance(value, list) else value

    def word(self, key: str, value: Json) -> str:
        if not isinstance(value, str):
            raise self.error(key, f"{key} is a text, not {value!r}")
        return value

    def words(self, key: str, value: Json) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        return tuple(self.word(key, item) for item in items)


# -- writing --------------------------------------------------------------------------------------


def dumps(profile: Profile) -> str:
    """The profile (without what it extends) as TOML that reads back equal."""
    head = profile.head
    lines = [f"{k} = {_toml(v)}" for k in _HEAD if (v := getattr(head, k))]
    lines += _fields(profile.defaults)
    for entry in profile.rules:
        lines += ["", "[[rule]]", f"op = {_toml(entry.ops)}", *_when(entry.when)]
        lines += _fields(entry.fields)
    for group in profile.own_groups:
        lines += ["", "[[group]]", f"chain = {_toml(group.chain)}", *_when(group.when)]
        lines += [f"{k} = {_toml(v)}" for k in _GROUP[2:] if (v := getattr(group, k))]
    return "\n".join(lines) + "\n"


def _fields(said_: Mapping[tuple[str, str], Field]) -> list[str]:
    blocks: dict[str, dict[str, Field]] = {}
    out: list[str] = []
    for (block, name), value in said_.items():
        if block:
            blocks.setdefault(block, {})[name] = value
        elif isinstance(value, Method):
            out.append(f"method = {_toml({'name': value.name, **value.params})}")
        else:
            out.append(f"{name} = {_toml('none' if value is None else value)}")
    for block, values in blocks.items():
        table = {k: dict(v) if isinstance(v, tuple) else v for k, v in values.items()}
        out.append(f"{block} = {_toml(table)}")
    return out


def _when(when: When) -> list[str]:
    parts: dict[str, object] = {k: v for k in _WHEN if (v := getattr(when, k))}
    return [f"when = {_toml(parts)}"] if parts else []


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
