"""Integers at the ends mean the floats that were there: on random networks, by the reference."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.analysis.integer_boundary import Kind
from qir.ir.graph import Graph
from qir.ir.text import print_graph
from qir.ir.types import QuantType
from qir.ledger import Ledger
from qir.passes.forms.float_io import FloatIo
from qir.passes.forms.integer_io import IntegerIo
from qir.rewrite import run_passes
from qir.testing import EVERY, random_graph, sample_inputs
from qir.testing.random_source import Form
from tests.passes.keeping import outputs, same

Array = NDArray[np.generic]
KINDS: tuple[Kind, ...] = ("integer", "u8", "i8")
SEEDS = range(12)


def meaning(quant: QuantType | None, data: Array) -> Array:
    if quant is None:
        return data
    signed = data.astype(np.int64) - int(quant.zeros())
    return np.float32(quant.scales()) * signed.astype(np.float32)


def given(graph: Graph, changed: Graph, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs for both graphs: integers where they are new, and the floats that these mean."""
    floats = dict(sample_inputs(graph, seed))
    integers, rng = dict(floats), np.random.default_rng(seed)
    for value in changed.inputs:
        quant = value.type.quant
        if quant is not None and graph[value.name].type.quant is None:
            shape = floats[value.name].shape
            drawn = rng.integers(quant.low, quant.high, shape, endpoint=True)
            integers[value.name] = drawn.astype(quant.storage.carrier)
            floats[value.name] = meaning(quant, integers[value.name])
    return floats, integers


@pytest.mark.parametrize("form", EVERY)
def test_integers_mean_the_floats_of_the_graph_before(form: Form) -> None:
    changed = 0
    for seed, kind in product(SEEDS, KINDS):
        graph = random_graph(seed, form)
        made = run_passes(graph, [IntegerIo(inputs=kind, outputs=kind)], Ledger())
        floats, integers = given(graph, made, seed)
        before, after = outputs(graph, floats), outputs(made, integers)
        if before is None or after is None:
            continue  # the reference cannot run it
        for name, value in made.outputs.items():
            is_new = graph.outputs[name].type.quant is None and value.type.quant is not None
            changed += is_new
            found = meaning(value.type.quant if is_new else None, after[name])
            assert same(found, before[name], 0), f"seed {seed}, {kind}: {name}"
    assert changed or form not in ("integer", "qdq")


@pytest.mark.parametrize("form", EVERY)
def test_floats_again_are_those_of_the_graph_before(form: Form) -> None:
    for seed in SEEDS:
        graph = run_passes(random_graph(seed, form), [FloatIo()], Ledger())
        made = run_passes(graph, [IntegerIo(), FloatIo()], Ledger())
        feeds = sample_inputs(graph, seed)
        before, after = outputs(graph, feeds), outputs(made, feeds)
        for name, data in (before or {}).items():
            assert after is not None
            assert same(after[name], data, 0), f"seed {seed}: {name}"


@pytest.mark.parametrize("form", EVERY)
def test_integers_stored_otherwise_mean_what_they_meant(form: Form) -> None:
    changed = 0
    for seed, kind in product(SEEDS, KINDS):
        graph = run_passes(random_graph(seed, form), [IntegerIo()], Ledger())
        made = run_passes(graph, [IntegerIo(inputs=kind, outputs=kind)], Ledger())
        feeds = dict(sample_inputs(graph, seed))
        given = dict(feeds)
        for value in graph.inputs:
            before, after = value.type.quant, made[value.name].type.quant
            if before is not None and after is not None and before != after:
                shift = int(after.zeros()) - int(before.zeros())
                moved = feeds[value.name].astype(np.int64) + shift
                given[value.name] = moved.astype(after.storage.carrier)
                changed += 1
        first, last = outputs(graph, feeds), outputs(made, given)
        if first is None or last is None:
            continue  # the reference cannot run it
        for name, value in made.outputs.items():
            old, new = graph.outputs[name].type.quant, value.type.quant
            assert (old is None) == (new is None), f"seed {seed}, {kind}: {name}"
            if old == new:
                assert same(last[name], first[name], 0), f"seed {seed}, {kind}: {name}"
                continue
            assert new is not None
            assert str(new.storage) == kind, f"seed {seed}: {name}"
            wanted, found = meaning(old, first[name]), meaning(new, last[name])
            assert same(found, wanted, 0), f"seed {seed}, {kind}: {name}"
            changed += 1
        again = run_passes(made, [IntegerIo()], Ledger())
        assert print_graph(again) == print_graph(made), f"seed {seed}, {kind}"
    assert changed or form not in ("integer", "qdq")


@pytest.mark.parametrize("form", EVERY)
def test_floats_that_are_asked_for_are_those_of_float_io(form: Form) -> None:
    for seed in SEEDS:
        graph = run_passes(random_graph(seed, form), [IntegerIo()], Ledger())
        made = run_passes(graph, [IntegerIo(inputs="float", outputs="float")], Ledger())
        wanted = run_passes(graph, [FloatIo()], Ledger())
        assert print_graph(made) == print_graph(wanted), f"seed {seed}"
