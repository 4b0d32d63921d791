"""Installing a distribution into a folder of its own, offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
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


def venv(folder: Path) -> Path:
    """A throw-away environment that sees what this one has; gives its Python."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, capture_output=True, check=True)
    house = sysconfig.get_path("purelib")
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "house.pth").write_text(f"import site; site.addsitedir({house!r})\n")
    return folder / "bin" / "python"


def install_for_work(sources: list[Path], environment: Path) -> None:
    """Installs packages into an environment as those do who work on them: `pip install -e`."""
    command = [sys.executable, "-m", "pip", "--python", str(environment), "install", "-q"]
    command += ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    for source in sources:
        command += ["-e", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
