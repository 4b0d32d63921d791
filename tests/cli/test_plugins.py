"""`qir plugins` and `qir new`: what is listed and checked, and what a new package holds."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from qir import registry
from qir.cli.templates import KINDS, entry, package
from qir.errors import ApiError, PluginError
from tests.cli.command import assert_one_line
from tests.cli.command import qir as command
from tests.plugin.installing import install, install_for_work, python, venv

ROOT = Path(__file__).parents[2]
NAMES = {
    "pass": "drop-twice",
    "frontend": "layers",
    "target": "my-chip",
    "observer": "robust",
    "op": "soft-threshold",
}


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
    module, _, name = points[group][entry(kind, NAMES[kind])].partition(":")
    assert module == told["module"]
    tree = ast.parse((tmp_path / "new" / module / "__init__.py").read_text())
    defined = {line.name for line in tree.body if isinstance(line, ast.ClassDef)}
    assigned = {ast.unparse(line.targets[0]) for line in tree.body if isinstance(line, ast.Assign)}
    assert name in defined | assigned
    assert all("$" not in text for text in package(kind, NAMES[kind]).values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pass Upper", "is no name for a plugin"),
        ("pass a--b", "is no name for a plugin"),
        ("pass ../up", "is no name for a plugin"),
        (f"pass {'a' * 41}", "is no name for a plugin"),
        ("op layer-norm", "there is an op 'layer_norm': QIR's language"),
        ("pass prune", "there is a pass 'prune': qir"),
        ("observer minmax", "there is an observer 'minmax': qir"),
        ("pass graph", "take another, such as my-graph"),
        ("pass class", "take another, such as my-class"),
        ("target import", "take another, such as my-import"),
        ("frontend qir", "take another, such as my-qir"),
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_in_the_form_that_it_asks_for(kind: str, tmp_path: Path) -> None:
    assert command("new", kind, NAMES[kind], "-o", tmp_path / "new").status == 0
    for words in (("check",), ("check", "--select", "I,B,UP,SIM"), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache", "."],
            cwd=tmp_path / "new",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir")


def written(folder: Path) -> list[Path]:
    """A new package of each kind."""
    for kind, name in NAMES.items():
        assert command("new", kind, name, "-o", folder / name).status == 0
    return [folder / name for name in NAMES.values()]


@pytest.mark.slow
def test_new_packages_install_and_pass_their_own_tests(tmp_path: Path) -> None:
    packages = written(tmp_path)
    install(packages, tmp_path / "site")
    tests = [str(package / "tests") for package in packages]
    done = python(tmp_path / "site", *PYTEST, str(tmp_path), *tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    check = ("-m", "qir", "plugins", "check", NAMES["observer"])
    done = python(tmp_path / "site", *check, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_new_packages_are_worked_on_where_they_lie(tmp_path: Path) -> None:
    """Installed by `pip install -e`: what is changed in the folder is changed in the plugin."""
    packages = written(tmp_path)
    here = venv(tmp_path / "venv")
    install_for_work(packages, here)

    def run(*words: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(here), *words],
            cwd=cwd,
            env=os.environ | {"COLUMNS": "160", "MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    names = [entry(kind, name) for kind, name in NAMES.items()]
    done = run("-m", "qir", "plugins", "check", *names)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("checks passed") == len(NAMES) + 1, done.stdout  # a profile
    for folder in packages:
        done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder)
        assert done.returncode == 0, done.stdout
        quiet = ("--follow-imports", "silent", "--cache-dir", str(tmp_path / "mypy"))
        done = run("-m", "mypy", *quiet, cwd=folder)
        assert done.returncode == 0, done.stdout
    source = tmp_path / "drop-twice" / "qir_drop_twice" / "__init__.py"
    source.write_text(source.read_text().replace("qir_api = 1", "qir_api = 2"))
    done = run("-m", "qir", "plugins", "check", "drop-twice")
    assert done.returncode == 1
    assert "written for plugin API 2" in " ".join(done.stdout.split())
