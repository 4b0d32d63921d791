"""Operator by operator: what is read, run, written, and in tests that compare bytes.

`python -m tests.frontends.onnx.coverage` writes docs/reference/onnx-coverage.md, from the tables
of the frontend, from docs/reference/onnx.md, and from the tests that name an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from qir.frontends.onnx.frontend import _HANDLERS, handler_of
from qir.frontends.onnx.other_domains import HANDLERS
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
    """Returns what the page of cases says of each operator: how many, right as read and written,
    kept.
    """
    text = CASES.read_text(encoding="utf-8").partition("## Operator by operator")[2]
    row = r"^\| (\S+) \| (\d+) \| \d+ \| (\d+) \| (\d+) \| (\d+) \|"
    return {
        name: (total, interpreted, written_back, kept_cases)
        for name, total, interpreted, written_back, kept_cases in re.findall(row, text, re.M)
    }


def compared() -> set[tuple[str, str]]:
    """Returns the operators whose results are outputs of the models of those tests."""
    return {key for model in models(BYTES, _MOST) for key in _given(model.graph)}


def _given(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yields the operators whose results a model returns, directly or through a quantization op."""
    output_names = {output.name for output in graph.output}
    quantizers = [n for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    compared_names = output_names | {
        n.input[0] for n in quantizers if not output_names.isdisjoint(n.output)
    }
    for node in graph.node:
        if not compared_names.isdisjoint(node.output):
            yield node.domain, node.op_type


def operators() -> Iterator[tuple[str, str]]:
    """Yields domain and name: ONNX's newest operators, and what the frontend knows of other
    domains.
    """
    newest = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    yield from (("", name) for name in sorted(newest))
    yield from sorted(key for key in {*_HANDLERS, *HANDLERS} if key[0])


def page() -> str:
    """Returns the text of the page."""
    cases, byte_tested = rows(), compared()
    lines = [
        HEAD,
        "| operator | read | run | written | in tests of bytes |",
        "|---|---|---|---|---|",
    ]
    count = kept_operators = 0
    for domain, name in operators():
        full = f"{domain}.{name}" if domain else name
        has_handler = handler_of(domain, name) is not None
        count, kept_operators = count + 1, kept_operators + (not has_handler)
        total, interpreted, written_back, kept_cases = cases.get(full, ("", "", "", "0"))
        read = (
            "kept"
            if not has_handler
            else "ops"
            if kept_cases == "0"
            else f"ops; {kept_cases} cases kept"
        )
        shares = [f"{n} of {total}" if total else "-" for n in (interpreted, written_back)]
        exact = "yes" if has_handler and (domain, name) in byte_tested else "-"
        lines.append(f"| {full} | {read} | {' | '.join(shares)} | {exact} |")
    lines += ["", f"{count} operators, {count - kept_operators} read as ops of the language.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
