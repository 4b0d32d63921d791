"""Runs models of one op that come in on standard input, and writes their results to the output."""

from __future__ import annotations

import os
import pickle
import sys


def main(package: str) -> None:
    """Answers (case, resolver) by an array, or by a text that says why not."""
    from .models import Runner, runtime

    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the interpreters print stays out of the answers
    runner: Runner | None = None
    while True:
        try:
            case, resolver = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if runner is None:
                runner = Runner(*runtime(package)[1:])
            answer: object = runner.run(case, resolver)
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        pickle.dump(answer, stream)
        stream.flush()


if __name__ == "__main__":
    main(sys.argv[1])
