"""Ops of a float graph whose kernels a profile does not claim where they are.

That depends on sizes and on strides, which no row of a table says. So a copy of
the graph is quantized with any parameters and grouped, and what the ledger says of its kernels is
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qir.analysis.quantized_regions import quantized_values
from qir.analysis.scheme_assignment import assign_schemes
from qir.calibration import Statistics
from qir.capability import Capability
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from qir.passes.quantize.materialize import Materialize

from .grouping import Kernels

_ROUNDS = 4
"""An op that stays float moves what comes after it; so often the rest is looked at again."""


def without_unclaimed(graph: Graph, table: Capability, profile: str) -> Capability:
    """Returns a table that keeps the unclaimed ops of a float graph in float, and says why."""
    if quantized_values(graph):
        return table
    for _ in range(_ROUNDS):
        found = dict(_unclaimed(graph, table, profile))
        if not found:
            break
        table = replace(table, kept={**table.kept, **found})
    return table


def claimed(graph: Graph, table: Capability, profile: str) -> Capability:
    """Returns a table that keeps in float what is unclaimed in a graph that is quantized."""
    for _ in range(_ROUNDS):
        found = dict(_told(graph.copy(), table, profile))
        if not found:
            break
        table = replace(table, kept={**table.kept, **found})
    return table


def _unclaimed(graph: Graph, table: Capability, profile: str) -> Iterator[tuple[str, str]]:
    """Yields the unclaimed ops of a float graph, and why."""
    work = graph.copy()
    _, schemes = assign_schemes(work, table)
    for node, slots in schemes.items():
        for slot, scheme in slots.items():
            work.set_scheme(node, slot, scheme)
    Materialize(_statistics(work), profile).run(work, Ledger())
    yield from _told(work, table, profile)


def _told(work: Graph, table: Capability, profile: str) -> Iterator[tuple[str, str]]:
    """Yields the unclaimed ops of a quantized graph, which is grouped, and why."""
    ledger, names = Ledger(), {node.name for node in work}
    Kernels(profile, table=table).run(work, ledger)
    for entry in ledger:
        if entry.change is Change.UNVERIFIED and entry.subject in names - set(table.kept):
            yield entry.subject, f"{profile}: {entry.reason}"


def _statistics(graph: Graph) -> Statistics:
    """Ranges of all tensors, no two alike, so that no scale is another's by chance."""
    made = Statistics("any numbers")
    rng = np.random.default_rng(0)
    with made.batch("any", 0) as batch:
        for tensor in {
            v.lineage.tensor: None for v in graph.values.values() if v.type.express.is_float
        }:
            low, high = -rng.uniform(0.5, 3), rng.uniform(0.5, 3)
            batch.update(tensor, np.linspace(low, high, 4, dtype=np.float32))
    return made


__all__ = ["without_unclaimed"]
