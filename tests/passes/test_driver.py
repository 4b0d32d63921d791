"""The runner works on a copy, and does not believe a pass that breaks its word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from qir.errors import PassError, Refused
from qir.ir.dtype import F16
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.rewrite import Pass, Report, run_passes


@dataclass(frozen=True)
class Doing(Pass):
    """Does what it is told and says so many changes."""

    name = "doing"
    does: Callable[[Graph], object] = lambda graph: None
    says: int = 1

    def run(self, graph: Graph, ledger: Ledger) -> int:
        self.does(graph)
        return self.says


def relu() -> Graph:
    return parse("graph main as native {%x = input() : 2xf32 %y = relu(%x) : 2xf32 output(y=%y)}")


def rename(graph: Graph) -> None:
    graph.rename(graph["y"], "z")


def test_the_graph_that_is_given_stays_as_it_was() -> None:
    graph = relu()
    after = run_passes(graph, [Doing(rename)], Ledger())
    assert graph == relu()
    assert after.has("z")


def test_a_pass_that_reports_another_number_is_told() -> None:
    said = "pass doing reports no change, the graph was edited; z is new; no rewrite claims it"
    with pytest.raises(PassError, match=said):
        run_passes(relu(), [Doing(rename, 0)], Ledger())
    with pytest.raises(PassError, match="pass doing reports 3 changes, the graph was not edited"):
        run_passes(relu(), [Doing(says=3)], Ledger())
    with pytest.raises(PassError, match="pass doing gives NoneType; run"):
        run_passes(relu(), [Doing(rename, None)], Ledger())  # type: ignore[arg-type]


def test_a_pass_that_leaves_a_broken_graph_is_told_with_the_node() -> None:
    def spoil(graph: Graph) -> None:
        graph.set_type(graph["y"], TensorType((2,), F16))

    with pytest.raises(PassError, match="pass doing leaves a broken graph: y: %y means f16"):
        run_passes(relu(), [Doing(spoil)], Ledger())


def test_a_pass_that_fails_is_named_and_what_it_says_on_purpose_goes_through() -> None:
    def fail(graph: Graph) -> None:
        raise ZeroDivisionError("by nothing")

    def refuse(graph: Graph) -> None:
        raise Refused("not this")

    with pytest.raises(PassError, match=r"pass doing: .* at no node: ZeroDivisionError: by"):
        run_passes(relu(), [Doing(fail)], Ledger())
    with pytest.raises(Refused, match="not this"):
        run_passes(relu(), [Doing(refuse)], Ledger())


def test_passes_run_in_order_and_each_is_reported() -> None:
    told: list[tuple[str, int, int]] = []

    def after(report: Report, graph: Graph) -> None:
        assert report.seconds >= 0
        told.append((report.name, report.changed, len(graph)))

    def back(graph: Graph) -> None:
        graph.rename(graph["z"], "y")

    steps = [Doing(rename), Doing(back), Doing(says=0)]
    assert run_passes(relu(), steps, Ledger(), after=after) == relu()
    assert told == [("doing", 1, 3), ("doing", 1, 3), ("doing", 0, 3)]
