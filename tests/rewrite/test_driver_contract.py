"""What a pass requires and ensures is asked; what goes wrong is named, with the nodes around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from qir.errors import GraphError, PassError, Refused, Stopped
from qir.ir.dtype import F16
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.origin import Origin
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Report, run_passes
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.journal import Journal
from qir.rewrite.runner.numbering import WHOLE
from qir.rewrite.runner.properties import PROPERTIES

RELUS = 12


def relus(count: int = RELUS) -> Graph:
    """A row of relus: x -> r1 -> r2 ..."""
    rows = [f"%r{i} = relu(%{f'r{i - 1}' if i > 1 else 'x'}) : 2xf32" for i in range(1, count + 1)]
    return parse(
        "graph main as native {\n%x = input() : 2xf32\n"
        + "\n".join(rows)
        + f"\noutput(y=%r{count})\n}}"
    )


def one_by_one(graph: Graph, name: str, act: Callable[[Graph, Node], object]) -> int:
    """Does something at every relu that it may be done at."""
    count = 0
    for node in list(graph):
        if node.op == "relu" and may(name, "touch", node):
            act(graph, node)
            count += 1
    return count


def abs_instead(graph: Graph, node: Node) -> None:
    made = graph.add("abs", {"x": node.operands["x"]}, before=node, name=f"{node.name}.abs")
    graph.replace(node.result, made.result)
    graph.remove(node)


@dataclass(frozen=True)
class Touch(Pass):
    """Does something at every relu."""

    name = "touch"
    act: Callable[[Graph, Node], object] = abs_instead

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = one_by_one(graph, self.name, self.act)
        ledger.add(Change.EXACT, self.name, "y", "touched")
        return count


def at(wanted: str, what: Callable[[Graph, Node], object]) -> Callable[[Graph, Node], object]:
    """Abs everywhere, and something else at one node."""

    def act(graph: Graph, node: Node) -> None:
        if node.name == wanted:
            what(graph, node)
        else:
            abs_instead(graph, node)

    return act


def notes(error: pytest.ExceptionInfo[PassError]) -> list[str]:
    return "\n".join(error.value.__notes__).splitlines()


# -- properties ----------------------------------------------------------------------------------


def test_a_pass_does_not_run_on_a_graph_without_what_it_requires() -> None:
    @dataclass(frozen=True)
    class Floats(Touch):
        requires: ClassVar[tuple[str, ...]] = ("float",)

    text = """graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5>
      %d = dequantize(%q) : 2xf32
      output(y=%d)
    }"""
    with pytest.raises(PassError, match="pass touch requires float: q: %q is quantized") as error:
        run_passes(parse(text), [Floats()], Ledger())
    assert any(line.startswith("-> ") and "quantize" in line for line in notes(error))
    assert run_passes(relus(), [Floats()], Ledger()) != relus()


def test_a_pass_that_does_not_ensure_what_it_says_is_told_with_the_node() -> None:
    @dataclass(frozen=True)
    class Pruning(Touch):
        ensures: ClassVar[tuple[str, ...]] = ("pruned",)

    def leave(graph: Graph, node: Node) -> None:
        graph.add("abs", {"x": node.result}, name="loose")

    said = "pass touch does not ensure pruned: loose: nobody uses it"
    with pytest.raises(PassError, match=said):
        run_passes(relus(), [Pruning(at("r3", leave))], Ledger())


def test_a_property_that_there_is_not_is_told_with_the_ones_there_are() -> None:
    @dataclass(frozen=True)
    class Odd(Touch):
        requires: ClassVar[tuple[str, ...]] = ("no-qqd",)

    with pytest.raises(PassError, match=r"pass touch: no property 'no-qqd'; did you mean 'no-qdq'"):
        run_passes(relus(), [Odd()], Ledger())


QDQ = """graph main as native {
  %x = input() : 2xf32
  %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5>
  %d = dequantize(%q) : 2xf32
  %s = add(%d, %d) : 2xf32
  output(y=%s)
}"""
INTEGER = """graph main as native {
  %x = input() : 2x!quant.uniform<u8:f32, 0.5>
  %s = add(%x, %x) : 2x!quant.uniform<u8:f32, 1.0>
  output(y=%s)
}"""
LOOSE = """graph main as native {
  %x = input() : 2xf32
  %r = relu(%x) : 2xf32
  %s = abs(%x) : 2xf32
  output(y=%s)
}"""
HAS = {
    "no-qdq": (INTEGER, QDQ),
    "float": (LOOSE, QDQ),
    "qdq-form": (QDQ, INTEGER),
    "pruned": (QDQ, LOOSE),
}


@pytest.mark.parametrize("name", HAS)
def test_a_property_is_seen_where_it_is_and_missed_where_it_is_not(name: str) -> None:
    has, has_not = HAS[name]
    assert PROPERTIES[name].find(parse(has)) is None
    assert PROPERTIES[name].find(parse(has_not)) is not None


def test_properties_hold_for_bodies_too() -> None:
    graph = relus(1)
    body = relus(1)
    body.add("abs", {"x": body["r1"]}, name="loose")
    kind = TensorType((2,), graph["x"].type.element)
    made = graph.add("fused", {"x": graph["x"]}, types=[kind], bodies={"body": body})
    graph.replace(graph["r1"], made.result)
    graph.remove(graph["r1"].node)
    fault = PROPERTIES["pruned"].find(graph)
    assert fault is not None
    assert fault[0] is not None
    assert fault[0].name == "loose"


# -- rewrites are numbered -----------------------------------------------------------------------


def test_the_report_tells_every_rewrite_with_its_origins() -> None:
    graph = relus()
    graph.set_origins(graph["r2"].node, [Origin("onnx", "Relu", "/second")])
    told: list[Report] = []
    run_passes(graph, [Touch(), Touch()], Ledger(), after=lambda report, _: told.append(report))
    first, second = told
    assert [step.number for step in first.steps] == list(range(1, RELUS + 1))
    assert [step.node for step in first.steps] == [f"r{i}" for i in range(1, RELUS + 1)]
    assert first.steps[1].origins == (Origin("onnx", "Relu", "/second"),)
    assert first.rewrites == {"touch": RELUS}
    assert first.nodes == (RELUS + 2, RELUS + 2)
    assert second.steps == ()


@pytest.mark.parametrize("limit", [0, 1, 5, RELUS, 100])
def test_only_so_many_rewrites_are_done(limit: int) -> None:
    done = run_passes(relus(), [Touch()], Ledger(), limit=limit)
    assert sum(node.op == "abs" for node in done) == min(limit, RELUS)
    assert sum(node.op == "relu" for node in done) == max(0, RELUS - limit)


def test_a_pass_that_asks_for_nothing_is_one_rewrite() -> None:
    @dataclass(frozen=True)
    class Silent(Pass):
        name = "silent"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            nodes = [node for node in graph if node.op == "relu"]
            for node in nodes:
                abs_instead(graph, node)
            return len(nodes)

    told: list[Report] = []
    run_passes(relus(), [Silent()], Ledger(), after=lambda report, _: told.append(report))
    assert [(step.number, step.rewrite) for step in told[0].steps] == [(1, WHOLE)]
    assert run_passes(relus(), [Silent()], Ledger(), limit=0) == relus()


def test_what_is_asked_for_and_not_done_has_no_number() -> None:
    def even(graph: Graph, node: Node) -> None:
        if int(node.name[1:]) % 2 == 0:
            abs_instead(graph, node)

    told: list[Report] = []
    run_passes(relus(), [Touch(even)], Ledger(), after=lambda report, _: told.append(report))
    assert [step.node for step in told[0].steps] == [f"r{i}" for i in range(2, RELUS + 1, 2)]


# -- what goes wrong -----------------------------------------------------------------------------


def spoil(graph: Graph, node: Node) -> None:
    graph.set_type(node.result, TensorType((2,), F16))


def fail(graph: Graph, node: Node) -> None:
    raise ZeroDivisionError("by nothing")


def misuse(graph: Graph, node: Node) -> None:
    graph.remove(node)


def for_ever(graph: Graph, node: Node) -> None:
    while True:
        graph.set_type(node.result, node.result.type)


def asks_for_ever(graph: Graph, node: Node) -> None:
    turn = 0
    while may("touch", "turn", node):
        turn += 1
        graph.set_type(node.result, node.result.type)


WRONG: dict[Callable[[Graph, Node], None], str] = {
    spoil: "pass touch leaves a broken graph: r7: %r7 means f16",
    fail: "pass touch: rewrite touch at r7: ZeroDivisionError: by nothing",
    misuse: "pass touch: rewrite touch at r7: cannot remove r7: r8 uses %r7",
    for_ever: "pass touch: rewrite touch at r7: graph main is edited for ever",
    asks_for_ever: "pass touch: rewrite turn at r7: it goes on for ever",
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.__name__)
def test_a_failure_names_pass_rewrite_and_node_with_ten_nodes_around(
    what: Callable[[Graph, Node], None],
) -> None:
    graph, ledger, journal = relus(), Ledger(), Journal()
    with pytest.raises(PassError) as error:
        run_passes(graph, [Touch(at("r7", what))], ledger, journal=journal)
    assert WRONG[what] in str(error.value)
    head, *lines = notes(error)
    assert head == "in main:"
    assert len(lines) == 10
    assert [line.split()[1] for line in lines if line.startswith("->")] == ["%r7"]
    assert "%r8" in "".join(lines)
    assert graph == relus(), "the user's graph stays as it was"
    assert not len(ledger)
    assert not len(journal)


def test_a_failure_before_any_rewrite_is_told_with_the_node_that_the_pass_looked_at() -> None:
    @dataclass(frozen=True)
    class Looks(Pass):
        name = "looks"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            for node in graph:
                if node.name == "r4":
                    return int(node.op)
            return 0

    with pytest.raises(PassError, match="pass looks: at r4, before any rewrite: ValueErr") as error:
        run_passes(relus(), [Looks()], Ledger())
    assert any(line.startswith("-> %r4") for line in notes(error))


def test_what_is_raised_on_purpose_goes_through_as_it_is() -> None:
    def refuse(graph: Graph, node: Node) -> None:
        raise Refused("not this")

    with pytest.raises(Refused, match="not this"):
        run_passes(relus(), [Touch(refuse)], Ledger())


def test_a_graph_may_be_edited_again_after_a_pass_went_on_for_ever() -> None:
    with pytest.raises(PassError):
        run_passes(relus(), [Touch(for_ever)], Ledger())
    work = run_passes(relus(), [Touch()], Ledger())
    for _ in range(3):
        work.rename(work["x"], "z")
        work.rename(work["z"], "x")
    with pytest.raises(GraphError, match="has no value"):
        work["z"]


def test_a_rewrite_in_a_body_is_named_by_its_path() -> None:
    graph = relus(1)
    kind = graph["r1"].type
    made = graph.add("fused", {"x": graph["x"]}, types=[kind], bodies={"body": relus(2)}, name="g")
    graph.replace(graph["r1"], made.result)
    graph.remove(graph["r1"].node)
    told: list[Report] = []
    run_passes(graph, [Touch()], Ledger(), after=lambda report, _: told.append(report))
    assert [step.node for step in told[0].steps] == ["g/body/r1", "g/body/r2"]


def test_the_journal_says_what_was_run_and_reads_back() -> None:
    @dataclass(frozen=True)
    class Less(Touch):
        name = "less"
        most: int = 3
        ratio: float = 0.5

        def run(self, graph: Graph, ledger: Ledger) -> int:
            nodes = [node for node in graph if node.op == "relu"][: self.most]
            for node in nodes:
                if may(self.name, "lessen", node):
                    abs_instead(graph, node)
            return len(nodes)

    journal = Journal()
    run_passes(relus(), [Less(), Less(most=2), Less(most=0)], Ledger(), journal=journal)
    rows = [(e.name, e.text, e.changed, e.rewrites) for e in journal]
    assert rows == [
        ("less", "less", 3, {"lessen": 3}),
        ("less", "less{most=2}", 2, {"lessen": 2}),
        ("less", "less{most=0}", 0, {}),
    ]
    assert {e.by for e in journal} == {__name__}
    assert Journal.from_json(journal.to_json()) == journal
    assert Journal().to_json() == ""
    for text in ("{}", "[]", '{"version": 1, "passes": [{"name": 1}]}', '{"version": 2}'):
        with pytest.raises(ValueError, match=r"journal|QIR|list"):
            Journal.from_json(text)


def test_time_of_keeping_the_graph_of_a_user_is_small() -> None:
    """A copy is taken, once, however many passes run."""
    copies = 0
    graph = relus()
    real = Graph.copy

    def copy(self: Graph) -> Graph:
        nonlocal copies
        copies += 1
        return real(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(Graph, "copy", copy)
    try:
        run_passes(graph, [Touch(), Touch(), Touch()], Ledger())
    finally:
        patch.undo()
    assert copies == 1
    assert np.all([node.op != "abs" for node in graph])


# -- programs that end, counts that are none -------------------------------------------------------


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException])
def test_a_pass_that_would_end_the_program_is_told_with_rewrite_and_node(
    kind: type[BaseException],
) -> None:
    def leave(graph: Graph, node: Node) -> None:
        raise kind

    said = f"^pass touch: rewrite touch at r7: {kind.__name__}\nin main"
    with pytest.raises(PassError, match=said) as error:
        run_passes(relus(), [Touch(at("r7", leave))], Ledger())
    assert any(line.startswith("-> %r7 ") for line in notes(error))


def test_a_pass_that_ends_the_program_after_an_edit_is_run_again_without_ending_it() -> None:
    """Its last rewrite is looked for by running it once more, which ends it once more."""

    def leave(graph: Graph, node: Node) -> None:
        abs_instead(graph, node)
        sys.exit("enough")

    said = "^pass touch: rewrite touch at r7: SystemExit: enough\nin main"
    with pytest.raises(PassError, match=said) as error:
        run_passes(relus(), [Touch(at("r7", leave))], Ledger())
    assert any(line.startswith("-> %r7 ") for line in notes(error))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stopped])
def test_what_the_user_or_the_system_ends_is_ended(kind: type[BaseException]) -> None:
    def leave(graph: Graph, node: Node) -> None:
        raise kind

    with pytest.raises(kind):
        run_passes(relus(), [Touch(at("r7", leave))], Ledger())


def test_a_loop_by_hand_is_shown_around_the_node_it_is_at() -> None:
    @dataclass(frozen=True)
    class Loops(Pass):
        name = "loops"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            while True:
                node = next(n for n in graph if n.op == "relu" and not n.name.startswith("r1"))
                may(self.name, "again", node)
                made = graph.add("relu", {"x": node.operands["x"]}, before=node)
                graph.replace(node.result, made.result)
                graph.remove(node)

    with pytest.raises(PassError, match=r"rewrite again at (\S+): it goes on for ever") as error:
        run_passes(relus(20), [Loops()], Ledger())
    name = str(error.value).split(" at ")[1].split(":")[0]
    assert any(line.startswith(f"-> %{name} ") for line in notes(error))


def test_a_node_that_is_gone_is_shown_by_what_it_stood_on() -> None:
    def vanish(graph: Graph, node: Node) -> None:
        made = graph.add("neg", {"x": node.operands["x"]}, before=node, name="extra")
        graph.replace(node.result, made.result)
        graph.remove(node)
        again = graph.add("relu", {"x": made.result}, before=graph.output, name="gone")
        assert may("touch", "again", again.result.node)
        graph.remove(again)
        raise ValueError("now")

    with pytest.raises(PassError, match="rewrite again at gone: ValueError: now") as error:
        run_passes(relus(), [Touch(at("r7", vanish))], Ledger())
    assert any(line.startswith("-> %extra ") for line in notes(error))


def test_less_than_no_change_without_an_edit_is_told_as_that() -> None:
    @dataclass(frozen=True)
    class Less(Pass):
        name = "less"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            return -1

    with pytest.raises(PassError) as error:
        run_passes(relus(), [Less()], Ledger())
    said = "pass less reports -1 changes, which is no number of changes; the graph was not edited"
    assert str(error.value).startswith(said)
    assert "differs" not in str(error.value)
