"""Running the command line, in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from qir.cli.app import app


@dataclass(frozen=True)
class Outcome:
    """What a command left: its status and what it printed."""

    command: str
    status: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"qir {self.command}\n-> {self.status}\n{self.out}{self.err}"


def qir(*words: str | Path) -> Outcome:
    """Runs a command line in this process."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    command = " ".join(map(str, words))
    return Outcome(command, result.exit_code, result.stdout, result.stderr)


def process(
    *words: str | Path,
    cwd: Path,
    limit: Callable[[], None] | None = None,
    **environment: str,
) -> Outcome:
    """Runs a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "qir", *map(str, words)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        timeout=120,
    )
    return Outcome(" ".join(map(str, words)), done.returncode, done.stdout, done.stderr)


def assert_one_line(outcome: Outcome, *statuses: int) -> None:
    """A failure says one line that is short, and nothing else."""
    assert outcome.status in statuses, outcome
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome
    assert lines[0].startswith("qir: "), outcome
    assert len(lines[0]) < 800, outcome
    assert lines[0].isprintable(), outcome
    assert "Traceback" not in outcome.err + outcome.out, outcome
    assert "a fault in QIR" not in outcome.err, outcome
