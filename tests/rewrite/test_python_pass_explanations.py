"""What a pass written in Python asks for is told, condition by condition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import qir as package
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.rewrite.patterns.conditions import Condition, Place, ask
from qir.rewrite.patterns.library import find_places, places
from tests.cli.command import assert_one_line, qir

ROWS = "\n".join(f"  %{n} = constant([1.0, 2.0]) : 2xf32" for n in ("g", "b", "m", "v"))
NORM = "batch_norm(%{}, %g, %b, %m, %v) : 1x2x4x4xf32"


def graph(*lines: str, outputs: str = "y=%y", rows: str = ROWS) -> Graph:
    """Lines between an input and outputs, with rows for a batch norm and weights."""
    body = "\n".join(f"  {line}" for line in lines)
    text = f"""graph main as native {{
  %x = input() : 1x2x4x4xf32
  %given = input() : 2x2x1x1xf32
  %w = constant(@w) : 2x2x1x1xf32
{rows}
{body}
  output({outputs})
}}"""
    return parse(text, {"w": np.ones((2, 2, 1, 1), np.float32)})


CONV = "%c = conv2d(%x, %w) : 1x2x4x4xf32"
RELU = "%r = relu(%c) : 1x2x4x4xf32"
AFTER = f"%y = {NORM.format('c')}"
BEFORE = f"%n = {NORM.format('x')}"
COMPUTED = ROWS.replace("%g = constant([1.0, 2.0]) : 2xf32", "%g = input() : 2xf32")
CASES: Mapping[str, tuple[Graph, str, str, str, str]] = {
    "relu between": (
        *(graph(CONV, RELU, f"%y = {NORM.format('r')}"), "after", "y", "r"),
        "a relu stands between it and conv2d c",
    ),
    "relu between, behind": (
        graph(BEFORE, "%r = relu(%n) : 1x2x4x4xf32", "%y = conv2d(%r, %w) : 1x2x4x4xf32"),
        *("before", "n", "r", "a relu stands between it and conv2d y"),
    ),
    "computed weight": (
        *(graph(CONV.replace("%w", "%given"), AFTER), "after", "y", "c"),
        "its weight %given is not constant",
    ),
    "another reader": (
        *(graph(CONV, RELU, AFTER, outputs="y=%y, r=%r"), "after", "y", "c"),
        "%c is also read by r",
    ),
    "computed factor": (
        *(graph(CONV, AFTER, rows=COMPUTED), "after", "y", "y"),
        "its gamma %g is not constant",
    ),
    "another axis": (
        *(graph(CONV, AFTER.replace(") :", ") {axis = 2} :")), "after", "y", "y"),
        "it goes along another axis than the channels of c",
    ),
    "padding": (
        graph(BEFORE, "%y = conv2d(%n, %w) {pad = (1, 1, 1, 1)} : 1x2x6x6xf32"),
        *("before", "n", "y", "it pads with zeros, or spreads, next to what would be shifted"),
    ),
    "nothing there": (
        *(graph("%n = relu(%x) : 1x2x4x4xf32", f"%y = {NORM.format('n')}"), "after", "y", "n"),
        "a relu stands there, which takes in no batch norm",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_condition_that_failed_is_the_one_that_keeps_the_pass_away(name: str) -> None:
    held, place, node, at, reason = CASES[name]
    wanted = dict(places())[f"fold-batch-norm.{place}"]
    found = wanted.hindrance(held[node].node)
    assert found is not None
    assert (found.at.name, found.reason) == (at, reason)
    assert FoldBatchNorm().run(held.copy(), Ledger()) == 0


def test_where_nothing_stands_in_the_way_the_pass_does_it() -> None:
    held = graph(CONV, AFTER)
    (told,) = ask(find_places("fold-batch-norm"), held["c"].node)
    assert told.hindrance is None
    assert str(told) == "fold-batch-norm.after is done at y"
    assert FoldBatchNorm().run(held, Ledger()) > 0


def test_conditions_behind_one_that_failed_are_not_asked() -> None:
    def asked(node):  # type: ignore[no-untyped-def]
        yield Condition(True, node, "never said")
        yield Condition(False, node, "this one")
        raise AssertionError("asked too far")

    place = Place("mine", ("conv2d",), asked, "does something")
    found = place.hindrance(graph(CONV, AFTER)["c"].node)
    assert found is not None
    assert (found.reason, found.met) == ("this one", 1)


def test_the_verb_tells_places_of_a_pass_as_it_tells_patterns(tmp_path: Path) -> None:
    package.save(CASES["relu between"][0], tmp_path / "m.qir")
    outcome = qir("why-not", tmp_path / "m.qir", "y", "fold-batch-norm")
    assert outcome.status == 1
    said = "fold-batch-norm.after is not done at r: a relu stands between it and conv2d c"
    assert said in outcome.out
    data = json.loads(
        qir("why-not", tmp_path / "m.qir", "y", "fold-batch-norm.after", "--json").out
    )
    assert data["reason"] == "a relu stands between it and conv2d c"
    assert (data["root"], data["at"], data["matches"]) == ("y", "r", False)
    assert_one_line(qir("why-not", tmp_path / "m.qir", "nope", "fold-batch-norm"), 2)
    package.save(graph(CONV, AFTER), tmp_path / "ok.qir")
    outcome = qir("why-not", tmp_path / "ok.qir", "c", "fold-batch-norm")
    assert (outcome.status, outcome.out.splitlines()[0]) == (
        0,
        "fold-batch-norm.after is done at y",
    )


def test_a_node_far_from_any_batch_norm_is_told_so() -> None:
    held = graph("%y = relu(%x) : 1x2x4x4xf32", rows="")
    told = ask(find_places("fold-batch-norm"), held["y"].node)
    assert "it is relu, and no batch_norm stands near" in str(told[0])
