"""A pass that breaks its contract is told with pass, rewrite and node, and the graph stays."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.errors import MovedError, PassError, QirError, Refused
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes
from qir.rewrite.runner.options import parse_passes
from qir.rewrite.runner.validation import Validation
from qir.testing import check_pass
from tests.cli.command import Outcome
from tests.cli.command import qir as command

pytestmark = pytest.mark.usefixtures("site")

RELUS = 12
HEAD = "pass acme-breach"
DID = "rewrite touch at r7 did it"


def model() -> Graph:
    """A row of relus on what is no less than 0, so that abs in their place moves nothing."""
    lines = ["%x = input() : 2xf32", "%k = constant(1.25) : f32", "%p = abs(%x) : 2xf32"]
    lines.append("%r0 = mul(%p, %k) : 2xf32")
    lines += [f"%r{i} = relu(%r{i - 1}) : 2xf32" for i in range(1, RELUS + 1)]
    text = "\n".join([*lines, f"output(y=%r{RELUS}, more=%r3)"])
    return qir.parse(f"graph main as native {{\n{text}\n}}")


@dataclass(frozen=True)
class Case:
    """A breach and what is said of it."""

    options: str
    said: str
    node: str = "r7"
    validate: bool = False
    kind: type[QirError] = PassError
    status: int = 2


CASES = {
    "reports none": Case("how=unasked, only=true", "reports no change, the graph was edited; r7 is"
                         " another; no rewrite claims it"),
    "reports none, though it asked": Case("only=true, says=-1", "reports no change, the graph was"
                                          f" edited; r7 is another; {DID}"),
    "reports too few": Case("says=-3", "reports 9 changes, 12 rewrites were done; r1 is another;"
                            " rewrite touch at r1 did it", "r1"),
    "reports too many": Case("only=true, says=9", "reports 10 changes, the graph was edited 4"
                             f" times; r7 is another; {DID}"),
    "reports less than none": Case("only=true, says=-2", "reports -1 changes, the graph was"
                                   f" edited; r7 is another; {DID}"),
    "raises": Case("how=raises", ": rewrite touch at r7: ZeroDivisionError: by nothing"),
    "fails to compute": Case("how=fails", ": rewrite touch at r7: what it computes has no result"),
    "refuses": Case("how=refuses", ": rewrite touch at r7: this would lose something", kind=Refused,
                    status=3),
    "misuses the graph": Case("how=misuses", ": rewrite touch at r7: cannot remove r7: r8 uses"),
    "leaves a broken graph": Case("how=spoils", f"leaves a broken graph: r7: %r7 means f16.*{DID}"),
    "lies about what it ensures": Case("how=loosens", "does not ensure pruned: loose: nobody uses"
                                       f" it; {DID}", "loose"),
    "edits for ever": Case("how=edits_on", ": rewrite touch at r7: graph main is edited for ever"),
    "asks for ever": Case("how=asks_on", ": rewrite turn at r7: it goes on for ever"),
    "writes into elements": Case("how=writes", ": rewrite touch at r7: ValueError: assignment"),
    "takes a result away": Case("how=drops", "changes the outputs of the graph: y, more -> y;"
                                " r1 is another; rewrite touch at r1 did it", "r1"),
    "moves a tensor": Case("how=moves", ": %r7 moved by .*; by rewrite touch at r7, number 7 of 12;"
                           " it declares", validate=True, kind=MovedError, status=1),
}  # fmt: skip


def breach(case: Case) -> str:
    return f"acme-breach{{at=r7, {case.options}}}"


def assert_told(case: Case, line: str, notes: list[str]) -> None:
    assert re.search(f"{HEAD}:? ?{case.said}", line), line
    shown = [row for row in notes if "%" in row and not row.startswith("before")]
    assert len(shown) == 10, notes
    (arrow,) = [row for row in shown if row.startswith("->")]
    assert arrow.split()[1] == f"%{case.node}", notes


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_by_the_interface(name: str) -> None:
    case, graph, ledger = CASES[name], model(), Ledger()
    given = {"x": np.array([-1.5, 2], np.float32)}
    held = Validation(run, [given]) if case.validate else None
    with pytest.raises(case.kind) as error:
        run_passes(graph, parse_passes(breach(case)), ledger, validation=held)
    assert type(error.value) is case.kind
    notes = "\n".join(error.value.__notes__).splitlines()
    assert_told(case, str(error.value), notes)
    assert str(graph) == str(model())
    assert not len(ledger)


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_by_the_command_line(name: str, tmp_path: Path) -> None:
    case, source, out = CASES[name], tmp_path / "a.qir", tmp_path / "out.qir"
    qir.save(model(), source)
    held = source.read_bytes()
    words = ("--validate",) if case.validate else ()
    done: Outcome = command("opt", source, "-p", breach(case), "-o", out, *words)
    assert done.status == case.status, done
    *notes, line = done.err.splitlines()
    assert_told(case, line, [note.removeprefix("  ") for note in notes])
    assert source.read_bytes() == held
    assert not out.exists()


def test_what_it_requires_is_told_with_the_node() -> None:
    graph = model()
    made = qir.optimize(graph, "acme-breach")
    assert "relu" not in str(made), "without a breach it does what it is for"

    @dataclass(frozen=True)
    class Picky(Pass):
        name = "picky"
        requires = ("no-foreign", "float", "pruned")

        def run(self, graph: Graph, ledger: Ledger) -> int:
            return 0

    graph.add("abs", {"x": graph["r7"]}, name="loose")
    with pytest.raises(PassError, match="pass picky requires pruned: loose: nobody uses") as error:
        run_passes(graph, [Picky()], Ledger())
    assert "-> %loose" in error.value.__notes__[0]


def test_the_graph_of_the_user_is_not_edited_while_passes_run() -> None:
    module = sys.modules["acme_qir.breaches"]
    graph = model()
    module.GIVEN.append(graph)
    said = f"{HEAD}: rewrite touch at r7: graph main stays as it is while passes run on its copy"
    with pytest.raises(PassError, match=said):
        run_passes(graph, parse_passes("acme-breach{at=r7, how=reaches}"), Ledger())
    assert str(graph) == str(model())
    graph.rename(graph["r7"], "seven")  # and may be afterwards


@pytest.mark.parametrize("how", ["computes_on", "edits_slowly"])
def test_what_goes_on_without_an_end_is_stopped_where_somebody_says_when(
    how: str, tmp_path: Path
) -> None:
    text = f"acme-breach{{at=r7, how={how}}}"
    said = f"{HEAD}: rewrite touch at r7: it takes more than 0.2 s"
    graph = model()
    with pytest.raises(PassError, match=said) as error:
        qir.optimize(graph, text, seconds=0.2)
    assert "-> %r7" in error.value.__notes__[0]
    assert str(graph) == str(model())
    qir.save(graph, tmp_path / "a.qir")
    words = ("-p", text, "--seconds", "1", "-o", tmp_path / "b.qir")
    done = command("opt", tmp_path / "a.qir", *words)
    assert (done.status, (tmp_path / "b.qir").exists()) == (2, False), done
    assert "rewrite touch at r7: it takes more than 1 s" in done.err


def test_who_interrupts_a_pass_is_told_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(graph: Graph, node: Node) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules["acme_qir.breaches"].HOW, "nothing", interrupted)
    with pytest.raises(KeyboardInterrupt, match="in pass acme-breach: rewrite touch at r7"):
        run_passes(model(), parse_passes("acme-breach{only=true, at=r7}"), Ledger())


def test_what_passes_before_did_is_there_when_one_is_blamed() -> None:
    """The graph that it was given is made again, to be compared."""
    first = parse_passes("acme-breach{at=r7, only=true}")
    liar = parse_passes("acme-breach{at=r9, only=true, says=-1}")
    with pytest.raises(PassError, match="r9 is another; rewrite touch at r9 did it"):
        run_passes(model(), [*first, *liar], Ledger())


def test_a_pass_that_changes_nothing_and_says_so_is_told_with_what_it_asked_for() -> None:
    @dataclass(frozen=True)
    class Boaster(Pass):
        name = "boaster"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            from qir.rewrite.runner.filter import may

            return sum(may(self.name, "boast", node) for node in graph if node.op == "relu")

    said = "reports 12 changes, the graph was not edited; it asked for rewrite boast at r12"
    with pytest.raises(PassError, match=said) as error:
        run_passes(model(), [Boaster()], Ledger())
    assert "-> %r12" in error.value.__notes__[0]


def test_the_checks_find_changes_behind_the_graphs_back_and_passes_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Sly(Pass):
        """Writes into nodes, past the methods of the graph."""

        name = "sly"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            for node in graph:
                node._op = "neg" if node.op == "abs" else node.op
            return 0

    @dataclass(frozen=True)
    class Endless(Sly):
        """Never comes back."""

        def run(self, graph: Graph, ledger: Ledger) -> int:
            while True:
                pass

    monkeypatch.setattr("qir.testing.conformance.passes.SECONDS", 0.2)
    for one, said in (
        (Sly(), "the graph was edited, past its methods"),
        (Endless(), "more than 0.2 s"),
    ):
        failed = {c.name: c.detail for c in check_pass(one, [model()], count=1) if not c.passed}
        assert said in failed["keeps its word: honest counts, whole graphs"], failed
