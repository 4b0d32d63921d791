"""What a graph takes and gives keeps its type through every pass that is not to change meanings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from qir.errors import PassError
from qir.ir.dtype import F64
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.reference.interpreter import run
from qir.rewrite import ANOTHER, Pass, Tolerance, run_passes
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.interface import GraphInterface, refines
from qir.rewrite.runner.validation import Validation
from qir.testing import check_pass

TEXT = """graph main as native {
  %x = input() : ?x3xf32
  %b = neg(%x) : ?x3xf32
  %z = erf(%b) : ?x3xf32
  output(y=%z, more=%b)
}"""
SAMPLE = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def wide(graph: Graph) -> None:
    made = graph.add("cast", {"x": graph["z"]}, {"to": F64}, before=graph.output)
    graph.set_operand(graph.output, "y", made.result)


def wide_and_wrong(graph: Graph) -> None:
    made = graph.add("neg", {"x": graph["z"]}, before=graph.output)
    made = graph.add("cast", {"x": made.result}, {"to": F64}, before=graph.output)
    graph.set_operand(graph.output, "y", made.result)


def constant(graph: Graph) -> None:
    made = graph.constant(Array.of(np.zeros(4, np.float32)), before=graph.output)
    graph.set_operand(graph.output, "y", made)


def wide_input(graph: Graph) -> None:
    graph.set_type(graph["x"], TensorType(graph["x"].type.shape, F64))
    made = graph.add(
        "cast", {"x": graph["x"]}, {"to": graph["b"].type.dtype}, before=graph["b"].node
    )
    graph.set_operand(graph["b"].node, "x", made.result)


def known(graph: Graph) -> None:
    """Sizes that were open, said."""
    for name in "xbz":
        graph.set_type(graph[name], TensorType((2, 3), graph[name].type.element))


@dataclass(frozen=True)
class Retype(Pass):
    """Gives an end another type."""

    name = "retype"
    nested = False
    act: Callable[[Graph], None] = wide

    def run(self, graph: Graph, ledger: Ledger) -> int:
        if not graph.has("z") or not may(self.name, "retype", graph["z"].node):
            return 0
        self.act(graph)
        return 1


WRONG: dict[Callable[[Graph], None], str] = {
    wide: r"changes the type of output y: \?x3xf32 -> \?x3xf64; rewrite retype at z did it",
    wide_and_wrong: r"changes the type of output y: \?x3xf32 -> \?x3xf64; rewrite retype at z did",
    constant: r"changes the type of output y: \?x3xf32 -> 4xf32; rewrite retype at z did it",
    wide_input: r"changes the type of input x: \?x3xf32 -> \?x3xf64; rewrite retype at z did it",
}


@pytest.mark.parametrize("act", WRONG, ids=lambda act: act.__name__)
@pytest.mark.parametrize("validated", [False, True])
def test_a_pass_may_not_give_an_end_another_type(
    act: Callable[[Graph], None], validated: bool
) -> None:
    held = Validation(run, [SAMPLE]) if validated else None
    with pytest.raises(PassError, match=f"pass retype {WRONG[act]}") as error:
        run_passes(parse(TEXT), [Retype(act)], Ledger(), validation=held)
    assert any(line.startswith("->") for line in error.value.__notes__[0].splitlines())


def test_sizes_that_were_open_may_get_known_and_not_the_other_way() -> None:
    done = run_passes(parse(TEXT), [Retype(known)], Ledger())
    assert done.outputs["y"].type.shape == (2, 3)
    some, two, named = (parse(TEXT.replace("?", size))["x"].type for size in ("?", "2", "(N)"))
    assert refines(some, two)
    assert refines(some, named)
    assert refines(named, two)
    assert not refines(two, some)
    assert not refines(two, named)
    assert not refines(named, some)


def test_a_pass_that_is_to_change_the_meaning_may_change_types() -> None:
    @dataclass(frozen=True)
    class Meant(Retype):
        tolerance: ClassVar[Tolerance] = ANOTHER

    assert run_passes(parse(TEXT), [Meant()], Ledger()).outputs["y"].type.element == F64


def test_validation_by_itself_names_an_output_of_another_type() -> None:
    graph = parse(TEXT)
    held = Validation(run, [SAMPLE])
    before, changed = held.picture(graph), graph.copy()
    wide_and_wrong(changed)
    moved = held.moved(before, changed, Tolerance())
    assert moved is not None
    assert str(moved) == "%y moved by more than can be shown: it was ?x3xf32, and is ?x3xf64"


def test_a_tensor_of_another_type_is_compared_by_its_numbers() -> None:
    graph = parse(TEXT)
    held = Validation(run, [SAMPLE])
    for sign, said in (("neg", None), ("abs", "%b moved by 10, ")):
        text = TEXT.replace("output(", "%unused = abs(%x) : ?x3xf32\noutput(").replace(
            "%b = neg(%x)", f"%w = cast(%x) {{to = f64}} : ?x3xf64\n%b = {sign}(%w)"
        )
        text = text.replace(
            ": ?x3xf32\n  %z = erf(%b)",
            ": ?x3xf64\n  %z0 = cast(%b) {to = f32} : ?x3xf32\n  %z = erf(%z0)",
        ).replace("more=%b", "more=%z0")
        moved = held.moved(held.picture(graph), parse(text), Tolerance())
        assert (moved is None) == (said is None)
        assert said is None or str(moved).startswith(said)


def test_the_checks_of_a_pass_find_another_type() -> None:
    rows = {check.name: check for check in check_pass(Retype, [parse(TEXT)], count=0)}
    found = rows["keeps its word: honest counts, whole graphs"]
    assert not found.passed
    assert "changes the type of output y" in found.detail


def test_ends_are_those_of_the_graph_itself() -> None:
    graph = parse(TEXT)
    ends = GraphInterface.of(graph)
    assert ends.renamed(graph) == ""
    assert ends.retyped(graph) is None
    graph.rename(graph["x"], "other")
    assert ends.renamed(graph) == "changes the inputs of the graph: x -> other"


# -- what a pass ensures --------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle(Pass):
    """Does nothing, and says much."""

    name = "idle"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return 0


QDQ = """graph main as native {
  %x = input() : 2xf32
  %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5>
  %d = dequantize(%q) : 2xf32
  output(y=%d)
}"""


def test_what_a_pass_ensures_is_asked_where_it_changed_nothing_too() -> None:
    @dataclass(frozen=True)
    class Says(Idle):
        ensures: ClassVar[tuple[str, ...]] = ("ungrouped", "no-qdq")

    said = "pass idle does not ensure no-qdq: q: it is a quantize"
    with pytest.raises(PassError, match=said) as error:
        run_passes(parse(QDQ), [Says()], Ledger())
    assert any(line.startswith("-> %q ") for line in error.value.__notes__[0].splitlines())
    rows = {check.name: check for check in check_pass(Says, [parse(QDQ)], count=0)}
    assert "does not ensure no-qdq" in rows["keeps its word: honest counts, whole graphs"].detail


@pytest.mark.parametrize("field", ["requires", "ensures"])
def test_a_property_that_is_misspelt_is_told_before_the_pass_runs(field: str) -> None:
    @dataclass(frozen=True)
    class Odd(Idle):
        def run(self, graph: Graph, ledger: Ledger) -> int:
            raise AssertionError("it runs")

    setattr(Odd, field, ("no-qdq", "no-qqd") if field == "ensures" else ("no-qqd",))
    with pytest.raises(PassError, match=r"pass idle: no property 'no-qqd'; did you mean 'no-qdq'"):
        run_passes(parse(QDQ), [Odd()], Ledger())
    (check,) = [c for c in check_pass(Odd, count=0) if c.name == "its properties are known ones"]
    assert not check.passed


# -- constants are shared with the graph that was given -------------------------------------------


@pytest.mark.parametrize("owned", [True, False])
def test_a_pass_cannot_write_into_a_constant_of_the_graph_that_was_given(owned: bool) -> None:
    @dataclass(frozen=True)
    class Writes(Idle):
        def run(self, graph: Graph, ledger: Ledger) -> int:
            held = graph["c"].constant
            assert held is not None
            held.data.setflags(write=True)
            held.data[0] = 99
            return 0

    data = np.array([1, 2], np.float32)
    data.flags.writeable = not owned
    graph = parse(
        "graph main as native {\n%x = input() : 2xf32\n%y = add(%x, %x) : 2xf32\noutput(y=%y)\n}"
    )
    made = graph.constant(Array.of(data), name="c", before=graph["y"].node)
    graph.set_operand(graph["y"].node, "b", made)
    with pytest.raises(PassError, match="cannot set WRITEABLE flag"):
        run_passes(graph, [Writes()], Ledger())
    assert run(graph, {"x": data})["y"].tolist() == [2, 4]
