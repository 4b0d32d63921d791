"""Changes of readers, writers and ledger entries, each with tests that must fail under it.

`python -m tests.mutation.sources [WORD]` runs them all, or those whose file or text has the word.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("sources.toml")
NEEDED = ("qir", "frontends", "backends", "tests", "docs", "examples", "pyproject.toml")
MAPPED = ("frontends", "backends")
FAILED = 1
"""pytest's exit status where it ran and a test failed; others say that it could not run."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a source file, and the tests of which at least one must fail."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.before.strip()!r} -> {self.after.strip()!r}"

    def text(self) -> str:
        """The changed file; an assertion where what is to be changed is not there exactly once."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        assert text.count(self.before) == 1, f"{self}: found {text.count(self.before)} times"
        return text.replace(self.before, self.after)

    def unnoticed(self) -> str:
        """Runs the tests on a copy with the change; returns what they printed if none failed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self._plant(folder)
            done = subprocess.run(
                [*PYTEST, *self.tests],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
        said = f"{self}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
        return "" if done.returncode == FAILED else said

    def _plant(self, folder: Path) -> None:
        """Links to everything, except for the changed file and the folders above it."""
        for name in NEEDED:
            (folder / name).symlink_to(ROOT / name)
        changed = Path(self.file)
        for above in [*reversed(changed.parents)][1:]:
            _open(folder / above, ROOT / above)
        (folder / changed).unlink()
        (folder / changed).write_text(self.text(), encoding="utf-8")
        if (folder / "qir").is_symlink():
            _open(folder / "qir", ROOT / "qir")
        for name in MAPPED:  # which are installed by these names
            (folder / "qir" / name).symlink_to(folder / name)


PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-o", "cache_dir=cache")


def _open(link: Path, folder: Path) -> None:
    """Makes a real folder of links from one link to a folder."""
    link.unlink()
    link.mkdir()
    for entry in folder.iterdir():
        if entry.name != "__pycache__":
            (link / entry.name).symlink_to(entry)


def mutations() -> tuple[Mutation, ...]:
    """The table."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutation"]
    return tuple(Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows)


def main(words: Sequence[str]) -> int:
    """Runs the mutations that the words name; exit status 1 where no test noticed one."""
    unnoticed = 0
    for mutation in mutations():
        if all(word in str(mutation) for word in words):
            said = mutation.unnoticed()
            unnoticed += bool(said)
            print(f"{'NOT NOTICED' if said else 'noticed'}  {mutation}", flush=True)
            print(said, end="")
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
