"""Kernels built with a fault: the comparison of whole networks with onnxruntime finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("qir", "frontends", "backends", "tests", "pyproject.toml", "setup.py", "README.md")
TESTS = "tests/differential/onnxruntime/test_qoperator.py"


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose products skip the last column of a partial tile."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("faulty")
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    built = run(folder, "setup.py", "-q", "build_ext", "--inplace", CFLAGS="-DQIR_FAULT_TAIL")
    assert built.returncode == 0, built.stderr[-2000:]
    # The mapped folders are installed by these names; here they stand in for that.
    for name in ("frontends", "backends"):
        (folder / "qir" / name).symlink_to(folder / name)
    return folder


def pytest_of(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "pytest", "-q", "-x", "-p", "no:xdist", f"{TESTS}::{name}")


@pytest.mark.long
def test_a_skipped_tail_column_turns_the_comparison_of_kernels_red(faulty: Path) -> None:
    shown = run(faulty, "-c", "import qir._kernels._cpu as k; print(k.__file__)").stdout
    assert str(faulty) in shown
    tested = pytest_of(faulty, "test_the_kernels_give_every_tensor_as_onnxruntime_does")
    assert tested.returncode == 1, tested.stdout[-2000:]
    assert " differ, first " in tested.stdout


@pytest.mark.long
def test_it_leaves_the_comparison_of_the_reference_green(faulty: Path) -> None:
    tested = pytest_of(faulty, "test_the_reference_gives_every_tensor_as_onnxruntime_does")
    assert tested.returncode == 0, tested.stdout[-2000:]
