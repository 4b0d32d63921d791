"""`qir plugins` and `qir new`: what is listed and checked, and what a new package holds."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path

import pytest

from qir import registry
from qir.cli.templates import KINDS, package
from qir.errors import ApiError, PluginError
from tests.cli.command import assert_one_line
from tests.cli.command import qir as command
from tests.plugin.installing import install, python

NAMES = {"pass": "drop-twice", "frontend": "layers", "target": "my-chip", "observer": "robust"}


def test_all_that_is_installed_is_listed_by_kind_and_name() -> None:
    data = json.loads(command("plugins", "--json").out)
    assert data["api"] == registry.API
    listed = {(p["kind"], p["name"]) for p in data["plugins"]}
    assert listed == {
        (short, name) for group, short in registry.KINDS.items() for name in registry.names(group)
    }
    ours = [p for p in data["plugins"] if p["distribution"] == "qir"]
    assert {p["state"] for p in ours} <= {"ok", "not usable"}


def test_one_kind_alone_is_listed() -> None:
    outcome = command("plugins", "--kind", "metric")
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[-1] == f"{len(registry.names('qir.metrics'))} plugins"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (PluginError("metric 'sqnr' is claimed by qir 0.1.0 and acme 1.0"), "clashing"),
        (ApiError("metric 'sqnr' of acme 1.0 is written for plugin API 9"), "other API"),
        (PluginError("metric 'sqnr' of acme 1.0 breaks: no"), "broken"),
    ],
)
def test_one_that_is_wrong_ends_with_status_1(
    error: PluginError, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(kind: str, name: str) -> object:
        raise error

    owners = "qir 0.1.0, acme 1.0" if state == "clashing" else "acme 1.0"
    monkeypatch.setattr(registry, "find", find)
    monkeypatch.setattr(registry, "names", lambda kind: ("sqnr",) if "metrics" in kind else ())
    monkeypatch.setattr(registry, "owner", lambda kind, name: owners)
    outcome = command("plugins", "--json")
    assert outcome.status == 1, outcome
    (row,) = json.loads(outcome.out)["plugins"]
    assert (row["state"], row["fault"]) == (state, str(error))
    assert row["distribution"] == ("qir, acme" if state == "clashing" else "acme")


def test_checks_are_shown_with_what_was_seen() -> None:
    outcome = command("plugins", "check", "sqnr", "minmax")
    assert outcome.status == 0, outcome
    assert "metric sqnr, of qir" in outcome.out
    assert "observer minmax, of qir" in outcome.out
    assert outcome.out.count("checks passed") == 2


@pytest.mark.parametrize(
    "line",
    ["plugins chek prune", "plugins check", "plugins check prun", "plugins --kind passs"],
)
def test_what_cannot_be_meant_is_one_line(line: str) -> None:
    assert_one_line(command(*line.split()), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_whole(kind: str, tmp_path: Path) -> None:
    outcome = command("new", kind, NAMES[kind], "-o", tmp_path / "new", "--json")
    assert outcome.status == 0, outcome
    told = json.loads(outcome.out)
    found = {p.relative_to(tmp_path / "new").as_posix() for p in (tmp_path / "new").rglob("*.*")}
    assert found == set(told["files"])
    project = tomllib.loads((tmp_path / "new/pyproject.toml").read_text())
    points = project["project"]["entry-points"]
    group = next(group for group, short in registry.KINDS.items() if short == kind)
    module, _, name = points[group][NAMES[kind]].partition(":")
    assert module == told["module"]
    tree = ast.parse((tmp_path / "new" / module / "__init__.py").read_text())
    assert name in {line.name for line in tree.body if isinstance(line, ast.ClassDef)}
    assert all("$" not in text for text in package(kind, NAMES[kind]).values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pass Upper", "is no name for a plugin"),
        ("pass a--b", "is no name for a plugin"),
        ("pass ../up", "is no name for a plugin"),
        (f"pass {'a' * 41}", "is no name for a plugin"),
        ("pass prune", "there is a pass 'prune': qir"),
        ("observer minmax", "there is an observer 'minmax': qir"),
        ("pass graph", "take another, such as my-graph"),
        ("observer true", "take another, such as my-true"),
        ("plugin x", "plugin"),
    ],
)
def test_a_name_that_will_not_do_is_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("new", *words.split())
    assert_one_line(outcome, 2)
    assert said in outcome.err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    for folder in (tmp_path, tmp_path / "kept"):
        outcome = command("new", "pass", "drop-twice", "-o", folder)
        assert_one_line(outcome, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.slow
def test_new_packages_install_and_pass_their_own_tests(tmp_path: Path) -> None:
    for kind, name in NAMES.items():
        assert command("new", kind, name, "-o", tmp_path / name).status == 0
    install([tmp_path / name for name in NAMES.values()], tmp_path / "site")
    tests = [str(tmp_path / name / "tests") for name in NAMES.values()]
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "--rootdir",
        str(tmp_path),
    )
    done = python(tmp_path / "site", "-m", "pytest", *options, *tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
