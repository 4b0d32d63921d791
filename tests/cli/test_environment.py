"""Environment variables that say what cannot be."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qir._kernels._cpu import SETS
from tests.cli.command import assert_one_line, process

WRONG = [
    ({"QIR_NUM_THREADS": "0"}, "QIR_NUM_THREADS is '0', not a number of threads: 1 or more"),
    ({"QIR_NUM_THREADS": "two"}, "QIR_NUM_THREADS is 'two', not a number of threads: 1 or more"),
    ({"QIR_ISA": "foo"}, f"QIR_ISA is 'foo'; known are {', '.join(SETS.bits)}"),
]
COMMANDS = {
    "doctor": ("doctor",),
    "run": ("run", "quantized.onnx", "--data", "samples.npy", "--with", "cpu"),
}


@pytest.mark.parametrize(("variables", "said"), WRONG, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_that_means_nothing_is_one_line(
    made: Path, command: str, variables: dict[str, Any], said: str
) -> None:
    outcome = process(*COMMANDS[command], cwd=made, **variables)
    assert_one_line(outcome, 2)
    assert outcome.err == f"qir: {said}\n", outcome


def test_more_threads_than_there_can_be_are_as_many_as_there_can(made: Path) -> None:
    outcome = process(*COMMANDS["run"], cwd=made, QIR_NUM_THREADS="99999999999999", QIR_ISA="avx2")
    assert outcome.status == 0, outcome


def test_a_command_does_not_search_what_it_leaves_for_garbage() -> None:
    # Of what is called at the end, the last comes first.
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
        "from qir.cli import main\n"
        "sys.argv = ['qir', '--version']\n"
        "main()\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines()[-1] == "True"
