"""What every installed pass keeps, on generated graphs and on those of the golden files.

A pass joins by being installed: with its defaults, and with the samples that it gives of itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from qir import registry
from qir.errors import QirError, Refused, UsageError
from qir.ir.graph import Graph
from qir.ir.printer import print_graph
from qir.ledger import Ledger
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes
from qir.rewrite.runner.validation import Validation
from qir.testing import EVERY, random_graph, sample_inputs
from tests.golden.reading import Golden
from tests.golden.test_golden import FILES
from tests.ir.alike import difference

SEEDS = range(3)
NAMES = registry.names("qir.passes")


@cache
def graphs() -> tuple[tuple[str, Graph], ...]:
    """Graphs of every form, and one of each golden file."""
    made = [(f"{form} {seed}", random_graph(seed, form)) for form in EVERY for seed in SEEDS]
    held = [(f"{p.parent.name}/{p.stem}", Golden.read(p).graph()) for p in FILES]
    return (*made, *held)


def of(name: str) -> type[Pass]:
    found = registry.find("qir.passes", name)
    assert isinstance(found, type)
    assert issubclass(found, Pass)
    return found


def tried(name: str) -> Iterator[tuple[Pass, str, Graph]]:
    """A pass with its defaults on all graphs, and its samples."""
    kind = of(name)
    for where, graph in graphs():
        yield kind(), where, graph
    for one, graph in getattr(kind, "samples", tuple)():
        yield one, "its sample", graph


def edits(one: Pass, graph: Graph) -> int:
    """Runs a pass as the driver does, without the driver; says how much it changed."""
    ledger, copy = Ledger(), graph.copy()
    was = print_graph(copy, origins=True)
    changed = sum(one.run(g, ledger) for _, g in list(copy.walk()) if one.nested or g is copy)
    assert (changed == 0) == (print_graph(copy, origins=True) == was), f"{changed} changes"
    assert changed or not len(ledger), "no change, but the ledger has entries"
    return changed


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_says_what_it_changes_computes_the_same_and_has_done_all_at_once(name: str) -> None:
    changed = 0
    for one, where, graph in tried(name):
        try:
            count = edits(one, graph)
        except (Refused, UsageError):
            continue  # a pass may refuse a graph, as the driver does for it
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from None
        text = print_graph(graph, origins=True)
        once = run_passes(graph, [one], Ledger(), validation=validation(graph))
        assert print_graph(graph, origins=True) == text, f"{where}: the user's graph was changed"
        changed += bool(count)
        if not count:
            assert difference(graph, once, history=True) == "", where
            continue
        again = run_passes(once, [one], Ledger())
        assert difference(once, again, history=True) == "", f"{where}: a second run finds more"
    assert changed, "no graph has anything for it"


def validation(graph: Graph) -> Validation | None:
    """One sample that the graph can be run on; None where the reference cannot run it."""
    if graph.query("op == 'foreign'"):
        return None  # what their framework makes of them is no question of passes
    inputs = sample_inputs(graph, 3)
    try:
        with np.errstate(all="ignore"):
            run(graph, inputs)
    except QirError:
        return None
    return Validation(run, [inputs])
