"""Runs models of one op that come in on standard input, and writes their results to the output."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from qir.inspect.pipe import Plain, serve


def main(package: str) -> None:
    """Answers (case, resolver) by an array, or by a text that says why not."""
    from .models import CaseOperand, OpCase, Runner, runtime

    def case(request: Any) -> OpCase:
        operand_fields, out, options = request
        operands = {slot: CaseOperand(*fields) for slot, fields in operand_fields.items()}
        return OpCase(operands=operands, out=CaseOperand(*out), **options)

    # Answers go to a copy of the original standard output; descriptor 1 becomes stderr.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the interpreters print stays out of the answers
    loaded: list[Runner] = []
    with suppress(ImportError):  # reported when something is asked for
        loaded.append(Runner(*runtime(package)[1:]))

    def answer(request: Any) -> Plain:
        if not loaded:
            loaded.append(Runner(*runtime(package)[1:]))
        return loaded[0].run(case(request[0]), request[1])

    serve(answer, stream, (Exception,))


if __name__ == "__main__":
    main(sys.argv[1])
