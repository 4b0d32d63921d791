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
from .rows import NETWORKS, ROWS, Measured, Row, digest, measured, predicted, quantized

FILE = HERE / "ipex.json"


def is_ipex(row: Row) -> bool:
    """Reports whether a row is IPEX's, which few machines have."""
    return row.target.startswith("ipex")


def tensors(row: Row, name: str) -> str:
    """Returns the digest of the quantized tensors and the results that QIR predicts."""
    graph, _ = quantized(row, name)
    grouped = run_passes(only_read_by_layers(graph, Ledger()), [Group("ipex-2.8")], Ledger())
    results = {held.name: name for name, held in grouped.outputs.items()}
    found = predicted(grouped, *results)
    classes = {said: np.asarray(found.pop(held)).argmax(1) for held, said in results.items()}
    return digest({**found, **classes})


def recorded(row: Row, name: str) -> tuple[str, Measured]:
    """Returns the digest that was predicted when IPEX ran a row, and what it gave."""
    entry: dict[str, Any] = json.loads(FILE.read_text())[f"{name} {row.target}"]
    return str(entry.pop("predicted")), Measured(**entry)


def record() -> None:
    """Runs IPEX's rows where `QIR_IPEX` names its Python, and writes the records."""
    made = {}
    for name in NETWORKS:
        for row in filter(is_ipex, ROWS):
            made[f"{name} {row.target}"] = {
                "predicted": tensors(row, name),
                **asdict(measured(row, name)),
            }
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    record()
