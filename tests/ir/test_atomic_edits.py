"""An edit is done or refused, and one that is refused leaves the graph as it was."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from qir.errors import ArgumentError, GraphError, QirError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Lineage
from qir.ir.text import print_graph
from qir.ir.types import Array, TensorType
from qir.testing import EVERY, random_graph
from tests.fuzzing.graphs import Caller
from tests.ir.alike import picture
from tests.ir.test_graph import CHAIN, KIND, sound, start


def refused(graph: Graph, edit: Callable[[], object]) -> str:
    """The words of a refusal; none where the edit is done. A refusal must change nothing."""
    was, text = picture(graph), print_graph(graph, origins=True)
    try:
        edit()
    except QirError as error:
        said = f"{type(error).__name__}: {error}"
    else:
        return ""
    assert picture(graph) == was, said
    assert print_graph(graph, origins=True) == text
    assert sound(graph) == ""
    return said


@pytest.mark.parametrize("seed", range(24))
def test_random_edits_are_done_or_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(seed, EVERY[seed % len(EVERY)], decorated=seed % 2 == 0)
    caller = Caller(rng, graph)
    told: Counter[str] = Counter()
    for step in range(120):
        said = refused(graph, rng.choice(caller.calls()))
        assert sound(graph) == "", f"seed {seed}, step {step}"
        told[said.partition(":")[0]] += 1
    print(f"seed {seed}: {dict(told)}")
    assert told[""] > 20
    assert told["GraphError"] > 5


# -- substitute -------------------------------------------------------------------------------


def pair() -> tuple[Graph, Value, Node]:
    graph, (x,) = start()
    a = graph.add("relu", {"x": x}, name="a")
    halves = graph.add("split", {"x": a.result}, {"sizes": (1, 1), "axis": 0}, name=["p", "q"])
    graph.add("output", {"p": halves.results[0], "q": halves.results[1]})
    return graph, x, halves


def test_an_input_that_stands_for_a_node_keeps_its_name() -> None:
    graph, (x,) = start()
    first = graph.add("relu", {"x": x}, name="first")
    graph.add("output", {"o": first.result})
    graph.substitute(first, x)
    assert (x.name, x.lineage, graph.outputs["o"]) == ("x", Lineage("x"), x)
    assert sound(graph) == ""


def test_a_constant_that_can_be_given_keeps_its_name() -> None:
    graph, (x,) = start()
    data = Array.of(np.ones((2, 3), np.float32))
    attrs: dict[str, Attr] = {"data": data, "default": True}
    given = graph.add("constant", None, attrs, types=[KIND], name="given").result
    first = graph.add("relu", {"x": x}, name="first")
    graph.add("output", {"o": first.result})
    graph.substitute(first, given)
    assert [v.name for v in graph.defaults] == ["given"]


def test_a_substitution_with_too_few_or_too_many_values_changes_nothing() -> None:
    graph, x, halves = pair()
    one = graph.add("slice", {"x": x}, {"starts": (0,), "ends": (1,), "axes": (0,), "steps": (1,)})
    for values in ((one.result,), (one.result,) * 3):
        said = refused(graph, partial(graph.substitute, halves, *values))
        assert said == f"GraphError: p makes 2 values, {len(values)} are given for them"


def test_a_substitution_that_would_close_a_cycle_changes_nothing() -> None:
    graph, _, halves = pair()
    p, q = halves.results
    over_p = graph.add("neg", {"x": p}, name="over_p").result
    over_q = graph.add("neg", {"x": q}, name="over_q").result
    with pytest.raises(GraphError, match="would need its own result"):
        graph.substitute(halves, over_p, over_q)
    assert "its own result" in refused(graph, lambda: graph.substitute(halves, over_p, over_q))
    # each of them alone is fine; only together they close a circle
    assert "its own result" in refused(graph, lambda: graph.substitute(halves, over_q, over_p))


def test_values_that_stand_on_each_other_may_replace_a_node() -> None:
    graph, x, halves = pair()
    half = {"starts": (0,), "ends": (1,), "axes": (0,), "steps": (1,)}
    low = graph.add("slice", {"x": x}, half, name="low").result
    high = graph.add("neg", {"x": halves.results[0]}, name="high").result
    graph.substitute(halves, low, high)
    assert [v.name for v in graph.outputs.values()] == ["p", "q"]
    assert high.node.operands["x"] is low
    assert sound(graph) == ""


def test_a_substitution_that_removes_what_is_used_changes_nothing() -> None:
    graph, x, halves = pair()
    before = halves.operands["x"].node
    one = graph.add("neg", {"x": x}, name="one").result
    user = graph.add("neg", {"x": before.result}, name="user")
    other, (stranger,) = start("z")
    for values, gone, said in (
        ((one, one), (before,), "cannot remove a: user uses %a"),
        ((one, one), (before, user), "cannot remove a: user uses %a"),
        ((one, one), (user, user), "user is to be removed twice"),
        ((one, one), (halves,), "p is to be removed twice"),
        ((one, user.result), (user,), "user makes a value that is to stay"),
        ((halves.results[1], one), (), "p makes a value that is to stay"),
        ((one, stranger), (), "z is of another graph"),
    ):
        found = refused(graph, partial(graph.substitute, halves, *values, gone=gone))
        assert said in found, found
    assert sound(other) == ""
    graph.substitute(halves, one, one, gone=(user, before))
    assert len(graph) == 3


# -- operands, names, bodies ------------------------------------------------------------------


def test_a_slot_that_an_op_needs_is_not_emptied() -> None:
    graph, (x, y) = start("x", "y")
    total = graph.add("add", {"a": x, "b": y}, name="total")
    bounded = graph.add("clip", {"x": x}, name="bounded")
    graph.add("output", {"o": total.result, "p": x})
    with pytest.raises(TypeRuleError, match="add needs b"):
        graph.set_operand(total, "b", None)
    with pytest.raises(TypeRuleError, match="clip has no slot nothing"):
        graph.set_operand(bounded, "nothing", None)
    with pytest.raises(ArgumentError, match="argument value is an int"):
        graph.set_operand(total, "b", 3)  # type: ignore[arg-type]
    version = graph.version
    graph.set_operand(bounded, "x.scale", None)  # empty as it is
    assert graph.version == version
    graph.set_operand(graph.output, "p", None)
    assert list(graph.outputs) == ["o"]
    assert sound(graph) == ""


def test_a_group_keeps_the_operands_of_its_stages() -> None:
    graph = random_graph(0)
    x = graph.add("input", types=[KIND], name="own").result
    group = graph.add_chain(CHAIN, {"x": x}, x.type, name="group")
    for slot, value in (("x", None), ("1.b", x)):
        with pytest.raises(TypeRuleError, match="a group has those of its stages or its body"):
            graph.set_operand(group, slot, value)


def test_one_graph_is_not_two_bodies() -> None:
    graph = Graph()
    body = random_graph(1)
    name = body.name
    cond = graph.add("input", types=[TensorType((), F32)], name="c").result
    bodies = {"then": body, "else": body}
    said = refused(graph, lambda: graph.add("if", {"cond": cond}, types=[KIND], bodies=bodies))
    assert "has a place already; copy it first" in said
    assert body.name == name


def test_names_are_texts() -> None:
    graph, (x,) = start()
    said = refused(graph, lambda: graph.add("relu", {"x": x}, name=[3]))  # type: ignore[list-item]
    assert "argument name is a list" in said
    said = refused(graph, lambda: graph.rename(x, 3))  # type: ignore[arg-type]
    assert "argument name is an int" in said


def test_an_edit_beyond_the_most_of_a_pass_changes_nothing() -> None:
    graph, x, halves = pair()
    one = graph.add("neg", {"x": x}, name="one").result
    graph._most = graph.version
    edits: tuple[Callable[[], object], ...] = (
        lambda: graph.add("relu", {"x": x}),
        lambda: graph.substitute(halves, one, one),
        lambda: graph.replace(x, one, except_in=one.node),
        lambda: graph.rename(one, "other"),
        lambda: graph.remove(graph.output),
        lambda: graph.set_type(one, KIND),
        graph.prune,
    )
    for edit in edits:
        assert "is edited for ever" in refused(graph, edit)
