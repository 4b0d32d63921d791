"""The page of profiles that rest on recorded results.

`python -m tests.mutation.page` writes docs/reference/recorded.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qir.profiles import profile
from tests.differential.ipex.test_ipex_vectors import PROFILE as IPEX
from tests.differential.mxnet.recorded import PROFILE as MXNET
from tests.differential.onnxruntime.test_qonnx_vectors import PROFILE as QONNX
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    NEWER,
    REFERENCE,
    SAME,
    SYMMETRIC,
    VALID,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recorded.md"
HEAD = """# Profiles that rest on recorded results

Some runtimes cannot be installed next to the tests: they need an environment of their own, or are
no longer supported. Their results were recorded in `tests/differential/vectors`, and every `make
test` compares their profiles with them. Inputs come from seeds, and a hash checks them.

| runtime | recorded again by | needs |
|---|---|---|
| TensorFlow Lite 2.21 and LiteRT 2.3 | `make oracle-tflite` \
| two environments of their own; `make test-all` also runs LiteRT live |
| Intel's extension for PyTorch 2.8 | `make oracle-ipex` \
| an environment of 7 GB, archived, with known security issues: \
read the head of `tests/oracles/ipex_vectors.py` |
| MXNet 1.9.1 | `make oracle-mxnet` \
| an environment of its own, of Python up to 3.11; where it is in `build/oracles/mxnet`, or \
`QIR_MXNET` names its Python, a test records anew |
| QONNX 1.0 | `python -m tests.oracles.qonnx_vectors` | the package `qonnx` |

IPEX was recorded again in November 2026 (torch 2.8.0+cu128, the extension 2.8.0+cpu, oneDNN 3.7.1
of torch, NumPy 2.4.6, Python 3.11.7, on another processor, limited to AVX512-VNNI without AMX): all
1,476 arrays of the 28 cases in the tests have the same bytes; two scales, which an
observer chose from a product in float32, in an order of its own, differ in their last bit. Of all
548 files recorded at first 534 were recorded again: apart from these two scales' results, traced
ones differ only where products of three axes stay float (matmul3d by one step, matmul3d_float in
last bits), whose sums each processor adds in an order of its own. `programs.npz`, `kernels.npz` and
`woq.npz` hold what was added then, and `registered.txt` lists the kernels. Where the environment
is in `build/oracles/ipex`, or `QIR_IPEX` names its Python, `qir probe ipex` measures
the extension as any other runtime, and a test runs some programs anew.

A test changes each field that these profiles state to each other value it may have, one at a time.
The recorded results find it, or it is listed [with the reason](indistinct.md): these are not
verified.
"""
RECORDED = (REFERENCE, SYMMETRIC, DELEGATE, SAME, VALID, NEWER, IPEX, MXNET, QONNX)


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    for name in RECORDED:
        found = profile(name)
        yield f"## {name}\n"
        if found.head.extends:
            yield f"Extends `{found.head.extends}`.\n"
        yield from (f"- {note}" for note in found.head.notes)
        if found.head.notes:
            yield ""


def text() -> str:
    """The page."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
