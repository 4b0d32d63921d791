"""The page of public names is current and complete, and every name on it is explained."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import qir
from qir import errors, registry
from tests import pages


def test_the_page_says_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        pages.PAGE.write_text(pages.api_page(), encoding="utf-8")
    shown = pages.PAGE.read_text(encoding="utf-8")
    assert shown == pages.api_page(), "make docs writes it"


def section(module: str, head: str = "###") -> str:
    """What the page says of one module, to all its readers."""
    text = pages.PAGE.read_text(encoding="utf-8")
    parts = re.split(rf"^{head} `{re.escape(module)}`\n", text, flags=re.MULTILINE)[1:]
    return "\n".join(
        re.split(rf"^#{{1,{len(head)}}} ", part, flags=re.MULTILINE)[0] for part in parts
    )


PLACES = [place for _, places in pages.READERS.values() for place in places]
LINE = r"^(#### `{}`$|- `{}[`(])"


def has(module: str, name: str) -> bool:
    """Whether the page has a name of a module."""
    return bool(re.search(LINE.format(name, name), section(module), re.MULTILINE))


def test_every_listed_name_is_on_the_page() -> None:
    for place in PLACES:
        for name in pages.listed(place):
            assert has(place.module, name), f"{place.module}.{name}"
    for name in qir.__all__:
        assert has("qir", name), name


def test_every_pass_is_on_the_page() -> None:
    text = pages.PAGE.read_text(encoding="utf-8").partition("### Passes")[2]
    for name in registry.names("qir.passes"):
        assert f"\n- `{name}`: " in text, name


IMPORT = re.compile(
    r"^\s*(?:>>> )?from (qir\b[\w.]*) import (?:\(([^)]*)\)|([^#\n]*))", re.MULTILINE
)
SHORT = ("qir", "qir.ir")
"""Of these, modules are imported too."""


def imported() -> Iterator[tuple[str, str, str]]:
    """What pages, examples and the templates of plugins import: file, module and name."""
    root = pages.PAGE.parents[2]
    places = ("docs/**/*.md", "README.md", "docs/examples/*.py", "examples/**/*.py")
    for pattern in (*places, "qir/cli/templates/*.py"):
        for file in {*root.glob(pattern)} - {root / "qir/cli/templates/writing.py"}:
            text = file.read_text(encoding="utf-8")
            for module, several, one in IMPORT.findall(text):
                for name in re.split(r"[,\s]+", several or one):
                    if name and not module.startswith("qir.cli"):
                        yield file.name, module, name
                    if module in SHORT:  # modules, whose names are read from them
                        for held in re.findall(rf"\b{name}\.(\w+)\(", text) if name else ():
                            yield file.name, f"{module}.{name}", held


def test_what_pages_and_examples_import_is_on_the_page() -> None:
    """So that what plugins are told to use is what stays as it is."""
    passes = pages.PAGE.read_text(encoding="utf-8").partition("### Passes")[2]
    unlisted = set()
    for file, module, name in imported():
        if module == "qir.passes" or f" `{module}.{name}" in passes:
            continue
        known = name in qir.__all__ or has(module, name)
        if not known and not (module in SHORT and find_spec(f"{module}.{name}")):
            unlisted.add(f"{file}: {module}.{name}")
    assert not unlisted


def test_nothing_else_is_on_the_page() -> None:
    """Only what is imported, what `qir` and its packages export, and what these give and take."""
    used = {f"{module}.{name}" for _, module, name in imported()}
    told = " ".join(
        ast.unparse(kind)
        for place in PLACES
        for file in files_of(place.module)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for kind in kinds(node)
    )
    extra = set()
    for place in PLACES:
        package = importlib.import_module(place.module)
        exported = set(getattr(package, "__all__", ())) if hasattr(package, "__path__") else set()
        for name in pages.listed(place) if place.names else ():
            named = re.search(rf"\b{name}\b", told)
            if f"{place.module}.{name}" not in used and name not in exported and not named:
                extra.add(f"{place.module}.{name}")
    assert extra == NEXT_TO, "imported by no page, exported by no package, named by no signature"


NEXT_TO = {"qir.atomic.replacing_folder", "qir.registry.find"}
"""What authors need next to names that pages import."""


def files_of(module: str) -> list[Path]:
    """The file of a module, or those of a package."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__") and module != "qir":
        return sorted(Path(found.__path__[0]).glob("*.py"))
    return [Path(found.__file__ or "")]


def kinds(node: ast.AST) -> list[ast.expr]:
    """The types that a signature or a field names."""
    match node:
        case ast.arg(annotation=kind) | ast.AnnAssign(annotation=kind) if kind is not None:
            return [kind]
        case ast.FunctionDef(returns=kind) if kind is not None:
            return [kind]
    return []


def test_the_page_is_for_readers() -> None:
    """Whoever reads it whole has no more than a few hundred names to read."""
    count = sum(len(pages.listed(place)) for place in PLACES)
    assert 200 < count < 280


def test_methods_are_on_the_page() -> None:
    text = section("qir.ir.graph")
    for name, method in vars(qir.Graph).items():
        if not name.startswith("_") and (
            inspect.isfunction(method) or isinstance(method, property)
        ):
            assert re.search(rf"^- `{name}[`(]", text, re.MULTILINE), name
    for module, name in (("node", "Node"), ("node", "Value"), ("types", "QuantType")):
        assert f"#### `{name}`" in section(f"qir.ir.{module}")
    for name in vars(errors):
        if name.endswith("Error") or name == "Refused":
            assert f"- `{name}`: " in section("qir.errors"), name


def test_every_name_is_explained_in_a_sentence() -> None:
    text = pages.PAGE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    bare = [line for line in lines if not re.fullmatch(r"- `[^`]+`: \S.*", line)]
    assert not bare
    assert len(lines) > 300
    assert " at 0x" not in text


def test_dir_lists_public_names_without_those_of_typing() -> None:
    shown = set(dir(qir))
    assert set(qir.__all__) <= shown
    assert not shown & {"TYPE_CHECKING", "annotations"}
