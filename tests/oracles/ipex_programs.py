"""Records what Intel's extension for PyTorch computes of the programs of `ipex_programs`.

    QIR_IPEX=build/oracles/ipex/bin/python python -m tests.oracles.ipex_programs [FAMILY ...]

The extension runs in the Python that the variable names, QIR in this one; `make oracle-ipex` does
it. oneDNN is told to take this processor, which needs AVX512-VNNI, for one of each kind.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from qir.backends.ipex.probe import Ipex, program_of
from qir.inspect import pipe
from qir.inspect.pipe import pack
from tests.differential.ipex.programs import (
    FAMILIES,
    PROCESSORS,
    VECTORS,
    Codes,
    Program,
    narrow,
    some,
)

FILE = VECTORS / "programs.npz"
MADE = VECTORS / "kernels_made.txt"
"""The kernels that the extension made of each program."""


BEST = "AVX512_CORE_VNNI"


@contextmanager
def on(isa: str) -> Iterator[Ipex]:
    """The extension in a process whose oneDNN takes this processor for one of that kind."""
    before = os.environ.get("ONEDNN_MAX_CPU_ISA")
    os.environ["ONEDNN_MAX_CPU_ISA"] = isa
    try:
        runtime = Ipex()
        runtime.begin()
        yield runtime
    finally:
        os.environ.pop("ONEDNN_MAX_CPU_ISA")
        if before is not None:
            os.environ["ONEDNN_MAX_CPU_ISA"] = before


def kernels(only: Sequence[str]) -> None:
    """Writes what kernels are made of the programs of some families, or of all."""
    held = dict(line.split(" ", 1) for line in MADE.read_text().splitlines()) if only else {}
    here, inside = Path(__file__).with_name("ipex_graphs.py"), os.environ["QIR_IPEX"]
    words = [inside, "-W", "ignore", str(here), pipe.__file__, str(Ipex.script)]
    named = {"env": {**os.environ, "ONEDNN_MAX_CPU_ISA": BEST}, "stderr": subprocess.DEVNULL}
    both = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **named, **both) as child:  # type: ignore[call-overload]
        for family in (name for name in FAMILIES if not only or name in only):
            for program in some(family):
                child.stdin.write(pack(program_of(program.graph, program.feeds)))
                child.stdin.flush()
                held[program.key] = str(pipe.receive(child.stdout))
    MADE.write_text("".join(f"{key} {said}\n" for key, said in sorted(held.items())))


def digest(program: Program) -> str:
    """What was asked, in short."""
    return hashlib.sha256(pack(program_of(program.graph, program.feeds))).hexdigest()[:16]


def recorded(only: Sequence[str]) -> tuple[dict[str, Codes], dict[str, str]]:
    """The results of programs of some families, or of all, and what each was asked."""
    found: dict[str, Codes] = {}
    asked: dict[str, str] = {}
    families = [(name, made, "", BEST) for name, made in FAMILIES.items()]
    families += [(isa, narrow, f"{isa}/", said) for isa, said in PROCESSORS.items()]
    for family, made, before, said in families:
        if only and family not in only:
            continue
        with on(said) as runtime:
            for program in made():
                found[before + program.key] = runtime.run(program.graph, program.feeds)
                asked[before + program.key] = digest(program)
        print(family, len(found), flush=True)
    return found, asked


def main(only: Sequence[str]) -> None:
    found, asked = recorded(only)
    if FILE.exists():
        with np.load(FILE) as file:
            held = {name: file[name] for name in file.files if name != "asked"}
            told = dict(str(line).rsplit(" ", 1) for line in file["asked"])
        same = sum(n in held and np.array_equal(held[n], a) for n, a in found.items())
        print(f"{same} of {len(found)} arrays are those that were here")
        if same == len(found) and (only or found.keys() == held.keys()):
            return
        found, asked = (held | found, told | asked) if only else (found, asked)
    lines = np.array([f"{name} {said}" for name, said in asked.items()])
    np.savez_compressed(FILE, asked=lines, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    if not os.environ.get("QIR_IPEX"):
        sys.exit("QIR_IPEX names no Python with Intel's extension for PyTorch")
    main(sys.argv[1:])
    kernels(sys.argv[1:])
