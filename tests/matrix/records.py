"""What IPEX 2.8 computed of the two networks, recorded; and the digest of what QIR predicts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from qir.backends.ipex.edges import only_read_by_layers
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes

from .networks import HERE
from .rows import (
    NETWORKS,
    ROWS,
    Measurement,
    Row,
    digest_of_arrays,
    measure,
    predict_quantized_tensors,
    quantize_for_row,
)

FILE = HERE / "ipex.json"


def is_ipex(row: Row) -> bool:
    """Reports whether a row is IPEX's, which few machines have."""
    return row.target.startswith("ipex")


def predicted_digest(row: Row, name: str) -> str:
    """Returns the digest of the quantized tensors and the results that QIR predicts."""
    graph, _ = quantize_for_row(row, name)
    grouped = run_passes(only_read_by_layers(graph, Ledger()), [Group("ipex-2.8")], Ledger())
    results = {held.name: name for name, held in grouped.outputs.items()}
    found = predict_quantized_tensors(grouped, *results)
    classes = {said: np.asarray(found.pop(held)).argmax(1) for held, said in results.items()}
    return digest_of_arrays({**found, **classes})


def recorded_measurement(row: Row, name: str) -> tuple[str, Measurement]:
    """Returns the digest that was predicted when IPEX ran a row, and what it gave."""
    entry: dict[str, Any] = json.loads(FILE.read_text())[f"{name} {row.target}"]
    return str(entry.pop("predicted")), Measurement(**entry)


def record_measurements() -> None:
    """Runs IPEX's rows where `QIR_IPEX` names its Python, and writes the records."""
    made = {}
    for name in NETWORKS:
        for row in filter(is_ipex, ROWS):
            made[f"{name} {row.target}"] = {
                "predicted": predicted_digest(row, name),
                **asdict(measure(row, name)),
            }
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    record_measurements()
