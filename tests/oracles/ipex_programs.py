"""Records what Intel's extension for PyTorch computes of the programs of `ipex_programs`.

    QIR_IPEX=build/oracles/ipex/bin/python python -m tests.oracles.ipex_programs

The extension runs in the Python that the variable names, QIR in this one; `make oracle-ipex` does
it. oneDNN is told to take this processor, which needs AVX512-VNNI, for one of each kind.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from qir.backends.ipex.probe import Ipex, told
from qir.inspect.pipe import pack
from tests.differential.ipex_programs import FAMILIES, PROCESSORS, VECTORS, Codes, Program, narrow

FILE = VECTORS / "programs.npz"


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


def digest(program: Program) -> str:
    """What was asked, in short."""
    return hashlib.sha256(pack(told(program.graph, program.feeds))).hexdigest()[:16]


def recorded() -> dict[str, Codes]:
    """The results of all programs, and under `asked` what each was asked."""
    found, asked = {}, []
    families = [(name, made, "", BEST) for name, made in FAMILIES.items()]
    families += [(isa, narrow, f"{isa}/", said) for isa, said in PROCESSORS.items()]
    for family, made, before, said in families:
        with on(said) as runtime:
            for program in made():
                found[before + program.key] = runtime.run(program.graph, program.feeds)
                asked.append(f"{before + program.key} {digest(program)}")
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
