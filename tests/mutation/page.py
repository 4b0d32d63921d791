"""The page of profiles that rest on recorded results.

`python -m tests.mutation.page` writes docs/reference/recorded.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qir.numerics import profile
from tests.differential.test_ipex_vectors import PROFILE as IPEX
from tests.differential.test_qonnx_vectors import PROFILE as QONNX
from tests.differential.test_tflite_vectors import DELEGATE, NEWER, REFERENCE, SYMMETRIC

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recorded.md"
HEAD = """# Profiles that rest on recorded results

Some runtimes cannot stand beside the tests: they want an environment of their own, or have no more
support. What they computed was recorded, is kept in `tests/differential/vectors`, and every `make
test` holds their profiles to it. Inputs are made from seeds; a hash says that they are the same.

| runtime | recorded again by | needs |
|---|---|---|
| TensorFlow Lite 2.21 and LiteRT 2.3 | `make oracle-tflite` \
| two environments of their own; `make test-all` also runs LiteRT live |
| Intel's extension for PyTorch 2.8 | `make oracle-ipex` \
| a laboratory of 6 GB, archived, with known security issues: \
read the head of `tests/oracles/ipex_vectors.py` |
| QONNX 1.0 | `python -m tests.oracles.qonnx_vectors` | the package `qonnx` |

A test changes each field that these profiles state to each other value it may have, one at a time.
The recorded results find it, or it is listed [with the reason](indistinct.md): of these nothing is
claimed.
"""
RECORDED = (REFERENCE, SYMMETRIC, DELEGATE, NEWER, IPEX, QONNX)


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
