"""The page of public names is current and complete, and every name on it is explained."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import qir
from qir import errors, registry
from tests import pages


def test_the_page_says_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        pages.PAGE.write_text(pages.api_page(), encoding="utf-8")
    shown = pages.PAGE.read_text(encoding="utf-8")
    assert shown == pages.api_page(), "make docs writes it"


def section(module: str) -> str:
    """What the page says of one module."""
    text = pages.PAGE.read_text(encoding="utf-8")
    return text.partition(f"## `{module}`\n")[2].partition("\n## ")[0]


def test_every_public_name_is_on_the_page() -> None:
    for name in qir.__all__:
        assert re.search(rf"^- `{name}\b", section("qir"), re.MULTILINE), name
    for module in pages.MODULES[1:]:
        for name in pages.public(importlib.import_module(module)):
            pattern = rf"^(### `{name}`$|- `{name}[`(])"
            assert re.search(pattern, section(module), re.MULTILINE), f"{module}.{name}"


def test_every_public_constant_is_on_the_page() -> None:
    for module in pages.MODULES[1:]:
        for name in pages.constants(importlib.import_module(module)):
            assert f"\n- `{name}`: " in section(module), f"{module}.{name}"
    for module, name in (
        ("qir.ir.ops", "OPS"),
        ("qir.ir.verify", "RULES"),
        ("qir.ir.dtype", "F32"),
        ("qir.numerics", "NAMED"),
    ):
        assert f"\n- `{name}`: " in section(module), name


SILENT = {"qir.analysis", "qir.cli", "qir.ir.ops", "qir.passes", "qir.query", "qir.reference"}
"""Packages that export nothing themselves."""


def test_every_public_module_is_on_the_page() -> None:
    assert set(pages.modules()) <= set(pages.MODULES), "on the page, or said to be an inner one"
    assert set(pages.WITHIN) - SILENT <= set(pages.MODULES)


SHORT = {"qir", "qir.ir", "qir.calibration.observers"}
"""Whose names are listed elsewhere: modules, and the installed range rules."""


def test_every_pass_is_on_the_page() -> None:
    text = section("Passes") or pages.PAGE.read_text(encoding="utf-8").partition("## Passes")[2]
    for name in registry.names("qir.passes"):
        assert f"\n- `{name}`: " in text, name


def test_what_pages_and_templates_import_is_on_the_page() -> None:
    """So that what plugins are told to use is what stays as it is."""
    root = pages.PAGE.parents[2]
    places = [*root.glob("docs/**/*.md"), *root.glob("qir/cli/templates/*.py")]
    pattern = re.compile(r"^\s*from (qir\b[\w.]*) import (?:\(([^)]*)\)|(.*)$)", re.MULTILINE)
    unlisted = set()
    for place in places:
        for module, several, one in pattern.findall(place.read_text(encoding="utf-8")):
            if module.startswith(("qir.cli", "qir.passes", "qir.frontends")) or module in SHORT:
                continue
            text = section(module)
            for name in re.split(r"[,\s]+", several or one):
                if name and not re.search(rf"(### `{name}`$|- `{name}[`(])", text, re.MULTILINE):
                    unlisted.add(f"{place.name}: {module}.{name}")
    assert not unlisted


def test_methods_are_on_the_page() -> None:
    text = section("qir.ir.graph")
    for name, method in vars(qir.Graph).items():
        if not name.startswith("_") and (
            inspect.isfunction(method) or isinstance(method, property)
        ):
            assert re.search(rf"^- `{name}[`(]", text, re.MULTILINE), name
    for name in ("Node", "Value"):
        assert f"### `{name}`" in section("qir.ir.node")
    for name in ("TensorType", "QuantType", "Grain", "Array"):
        assert f"### `{name}`" in section("qir.ir.types")
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
