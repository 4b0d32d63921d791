"""Preparation steps: what a runtime changes in a QDQ model before it looks for kernels.

A profile names them in order with `prepare = [...]`. They are found by the entry point
`qir.prepare` only: those of one runtime are in its backend's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qir import registry
from qir.ir.graph import Graph
from qir.records import record

KIND = "qir.prepare"
"""The entry points of preparation steps; each names a `PreparationStep` or a table of them."""
DEFAULT_STEPS = ("quantize_constants", "move_pairs", "linear_layers")
"""The steps of a profile that names none, nor does one that it extends."""


@record
class PreparationStep:
    """One thing that a runtime does to a whole QDQ model before it groups."""

    description: str
    """What it does, as a sentence of the manual."""
    run: Callable[[Graph, Any], int]
    """Changes a graph, and returns how many places changed. Its second argument is a
    `qir.rewrite.preparation.Preparation`."""


def preparation_steps() -> Mapping[str, PreparationStep]:
    """Returns all steps that profiles may name."""
    return registry.entries(KIND, PreparationStep)
