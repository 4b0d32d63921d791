"""The shell completes command lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import qir

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
FOLDER = Path(sys.executable).parent
"""Where the command is installed."""


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    lines = (
        'eval "$(qir --completion bash)"',
        f"COMP_WORDS=({' '.join(map(repr, words))})",
        f"COMP_CWORD={len(words) - 1}",
        "_qir_completion qir",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    path = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("qir", "quan"), ["quantize"]),
        (("qir", "quantize", "--sq"), ["--sqnr"]),
        (("qir", "quantize", "--granularity", ""), ["channel", "tensor"]),
        (("qir", "quantize", "--target", "pytorch-q"), ["pytorch-qnnpack"]),
        (("qir", "nothing", "--sq"), []),
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_scripts(shell: str) -> None:
    made = qir("--completion", shell)
    assert made.status == 0
    assert f"_QIR_COMPLETE={shell}_complete" in made.out
