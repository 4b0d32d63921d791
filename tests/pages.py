"""The page of every public name, with the first sentence of its docstring.

`python -m tests.pages` writes docs/reference/api.md.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType

import qir
from qir import registry
from qir.ir.dtype import DType

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
MODULES = (
    "qir",
    "qir.pipeline",
    "qir.ir.graph",
    "qir.ir.node",
    "qir.ir.types",
    "qir.ir.dtype",
    "qir.ir.call_signature",
    "qir.ir.dims",
    "qir.ir.scheme",
    "qir.ir.origin",
    "qir.ir.ops",
    "qir.ir.text",
    "qir.ir.verify",
    "qir.query.query",
    "qir.query.diff",
    "qir.query.measure",
    "qir.numerics",
    "qir.profiles",
    "qir.calibration",
    "qir.rewrite",
    "qir.rewrite.patterns.matching",
    "qir.rewrite.patterns.why",
    "qir.rewrite.patterns.conditions",
    "qir.rewrite.runner.properties",
    "qir.rewrite.runner.validation",
    "qir.rewrite.runner.bisection",
    "qir.rewrite.runner.journal",
    "qir.evaluating",
    "qir.mixed_precision",
    "qir.recipe",
    "qir.inspect",
    "qir.analysis.quantization_faults",
    "qir.backends.ipex",
    "qir.frontend",
    "qir.target",
    "qir.capability",
    "qir.registry",
    "qir.ledger",
    "qir.testing",
    "qir.atomic",
    "qir.json_file",
    "qir.errors",
)
"""What users and authors of plugins import. Passes have a section of their own."""
INTERNAL = (
    "qir.arguments",
    "qir.ir.file",
    "qir.ir.lazy_arrays",
    "qir.programs",
    "qir.quantizing",
    "qir.qir_files",
    "qir.requantizing",
    "qir.source",
    "qir.trial_cache",
)
"""Modules of the core that no user and no plugin imports."""
WITHIN = (
    "qir.calibration",
    "qir.capability",
    "qir.cli",
    "qir.inspect",
    "qir.ir.ops",
    "qir.ir.verify",
    "qir.analysis",
    "qir.numerics",
    "qir.passes",
    "qir.profiles",
    "qir.query",
    "qir.reference",
    "qir.rewrite",
    "qir.testing",
)
"""Packages whose modules nobody imports but by the package, unless they are on the page."""
FOLDERS = ("qir.ir",)
"""Packages that hold modules and no names."""
INNER = (
    *("array_text attrs attrtext calls garbage inlining layer_channels lexer".split()),
    *("numerals order parser printer quantized_ops result_bounds store structure".split()),
    *("type_inference typetext".split()),
)
"""Modules of `qir.ir` that only the core imports."""


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


def constants(module: ModuleType) -> dict[str, str]:
    """The public constants and aliases of a module, with the sentence that stands after each."""
    listed = getattr(module, "__all__", None)
    found: dict[str, str] = {}
    inside = [m for n, m in sorted(sys.modules.items()) if n.startswith(f"{module.__name__}.")]
    for place in (module, *(inside if listed is not None else ())):
        for name, said in _assigned(place).items():
            if not name.startswith("_") and (listed is None or name in listed):
                if getattr(module, name, None) is getattr(place, name):
                    found[name] = found.get(name) or said or _of_type(getattr(place, name))
    routines = public(module)
    return {name: said for name, said in found.items() if name not in routines}


def _of_type(value: object) -> str:
    return f"The element type `{value}`." if isinstance(value, DType) else ""


def _assigned(module: ModuleType) -> dict[str, str]:
    """What a module assigns at its top, with the text that follows."""
    if not (module.__file__ or "").endswith(".py"):
        return {}
    body = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body
    found: dict[str, str] = {}
    for statement, after in zip(body, [*body[1:], None], strict=True):
        said = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            said = " ".join(str(after.value.value).split())
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            found |= {name.id: said for name in each if isinstance(name, ast.Name)}
    return found


def modules() -> list[str]:
    """Every module of the core that others may import, by walking its folders."""
    found = [m.name for m in pkgutil.walk_packages(qir.__path__, "qir.")]
    plugins = ("qir.frontends", "qir.backends", "qir.__main__")
    return [
        name
        for name in found
        if not name.startswith((*plugins, *(f"{package}." for package in WITHIN)))
        and not any(part.startswith("_") for part in name.split("."))
        and name not in (*WITHIN, *FOLDERS, *INTERNAL)
        and name not in {f"qir.ir.{inner}" for inner in INNER}
    ]


def members(kind: type) -> dict[str, object]:
    """The methods and properties that a class defines."""
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    found: dict[str, object] = {}
    inner = {f"qir.ir.{name}" for name in INNER}  # what a class inherits from there is its own
    held = [
        (n, v)
        for c in kind.__mro__
        if c is kind or c.__module__ in inner
        for n, v in vars(c).items()
    ]
    for name, value in held:
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
    return _first(" ".join(inspect.cleandoc(text).split("\n\n")[0].split()))


def _first(text: str) -> str:
    """The first sentence of a text."""
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
        "What users and authors of plugins import, made from the docstrings by `make docs`.",
        "Most programs need `qir` only. Names that are not on this page may change in any version.",
        "",
    ]
    for name in MODULES:
        lines += _module(importlib.import_module(name))
    lines += _passes()
    return "\n".join(lines).rstrip() + "\n"


def _passes() -> Iterator[str]:
    yield "## Passes"
    yield ""
    yield "By name for `qir opt` and `qir.optimize`; `qir passes NAME` shows the options of one."
    yield ""
    for name in sorted(registry.names("qir.passes")):
        kind = registry.find("qir.passes", name)
        if isinstance(kind, type) and kind.__module__.startswith("qir."):
            yield f"- `{name}`: {sentence(kind)} `{kind.__module__}.{kind.__name__}{call(kind)}`"
    yield ""


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
    told = {} if module is qir else constants(module)
    yield from (f"- `{name}`: {_first(said)}" for name, said in sorted(told.items()))
    if lines or told:
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
