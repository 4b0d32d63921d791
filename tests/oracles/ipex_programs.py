"""Records what Intel's extension for PyTorch computes of the programs of `ipex_programs`.

    QIR_IPEX=build/oracles/ipex/bin/python python -m tests.oracles.ipex_programs

The extension runs in the Python that the variable names, QIR in this one. `make oracle-ipex` does
it, with ONEDNN_MAX_CPU_ISA as the profile's `isa` says.
"""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np

from qir.backends.ipex.probe import Ipex, told
from qir.inspect.pipe import pack
from tests.differential.ipex_programs import FAMILIES, VECTORS, Codes, Program

FILE = VECTORS / "programs.npz"


def digest(program: Program) -> str:
    """What was asked, in short."""
    return hashlib.sha256(pack(told(program.graph, program.feeds))).hexdigest()[:16]


def recorded() -> dict[str, Codes]:
    """The results of all programs, and under `asked` what each was asked."""
    runtime, found, asked = Ipex(), {}, []
    for family, made in FAMILIES.items():
        for program in made():
            found[program.key] = runtime.run(program.graph, program.feeds)
            asked.append(f"{program.key} {digest(program)}")
        print(family, len(found), flush=True)
    return found | {"asked": np.array(asked)}


def main() -> None:
    found = recorded()
    if FILE.exists():
        with np.load(FILE) as held:
            same = sum(n in held.files and np.array_equal(held[n], a) for n, a in found.items())
        print(f"{same} of {len(found)} arrays are those that were here")
        if same == len(found):
            return
    np.savez_compressed(FILE, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    if not os.environ.get("QIR_IPEX"):
        sys.exit("QIR_IPEX names no Python with Intel's extension for PyTorch")
    main()
