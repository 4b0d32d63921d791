"""The house's form, as its tools see it; `make format` mends most of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FOLDERS = ("qir", "frontends", "backends", "tests", "benchmarks", "examples")
LONGEST = 600


def files(*suffixes: str) -> list[str]:
    """The project's own files of these kinds, relative to its root."""
    found = [ROOT / "setup.py"] + [p for top in FOLDERS for p in (ROOT / top).rglob("*")]
    return sorted(p.relative_to(ROOT).as_posix() for p in found if p.suffix in suffixes)


def accepts(tool: str, *arguments: str) -> None:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # cython-lint looks for pycodestyle there
    run = subprocess.run(
        [str(BIN / tool), *arguments],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{tool}:\n{run.stdout}{run.stderr}"


def test_ruff_finds_nothing() -> None:
    accepts("ruff", "check", "--quiet", ".")


def test_python_is_formatted() -> None:
    accepts("ruff", "format", "--quiet", "--check", ".")


@pytest.mark.slow
def test_mypy_finds_nothing_in_what_is_shipped() -> None:
    accepts("mypy", "--no-error-summary", "qir", "frontends", "backends")


@pytest.mark.long
def test_mypy_finds_nothing() -> None:
    accepts("mypy", "--no-error-summary")


def test_cython_lint_finds_nothing() -> None:
    doors = files(".pyx", ".pxd")
    assert doors
    accepts("cython-lint", *doors)


def test_c_is_formatted() -> None:
    sources = files(".c", ".h", ".inc")
    assert sources
    accepts("clang-format", "--dry-run", "-Werror", *sources)


def test_every_file_can_be_held_in_the_head() -> None:
    lengths = {
        name: len((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in files(".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".inc")
    }
    assert lengths
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST}
    assert not long, f"more than {LONGEST} lines: {long}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"common", "core", "helpers", "manager", "misc", "util", "utils"}
    assert [name for name in files(".py", ".pyx") if Path(name).stem in empty] == []


def test_every_folder_of_modules_is_a_package() -> None:
    shipped = ("qir/", "frontends/", "backends/")
    folders = {(ROOT / name).parent for name in files(".py") if name.startswith(shipped)}
    assert folders
    bare = {str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()}
    assert not bare, f"no __init__.py, so setuptools leaves out {bare}"
