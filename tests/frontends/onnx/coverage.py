"""Operator by operator: what is read, run, written, and in tests that compare bytes.

`python -m tests.frontends.onnx.coverage` writes docs/reference/onnx-coverage.md, from the tables
of the frontend, from docs/reference/onnx.md, and from the tests that name an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from qir.frontends.onnx.frontend import _HANDLERS
from tests.differential.compared import models

from .conformance import PAGE as CASES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "onnx-coverage.md"
BYTES = (
    "test_contrib*.py",
    "test_dynamic_models.py",
    "test_emitted.py",
    "test_half_scales.py",
    "test_ort_methods.py",
    "test_qdq_*.py",
    "test_qoperator.py",
    "test_resized_codes.py",
    "test_texts.py",
    "test_whole_image_pools.py",
)
"""Tests whose results are compared with onnxruntime's, quantized values by `==`."""
_MOST = 400
"""Sets of parameters of a test; none has as many."""
HEAD = """# ONNX, operator by operator

Made by `python -m tests.frontends.onnx.coverage`.

| column | meaning |
|---|---|
| read | *ops*: converted to ops of the language. *kept*: a foreign op, written back unchanged and \
run by onnxruntime or ONNX's evaluator. Some ops are kept in some cases, such as axes, sizes or \
pads that are computed at run time |
| run, written | how many of the `onnx` package's node tests of that operator pass in the \
interpreter, and in onnxruntime when written back ([case by case](onnx.md)) |
| in tests of bytes | whether its result, float or quantized, is an output of a model whose \
outputs a test compares with onnxruntime's: quantized values by `==`, floats within stated bounds |
"""


def rows() -> dict[str, tuple[str, str, str, str]]:
    """What the page of cases says of each operator: how many, right as read and written, kept."""
    text = CASES.read_text(encoding="utf-8").partition("## Operator by operator")[2]
    row = r"^\| (\S+) \| (\d+) \| \d+ \| (\d+) \| (\d+) \| (\d+) \|"
    return {
        name: (n, ran, written, kept) for name, n, ran, written, kept in re.findall(row, text, re.M)
    }


def compared() -> set[tuple[str, str]]:
    """The operators whose results are outputs of the models of those tests."""
    return {key for model in models(BYTES, _MOST) for key in _given(model.graph)}


def _given(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """The operators whose results a model gives, as they are or between reals and codes."""
    outs = {out.name for out in graph.output}
    turned = [n for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    given = outs | {n.input[0] for n in turned if not outs.isdisjoint(n.output)}
    for node in graph.node:
        if not given.isdisjoint(node.output):
            yield node.domain, node.op_type


def operators() -> Iterator[tuple[str, str]]:
    """Domain and name of each: ONNX's of the newest set, and those the frontend knows beside."""
    newest = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    yield from (("", name) for name in sorted(newest))
    yield from sorted(key for key in _HANDLERS if key[0])


def page() -> str:
    """The page."""
    cases, held = rows(), compared()
    lines = [
        HEAD,
        "| operator | read | run | written | in tests of bytes |",
        "|---|---|---|---|---|",
    ]
    count = kept = 0
    for domain, name in operators():
        full = f"{domain}.{name}" if domain else name
        known = (domain, name) in _HANDLERS
        count, kept = count + 1, kept + (not known)
        total, ran, written, left = cases.get(full, ("", "", "", "0"))
        read = "kept" if not known else "ops" if left == "0" else f"ops; {left} cases kept"
        shares = [f"{n} of {total}" if total else "-" for n in (ran, written)]
        exact = "yes" if known and (domain, name) in held else "-"
        lines.append(f"| {full} | {read} | {' | '.join(shares)} | {exact} |")
    lines += ["", f"{count} operators, {count - kept} read as ops of the language.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
