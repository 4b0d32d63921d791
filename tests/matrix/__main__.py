"""Writes docs/reference/five-rows.md; `QIR_MXNET` names MXNet's Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qir.ledger import Ledger

from .records import is_ipex, predicted_digest, recorded_measurement
from .rows import (
    NETWORKS,
    ROWS,
    Measurement,
    Row,
    float_accuracy,
    integer_share,
    measure,
    quantize_for_row,
)
from .rows import file_size as size_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "five-rows.md"
HEAD = """# The five rows

Two float networks are quantized for five frameworks with one call each, run in these frameworks,
and compared with what QIR predicts: every quantized tensor, element by element. `make matrix`
writes this page. Both networks tell scikit-learn's digits apart: a ResNet of three blocks, read
from PyTorch, and the MobileNet of `examples/digits`, read from ONNX. They are measured on 500
images that neither training nor calibration saw. The tests of each backend have other networks.

Four frameworks run live. IPEX is archived and hardly installed anywhere: its rows are recorded
results of IPEX 2.8 with torch 2.8 on AVX512-VNNI. They hold as long as QIR predicts the same
tensors as when they were recorded, which the tests check. `make oracle-ipex` records them anew.

| column | says |
|---|---|
| accuracy | of the framework's results, in percent; the heading has the float network's |
| integer | share of multiply-adds on integers |
| tensors, elements | quantized tensors compared with `==`, and their elements |
| differing | elements that differ |
| bytes | size of the files that were written |
| ledger | lines of the ledger, by what became of the numbers |
"""
COLUMNS = (
    *("framework", "activations", "accuracy", "integer", "tensors"),
    *("elements", "differing", "bytes", "ledger"),
)
LEAST_SHARE, MOST_LOST = 0.95, 1.0


def of_row(row: Row, name: str) -> Measurement:
    """Returns what a row gave: live, or of IPEX as it was recorded."""
    if not is_ipex(row):
        return measure(row, name)
    predicted, found = recorded_measurement(row, name)
    if predicted != predicted_digest(row, name):
        raise SystemExit(f"{name}, {row.target}: other tensors than those recorded of IPEX")
    return found


def lines(name: str) -> Iterator[str]:
    """Yields the table of one network; SystemExit where a row misses its goal."""
    whole = float_accuracy(name)
    yield f"\n## {name}: {whole:.1f} % in float\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for row in ROWS:
        found, share = of_row(row, name), integer_share(row, name)
        if found.accuracy < whole - MOST_LOST or share < LEAST_SHARE or found.differing:
            raise SystemExit(f"{name}, {row.target}: {found}, integer share {share}")
        _, ledger = quantize_for_row(row, name)
        written = Ledger()
        size = size_of(row, name, written)
        counts = Counter(ledger.counts()) + Counter(written.counts())
        told = ", ".join(
            f"{count} {change.value}"
            for change, count in sorted(counts.items(), key=lambda pair: pair[0].value)
        )
        yield (
            f"| {row.framework} | {row.data} | {found.accuracy:.1f} | {100 * share:.0f} % "
            f"| {found.tensors} | {found.compared:,} | {found.differing} "
            f"| {'in memory' if size is None else f'{size:,}'} | {told} |"
        )


def page() -> str:
    """Returns the page."""
    return HEAD + "\n".join(line for name in NETWORKS for line in lines(name)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} is written\n")
