"""Operator by operator: what is read, run, written, and held to onnxruntime's bytes.

`python -m tests.frontends.onnx.coverage` writes docs/reference/onnx-coverage.md, from the tables
of the frontend, from docs/reference/onnx.md, and from the tests that name an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from qir.frontends.onnx.frontend import _HANDLERS

from .conformance import PAGE as CASES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "onnx-coverage.md"
BYTES = (
    "tests/differential/contrib*.py",
    "tests/differential/test_contrib*.py",
    "tests/differential/models.py",
    "tests/differential/ort_tools.py",
    "tests/differential/networks.py",
    "tests/differential/test_dynamic_models.py",
    "tests/differential/test_ort_methods.py",
)
"""Tests whose results are compared with onnxruntime's, codes by `==`."""
HEAD = """# ONNX, operator by operator

Made by `python -m tests.frontends.onnx.coverage`. *Read*: as ops of the language, or kept as it is,
run by onnxruntime or ONNX's evaluator, and given back. *Run* and *written*: how many of the `onnx`
package's node tests of that operator alone give what they should in the interpreter, and in
onnxruntime when written back ([case by case](onnx.md)). *Bytes*: it is named by tests whose every
tensor of codes is compared with onnxruntime's by `==`; sums of floats are held to stated bounds.
"""


def rows() -> dict[str, tuple[str, str, str]]:
    """What the page of cases says of each operator: how many, right in the interpreter, written."""
    text = CASES.read_text(encoding="utf-8").partition("## Operator by operator")[2]
    found = re.findall(r"^\| (\S+) \| (\d+) \| \d+ \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    return {name: (cases, ran, written) for name, cases, ran, written in found}


def named() -> str:
    """The text of the tests that compare bytes."""
    paths = sorted(p for pattern in BYTES for p in ROOT.glob(pattern))
    return "\n".join(p.read_text(encoding="utf-8") for p in paths)


def operators() -> Iterator[tuple[str, str]]:
    """Domain and name of each: ONNX's of the newest set, and those the frontend knows beside."""
    newest = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    yield from (("", name) for name in sorted(newest))
    yield from sorted(key for key in _HANDLERS if key[0])


def page() -> str:
    """The page."""
    cases, tests = rows(), named()
    lines = [HEAD, "| operator | read | run | written | bytes |", "|---|---|---|---|---|"]
    count = kept = 0
    for domain, name in operators():
        full = f"{domain}.{name}" if domain else name
        known = (domain, name) in _HANDLERS
        count, kept = count + 1, kept + (not known)
        total, ran, written = cases.get(full, ("", "", ""))
        shares = [f"{n} of {total}" if total else "-" for n in (ran, written)]
        exact = "yes" if re.search(rf"\b{name}\b", tests) and known else "-"
        lines.append(f"| {full} | {'ops' if known else 'kept'} | {' | '.join(shares)} | {exact} |")
    lines += ["", f"{count} operators, {count - kept} read as ops of the language.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
