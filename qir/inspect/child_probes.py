"""Probes of runtimes that want a Python of their own: a program there is asked over a pipe."""

from __future__ import annotations

import subprocess
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np

from qir.errors import OpError
from qir.inspect import pipe
from qir.inspect.runtimes import Probe, Tensor


class OtherRuntime(Probe):
    """A runtime that a program of its plugin runs, in a Python that has it.

    The program is started with the path of `pipe.py`, as QIR need not be there, and ends with this
    process.
    """

    script: ClassVar[Path]

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        if self.child is None:
            self.child = subprocess.Popen(
                [self.python, "-W", "ignore", str(self.script), str(Path(pipe.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            # The child ends with the probe, or with this process at the latest.
            weakref.finalize(self, pipe.close, self.child)

    def ask(self, question: pipe.Plain) -> Tensor:
        """Returns the array that the program answers; raises OpError where it has none, or has
        ended."""
        return np.asarray(self.answer(question))

    def answer(self, question: pipe.Plain) -> pipe.Plain:
        """Returns what the program answers; raises OpError where that is a text of why not, or it
        has ended."""
        self.begin()
        child = self.child
        assert child is not None
        try:
            answer = pipe.ask(child, question)
        except EOFError:
            self.child = None
            raise OpError(f"{self.python} ended: {child.wait()}") from None
        if isinstance(answer, str):
            raise OpError(answer[:160])
        return answer
