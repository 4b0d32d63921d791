"""Tells what kernels Intel's extension for PyTorch makes of programs on standard input.

`python ipex_graphs.py PIPE CHILD`, with the paths of `qir/inspect/pipe.py` and of the plugin's
`child.py`: QIR itself is not imported. Started by `ipex_programs`.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from typing import Any

_OP = re.compile(r"= (?:aten|ipex|quantized)::(\w+)")
_GROUP = re.compile(r"^with ipex::(LlgaFusionGroup_\d+) = ", re.MULTILINE)


def kernels(text: str) -> str:
    """The ops of a traced graph in order, those of one LlgaFusionGroup in brackets."""
    top, *parts = _GROUP.split(text)
    within = {n: " ".join(_OP.findall(t)) for n, t in zip(parts[::2], parts[1::2], strict=True)}
    return " ".join(f"[{within[op]}]" if op in within else op for op in _OP.findall(top))


def main(pipe: str, child: str) -> None:
    """Answers programs by a text."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the extension prints stays out of the answers
    run: Any = runpy.run_path(child)["run"]
    sys.modules["torch"].set_num_threads(1)
    runpy.run_path(pipe)["serve"](lambda asked: kernels(run(asked)[1]), stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
