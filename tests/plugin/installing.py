"""Installing a distribution into a folder of its own, offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ACME = Path(__file__).parent / "acme"


def install(sources: list[Path], site: Path) -> None:
    """Builds packages as an installer does and puts them into a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(site)]
    done = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def install_acme(folder: Path) -> Path:
    """The stranger's distribution, built of a copy; gives the folder to put on the path."""
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ACME, folder / "acme", ignore=ignore)
    install([folder / "acme"], folder / "site")
    return folder / "site"


def python(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with a folder of installed packages before all others."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )
