"""Finds ops of a graph whose kernels a profile makes no claim about.

That depends on sizes and strides, which no entry of a target table states. So a copy of the graph
is quantized with arbitrary parameters and grouped, and the ledger's unverified entries are read.
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

from .grouping import KernelGroups
from .uneven_padding import UNEVEN, is_uneven_average

MAX_ROUNDS = 4
"""An op that stays float changes the layout of what follows, so the rest is checked again this
often."""


def without_unclaimed(graph: Graph, table: Capability, profile: str) -> Capability:
    """Returns a table that keeps the unclaimed ops of a float graph in float, with the reasons."""
    if quantized_values(graph):
        return table
    table = _without_uneven_pools(graph, table)
    for _ in range(MAX_ROUNDS):
        unclaimed_ops = dict(_unclaimed(graph, table, profile))
        if not unclaimed_ops:
            break
        table = replace(table, kept={**table.kept, **unclaimed_ops})
    return table


def claimed(graph: Graph, table: Capability, profile: str) -> Capability:
    """Returns a table that keeps the unclaimed ops of a quantized graph in float."""
    table = _without_uneven_pools(graph, table)
    for _ in range(MAX_ROUNDS):
        unclaimed_ops = dict(_reported(graph.copy(), table, profile))
        if not unclaimed_ops:
            break
        table = replace(table, kept={**table.kept, **unclaimed_ops})
    return table


def _without_uneven_pools(graph: Graph, table: Capability) -> Capability:
    """Returns a table that keeps average pools in float whose padding PyTorch cannot leave out."""
    uneven = {node.name: UNEVEN for node in graph if is_uneven_average(node)}
    return replace(table, kept={**table.kept, **uneven}) if uneven else table


def _unclaimed(graph: Graph, table: Capability, profile: str) -> Iterator[tuple[str, str]]:
    """Yields the unclaimed ops of a float graph, and why."""
    work = graph.copy()
    _, schemes = assign_schemes(work, table)
    for node, slots in schemes.items():
        for slot, scheme in slots.items():
            work.set_scheme(node, slot, scheme)
    # Any parameters do: the claims depend on ops, sizes and strides, not on scales.
    Materialize(_statistics(work), profile).run(work, Ledger())
    yield from _reported(work, table, profile)


def _reported(work: Graph, table: Capability, profile: str) -> Iterator[tuple[str, str]]:
    """Yields the unclaimed ops of a quantized graph, with the reasons."""
    ledger, names = Ledger(), {node.name for node in work}
    KernelGroups(profile, table=table).run(work, ledger)
    for entry in ledger:
        if entry.change is Change.UNVERIFIED and entry.subject in names - set(table.kept):
            yield entry.subject, f"{profile}: {entry.reason}"


def _statistics(graph: Graph) -> Statistics:
    """Returns distinct ranges for all tensors, so that no two scales are equal by chance."""
    statistics = Statistics("any numbers")
    rng = np.random.default_rng(0)
    with statistics.batch("any", 0) as batch:
        for tensor in {
            v.lineage.tensor: None for v in graph.values.values() if v.type.express.is_float
        }:
            low, high = -rng.uniform(0.5, 3), rng.uniform(0.5, 3)
            batch.update(tensor, np.linspace(low, high, 4, dtype=np.float32))
    return statistics


__all__ = ["without_unclaimed"]
