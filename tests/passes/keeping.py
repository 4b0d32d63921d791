"""What every pass keeps on generated graphs: meaning, form, and its word about changes."""

from __future__ import annotations

import numpy as np

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.text import print_graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.reference.interpreter import Tensor, run
from qir.rewrite import Pass, run_passes
from qir.testing import EVERY, random_graph, sample_inputs
from tests.ir.alike import difference


def outputs(graph: Graph, inputs: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """What it computes; None where it cannot be run here."""
    try:
        with np.errstate(all="ignore"):
            return run(graph, inputs)
    except QirError:
        return None


def same(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Equal bytes, or within so much of the largest number; NaN is NaN."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if not tolerance or wanted.dtype.kind in "OSUb" or found.tobytes() == wanted.tobytes():
        return found.tobytes() == wanted.tobytes()
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    room = tolerance * np.abs(b[finite]).max(initial=0)
    return bool(np.all(np.abs(a[finite] - b[finite]) <= room)) and np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    )


def keep(one: Pass, graph: Graph, seed: int, tolerance: float = 0.0) -> int:
    """Holds one pass on one graph to all that passes keep; says how many changes it made."""
    was, version, copy = print_graph(graph, origins=True), graph.version, graph.copy()
    ledger = Ledger()
    changed = sum(one.run(each, ledger) for _, each in copy.walk() if one.nested or each is copy)
    text = print_graph(copy, origins=True)
    assert (changed == 0) == (text == was), f"seed {seed}: {changed} changes"
    assert changed or not len(ledger), f"seed {seed}: no change, but the ledger has entries"
    once = run_passes(graph, [one], Ledger())
    assert (print_graph(graph, origins=True), graph.version) == (was, version), f"seed {seed}"
    found = errors(once)
    assert not found, f"seed {seed}: {found[0]}"
    assert [(v.name, v.type) for v in once.inputs] == [(v.name, v.type) for v in graph.inputs]
    assert list(once.outputs) == list(graph.outputs), f"seed {seed}"
    again = run_passes(once, [one], Ledger())
    assert difference(once, again, history=True) == "", f"seed {seed}: a second run finds more"
    inputs = sample_inputs(graph, seed)
    wanted = outputs(graph, inputs)
    if wanted is not None:
        made = outputs(once, inputs)
        assert made is not None, f"seed {seed}: it can no longer be run"
        for name, data in wanted.items():
            assert same(made[name], data, tolerance), f"seed {seed}: {name}"
    return changed


def keeps(one: Pass, seeds: range = range(12), tolerance: float = 0.0) -> int:
    """The same on graphs of every form; says how many of them it changed."""
    return sum(
        keep(one, random_graph(seed, form), seed, tolerance) > 0 for seed in seeds for form in EVERY
    )
