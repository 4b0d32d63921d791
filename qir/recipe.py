"""Recipes: what was asked of quantizing, as a file that gives the same bytes again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from qir.atomic import write_text
from qir.errors import InputError
from qir.registry import DEFAULT_TARGET

FORMAT = 1
"""The version of the file."""
_KEYS = {
    "target": "target",
    "as": "profile",
    "granularity": "granularity",
    "range": "range_rule",
    "scales": "scales",
    "corrections": "corrections",
    "float": "float_type",
    "io": "io",
    "rules": "rules",
}
"""Key of the file -> field."""
FLOAT_TYPES = ("", "f16")
"""In which type ops that stay float compute; empty: in their own."""
_MAX_BYTES = 1 << 24
"""Bytes of a file that may be one."""


@dataclass(frozen=True)
class Recipe:
    """The settings of quantizing with data; together with model and statistics they give a file."""

    target: str = DEFAULT_TARGET
    profile: str = ""
    """The profile whose kernels take the target's place; empty: none."""
    granularity: str = "channel"
    range_rule: str = "minmax"
    scales: str = "profile"
    corrections: str = "default"
    float_type: str = ""
    """`f16` where ops that stay float compute in float16; empty: they keep their type."""
    rules: tuple[str, ...] = ()
    """The user's rules, such as `name=conv1: float`; the last that speaks of a slot wins."""
    io: str = ""
    """Types of inputs and outputs, such as `integer` or `u8:float`; empty: floats."""

    def to_toml(self, found: Mapping[str, str | float | int] | None = None) -> str:
        """Returns the text of the file; `found` goes into a table that says how it came about."""
        lines = ["# What `qir quantize --recipe` reads.", f"format = {FORMAT}"]
        for key, name in _KEYS.items():
            value = getattr(self, name)
            if key == "rules":
                listed = "".join(f"  {_quoted(rule)},\n" for rule in value)
                lines.append(f"rules = [\n{listed}]" if value else "rules = []")
            elif value:
                lines.append(f"{key} = {_quoted(value)}")
        if found:
            lines += ["", "[found]"]
            lines += [
                f"{key} = {_quoted(value) if isinstance(value, str) else repr(value)}"
                for key, value in found.items()
            ]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, where: str = "recipe") -> Recipe:
        """Reads the text of a file; raises InputError for what is no recipe, naming the key."""
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"{where}: not TOML: {error}") from error
        # How a search came to the recipe; it sets nothing.
        data.pop("found", None)
        if data.pop("format", None) != FORMAT:
            raise InputError(f"{where}: a recipe starts with format = {FORMAT}")
        arguments: dict[str, str | tuple[str, ...]] = {}
        for key, value in data.items():
            if key not in _KEYS:
                raise InputError(f"{where}: no key {key!r}; a recipe has {', '.join(_KEYS)}")
            if key == "rules":
                if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                    raise InputError(f"{where}: rules is a list of texts")
                arguments["rules"] = tuple(value)
            elif isinstance(value, str):
                arguments[_KEYS[key]] = value
            else:
                raise InputError(f"{where}: {key} is a text")
        if (kind := arguments.get("float_type", "")) not in FLOAT_TYPES:
            raise InputError(f'{where}: float is {kind!r}; a recipe has float = "f16", or none')
        return cls(**arguments)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Reads a file; raises InputError where it is missing, or no recipe."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise InputError(f"{path}: too long for a recipe")
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: a recipe is text in UTF-8") from error
        return cls.parse(text, str(path))

    def save(self, path: Path, found: Mapping[str, str | float | int] | None = None) -> None:
        """Writes the file, by rename."""
        write_text(path, self.to_toml(found))

    def key(self) -> tuple[object, ...]:
        """Identifies the recipe."""
        return tuple(getattr(self, f.name) for f in fields(self))


def _quoted(text: str) -> str:
    """Returns a basic string of TOML; JSON's escapes are among its own."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


__all__ = ["Recipe"]
