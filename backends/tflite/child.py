"""Runs models of one op that come in on standard input, and writes their results to the output."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from qir.inspect.pipe import Plain, pack, receive


def main(package: str) -> None:
    """Answers (case, resolver) by an array, or by a text that says why not."""
    from .models import CaseOperand, OpCase, Runner, runtime

    def case(told: Any) -> OpCase:
        held, out, rest = told
        operands = {slot: CaseOperand(*of) for slot, of in held.items()}
        return OpCase(operands=operands, out=CaseOperand(*out), **rest)

    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the interpreters print stays out of the answers
    runner: Runner | None = None
    with suppress(ImportError):  # which is told when something is asked for
        runner = Runner(*runtime(package)[1:])
    while True:
        try:
            asked: Any = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if runner is None:
                runner = Runner(*runtime(package)[1:])
            answer: Plain = runner.run(case(asked[0]), asked[1])
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        stream.write(pack(answer))
        stream.flush()


if __name__ == "__main__":
    main(sys.argv[1])
