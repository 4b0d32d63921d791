"""Integers drawn for an input are entries that there are, or 0 and 1 for a mask."""

from __future__ import annotations

import numpy as np
import pytest

from qir.analysis.index_inputs import index_limit, is_mask
from qir.ir.text import parse
from qir.pipeline import run
from qir.workflows.inputs import random_inputs

IDS = """
graph main as native {
  %ids = input() : 2x5xi64
  %mask = input() : 2x5xi64
  %free = input() : 2x5xi64
  %kind = input() : 2x5xi32
  %table = constant(@table) : 7x3xf32
  %types = constant(@types) : 2x3xf32
  %wide = cast(%kind) {to = i64} : 2x5xi64
  %flat = reshape(%ids, %shape) : 10xi64
  %back = reshape(%flat, %again) : 2x5xi64
  %words = gather(%table, %back) : 2x5x3xf32
  %parts = embedding(%types, %wide) : 2x5x3xf32
  %row = unsqueeze(%mask) {axes = (2,)} : 2x5x1xi64
  %some = cast(%row) {to = f32} : 2x5x1xf32
  %sum = add(%words, %parts) : 2x5x3xf32
  %y = mul(%sum, %some) : 2x5x3xf32
  %n = add(%free, %ids) : 2x5xi64
  output(y=%y, n=%n)
}
"""


def test_what_integers_of_an_input_are_for() -> None:
    text = IDS.replace(
        "  %flat", "  %shape = constant([10]) : 1xi64\n  %again = constant([2, 5]) : 2xi64\n  %flat"
    )
    rng = np.random.default_rng(3)
    arrays = {"table": rng.normal(size=(7, 3)), "types": rng.normal(size=(2, 3))}
    graph = parse(text, {name: data.astype(np.float32) for name, data in arrays.items()})
    found = {v.name: (index_limit(v), is_mask(v)) for v in graph.inputs}
    assert found == {
        "ids": (7, False),
        "mask": (None, True),
        "free": (None, False),
        "kind": (2, False),
    }
    drawn = random_inputs(graph, 0, 1, {})
    assert np.isin(drawn["ids"], range(7)).all()
    assert np.isin(drawn["mask"], (0, 1)).all()
    assert np.isin(drawn["kind"], (0, 1)).all()
    assert len(np.unique(drawn["free"])) > 5
    assert np.isfinite(np.asarray(run(graph, drawn)["y"])).all()


@pytest.mark.parametrize(("batch", "limit"), [(0, 3), (1, 4)])
def test_an_index_of_several_axes_stays_within_the_shortest(batch: int, limit: int) -> None:
    graph = parse(
        "graph main as native {\n  %x = input() : 3x4x5xf32\n  %i = input() : 3x2xi64\n"
        + (
            "  %y = gather_nd(%x, %i) {batch = 0} : 3x5xf32\n"
            if batch == 0
            else "  %y = gather_nd(%x, %i) {batch = 1} : 3xf32\n"
        )
        + "  output(y=%y)\n}\n"
    )
    assert index_limit(graph["i"]) == limit
