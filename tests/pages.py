"""The page of every public name, with the first sentence of its docstring.

`python -m tests.pages` writes docs/reference/api.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType

import qir

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
MODULES = (
    "qir",
    "qir.ir.graph",
    "qir.ir.node",
    "qir.ir.types",
    "qir.ir.dtype",
    "qir.ir.dims",
    "qir.ir.scheme",
    "qir.ir.origin",
    "qir.ir.ops",
    "qir.ir.text",
    "qir.ir.file",
    "qir.ir.verify",
    "qir.ir.query",
    "qir.ir.diff",
    "qir.reference.interpreter",
    "qir.numerics",
    "qir.calibration",
    "qir.rewrite",
    "qir.rewrite.pattern",
    "qir.rewrite.pattern_text",
    "qir.rewrite.match",
    "qir.rewrite.matching",
    "qir.rewrite.rewriting",
    "qir.rewrite.why",
    "qir.frontend",
    "qir.target",
    "qir.capability",
    "qir.registry",
    "qir.ledger",
    "qir.testing",
    "qir.errors",
)
"""What a user or a plugin imports; a name that begins with `_` is nobody's business."""


# -- api.md ---------------------------------------------------------------------------------------


def public(module: ModuleType) -> dict[str, object]:
    """The classes and functions that a module offers: `__all__`, or what it defines."""
    if module is qir:
        return {name: getattr(qir, name) for name in qir.__all__}
    listed = getattr(module, "__all__", None)
    if listed is not None:
        found = {name: getattr(module, name) for name in listed}
    else:
        name = module.__name__
        mine = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == name}
        found = {n: v for n, v in mine.items() if not n.startswith("_")}
    return {n: v for n, v in found.items() if inspect.isclass(v) or inspect.isroutine(v)}


def members(kind: type) -> dict[str, object]:
    """The methods and properties that a class defines."""
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    found: dict[str, object] = {}
    for name, value in vars(kind).items():
        if name.startswith("_") or name in fields:
            continue
        if isinstance(value, property | FunctionType | classmethod | staticmethod):
            found[name] = value
    return found


def sentence(item: object) -> str:
    """The first sentence of a docstring, in one line; nothing where there is none of its own."""
    if isinstance(item, classmethod | staticmethod):
        item = item.__func__
    text = item.__doc__ if isinstance(item, type | property) else inspect.getdoc(item)
    if not text or (isinstance(item, type) and text.startswith(f"{item.__name__}(")):
        return ""
    text = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", text)[0].replace("|", "\\|")


def call(item: object) -> str:
    """The parameters, with defaults where they are plain."""
    if isinstance(item, classmethod | staticmethod):
        item = item.__func__
    if isinstance(item, property):
        return ""
    assert callable(item)
    try:
        given = inspect.signature(item).parameters.values()
    except ValueError:
        return "(...)"
    parts: list[str] = []
    for one in given:
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts and not _starred(parts):
            parts.append("*")
        star = "*" * ((one.kind is one.VAR_POSITIONAL) + 2 * (one.kind is one.VAR_KEYWORD))
        parts.append(f"{star}{one.name}{_default(one.default)}")
    return f"({', '.join(parts)})"


def _starred(parts: list[str]) -> bool:
    return any(part.startswith("*") for part in parts)


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    plain = value is None or isinstance(value, bool | int | float | str) or value == ()
    return f"={value!r}" if plain else "=..."


def api_page() -> str:
    """The text of docs/reference/api.md."""
    lines = [
        "# API reference",
        "",
        "Every public name and what it is for, made from the docstrings by `make docs`.",
        "What most programs need is in `qir`; the modules below it are for those that look inside.",
        "",
    ]
    for name in MODULES:
        lines += _module(importlib.import_module(name))
    return "\n".join(lines).rstrip() + "\n"


def _module(module: ModuleType) -> Iterator[str]:
    yield f"## `{module.__name__}`"
    yield ""
    if said := sentence(module):
        yield said
        yield ""
    found = public(module)
    classes = {n: v for n, v in found.items() if isinstance(v, type)}
    lines = [_line(n, v) for n, v in sorted(found.items()) if n not in classes]
    for name, kind in classes.items():
        if module is qir or not members(kind):
            lines.append(_line(name, kind))
    yield from lines
    if lines:
        yield ""
    for name, kind in classes.items():
        if module is not qir and members(kind):
            yield f"### `{name}`"
            yield ""
            yield sentence(kind)
            yield ""
            if (shown := call(kind)) != "()" and not _unmade(kind):
                yield f"`{name}{shown}`"
                yield ""
            yield from (_line(n, v) for n, v in members(kind).items())
            yield ""


def _unmade(kind: type) -> bool:
    """Whether nobody makes one: errors, enumerations, and what others are to look like."""
    return issubclass(kind, Exception | Enum) or getattr(kind, "_is_protocol", False)


def _line(name: str, item: object) -> str:
    shown = "" if isinstance(item, type) else call(item)
    return f"- `{name}{shown}`: {sentence(item)}"


if __name__ == "__main__":
    PAGE.write_text(api_page(), encoding="utf-8")
