"""What matches is replaced, until nothing matches; and a rewrite that misbehaves is named."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from qir.errors import PassError
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Lineage, Origin
from qir.ir.types import Array, TensorType
from qir.ir.verify import errors
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.matching import matches
from qir.rewrite.patterns.pattern import Ops, Pattern, Term, Var, maybe, near, pattern, repeated
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite, rewrite
from qir.rewrite.runner.filter import asking
from tests.rewrite.graphs import GELU, graph, residual


@pattern
def gelu(op: Ops, x: Var) -> Term:
    return op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, near(2**0.5))), 1.0))


TO_GELU = Rewrite(
    gelu,
    lambda graph, m: graph.add("gelu", {"x": m["x"]}).result,
    Change.REGROUPED,
    "{nodes} is gelu",
)
MUL_ONE = Rewrite(
    pattern(lambda op, x: op.mul(x, 1.0), name="mul-one"), lambda graph, m: m["x"], Change.EXACT
)
RELU_TWICE = Rewrite(
    pattern(lambda op, x: op.relu(op.relu(x)), name="relu-twice"),
    lambda graph, m: graph.add("relu", {"x": m["x"]}).result,
    Change.EXACT,
)


@dataclass(frozen=True)
class Tidy(PatternPass):
    """Several rewrites, one of which is an option."""

    name = "tidy"
    rewrites = (TO_GELU, MUL_ONE, RELU_TWICE)
    gelus: bool = True

    def chosen(self) -> tuple[Rewrite, ...]:
        return self.rewrites if self.gelus else self.rewrites[1:]


def once(work: Graph, *rewrites: Rewrite) -> int:
    count = rewrite(work, rewrites, Ledger(), "test")
    assert not errors(work)
    return count


def ops(work: Graph) -> list[str]:
    return [node.op for node in work if node.op not in ("input", "output", "constant")]


def test_a_pass_of_rewrites_runs_as_any_pass_and_tells_the_ledger() -> None:
    before = graph(GELU)
    ledger = Ledger()
    after = run_passes(before, [Tidy()], ledger)
    assert ops(after) == ["gelu"]
    assert [n.op for n in after if n.op == "constant"] == []
    assert ops(before) != ["gelu"]
    assert [(e.step, e.subject, e.reason) for e in ledger] == [
        ("tidy", "y", "div erf add mul is gelu")
    ]
    assert run_passes(after, [Tidy()], ledger).version == after.copy().version
    assert ops(run_passes(before, [Tidy(gelus=False)], ledger)) == ops(before)
    assert list(Tidy().patterns) == ["gelu", "mul-one", "relu-twice"]


def test_name_lineage_and_origins_go_to_the_new_node() -> None:
    work = graph(GELU)
    for name in ("e", "d", "y"):
        work.set_origins(work[name].node, [Origin("onnx", work[name].node.op, name)])
    work.set_lineage(work["y"], Lineage("source"))
    assert once(work, TO_GELU) == 1
    assert [str(o) for o in work["y"].node.origins] == ["onnx div d", "onnx erf e", "onnx mul y"]
    assert work["y"].lineage == Lineage("source")
    assert work.outputs["y"].name == "y"


def test_a_value_that_was_there_keeps_its_name() -> None:
    work = graph("%one = constant(1.0) : f32\n%a = relu(%x)\n%y = mul(%a, %one)\noutput(y=%y)")
    assert once(work, MUL_ONE) == 1
    assert work.outputs["y"].name == "a"
    assert not work.has("y")


def test_the_profile_of_the_nodes_goes_to_the_new_one_and_two_profiles_block() -> None:
    work = graph(GELU)
    work.set_profile(work["y"].node, "ort")
    assert once(work, TO_GELU) == 0
    for name in ("d", "e", "a", "m"):
        work.set_profile(work[name].node, "ort")
    assert once(work, TO_GELU) == 1
    assert work["y"].node.profile == "ort"


def test_what_a_rewrite_makes_is_rewritten_in_turn() -> None:
    lines = "\n".join(f"%r{i + 1} = relu(%{f'r{i}' if i else 'x'})" for i in range(50))
    work = graph(f"{lines}\noutput(y=%r50)")
    assert once(work, RELU_TWICE) == 49
    assert ops(work) == ["relu"]
    assert work.outputs["y"].name == "r50"


def test_a_use_that_goes_away_makes_room_for_a_match() -> None:
    body = "%one = constant(1.0) : f32\n%d = relu(%x)\n%p = mul(%d, %one)\n%s = tanh(%d)\n"
    work = graph(f"{body}%y = add(%p, %s)\noutput(y=%y)")
    both = pattern(lambda op, x: op.add(a := op.relu(x), op.tanh(a)), name="both")
    made = Rewrite(both, lambda graph, m: graph.add("sigmoid", {"x": m["x"]}).result)
    assert once(work, made, MUL_ONE) == 2
    assert ops(work) == ["sigmoid"]


def test_the_larger_of_two_matches_that_overlap_wins() -> None:
    small = pattern(lambda op, x, w: op.add(op.matmul(x, w), x), name="small")
    large = pattern(lambda op, x, w: op.relu(op.add(op.matmul(x, w), x)), name="large")

    def to(name: str) -> Rewrite:
        wanted = small if name == "tanh" else large
        return Rewrite(wanted, lambda graph, m: graph.add(name, {"x": m["x"]}).result)

    work = graph(residual(3))
    assert once(work, to("tanh"), to("sigmoid")) == 3
    assert ops(work) == ["sigmoid"] * 3


def test_a_whole_chain_is_replaced_at_once() -> None:
    wanted = pattern(
        lambda op, x, w: repeated(lambda h: op.relu(op.add(op.matmul(h, w), h)), x), name="blocks"
    )

    def product(graph: Graph, m: Match) -> Value:
        value = m["x"]
        for block in reversed(m.rounds()):
            value = graph.add("linear", {"x": value, "w": block["w"]}).result
        return value

    work = graph(residual(4))
    assert once(work, Rewrite(wanted, product)) == 1
    assert ops(work) == ["linear"] * 4
    assert [n.operands["w"].name for n in work if n.op == "linear"] == ["w0", "w1", "w2", "w3"]


def test_several_results_are_replaced_together() -> None:
    work = graph("%a = relu(%x)\n%s = sigmoid(%a)\n%t = tanh(%a)\noutput(s=%s, t=%t)")
    both = pattern(lambda op, x: (op.sigmoid(a := op.relu(x)), op.tanh(a)), name="both")

    def swap(graph: Graph, m: Match) -> tuple[Value, Value]:
        return graph.add("exp", {"x": m["x"]}).result, graph.add("abs", {"x": m["x"]}).result

    assert once(work, Rewrite(both, swap)) == 1
    assert {k: v.node.op for k, v in work.outputs.items()} == {"s": "exp", "t": "abs"}
    assert {v.name for v in work.outputs.values()} == {"s", "t"}


def test_results_between_which_other_nodes_stand_are_left() -> None:
    work = graph("%a = relu(%x)\n%s = sigmoid(%a)\n%u = abs(%s)\n%t = add(%a, %u)\noutput(t=%t)")
    both = pattern(lambda op, x, u: (op.sigmoid(a := op.relu(x)), op.add(a, u)), name="both")
    assert matches(work, both) == []


def test_a_replacement_may_stand_on_what_it_replaces() -> None:
    work = graph("%y = tanh(%x)\noutput(y=%y)")
    bare = pattern(lambda op, x: op.tanh(x).check("not yet", lambda n: n.result.name == "y"))

    def wrap(graph: Graph, m: Match) -> Value:
        return graph.add("relu", {"x": m.root.result}).result

    assert once(work, Rewrite(bare, wrap)) == 1
    assert ops(work) == ["tanh", "relu"]


def test_bodies_are_rewritten_by_themselves() -> None:
    work = Graph()
    kind = TensorType((2, 3), F32)
    x = work.add("input", types=[kind], name="x").result
    body = graph(GELU.replace("%r", "%x"))
    for name in ("r", "z"):
        body.remove(body[name].node)
    work.add(
        "output", {"y": work.add("fused", {"x": x}, types=[kind], bodies={"body": body}).result}
    )
    after = run_passes(work, [Tidy()], Ledger())
    (held,) = (body for _, body in after.walk() if body is not after)
    assert ops(held) == ["gelu"]
    assert ops(after) == ["fused"]


def test_who_watches_may_number_rewrites_and_stop_them() -> None:
    told: list[str] = []

    def watch(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        if len(told) == 2:
            return False
        told.append(f"{step}: {rewrite} at {nodes[0].name}")
        return True

    work = graph(
        "\n".join(f"%r{i + 1} = relu(%{f'r{i}' if i else 'x'})" for i in range(5))
        + "\noutput(y=%r5)"
    )
    with asking(work, watch):
        assert once(work, RELU_TWICE) == 2
    assert told == ["test: relu-twice at r5", "test: relu-twice at r5"]
    assert ops(work) == ["relu"] * 3
    assert once(work, RELU_TWICE) == 2


# -- what goes wrong is named --------------------------------------------------------------------


def back(graph: Graph, m: Match) -> Value:
    return graph.add("relu", {"x": m["x"]}).result


def forth(graph: Graph, m: Match) -> Value:
    return graph.add("tanh", {"x": m["x"]}).result


def test_rewrites_that_undo_each_other_are_stopped_and_named() -> None:
    there = Rewrite(pattern(lambda op, x: op.tanh(x), name="there"), back)
    again = Rewrite(pattern(lambda op, x: op.relu(x), name="again"), forth)
    work = graph("%y = tanh(%x)\noutput(y=%y)")
    with pytest.raises(PassError, match=r"rewrite (there|again) at y: goes on for ever; .*there"):
        rewrite(work, [there, again], Ledger(), "test")


def grows(graph: Graph, m: Match) -> Value:
    return graph.add("relu", {"x": graph.add("relu", {"x": m["x"]}).result}).result


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        (grows, "goes on for ever"),
        (lambda graph, m: m.root.result, "gives back %y itself; None declines"),
        (lambda graph, m: m["nobody"], "names nothing nobody"),
        (lambda graph, m: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda graph, m: (m["x"], m["x"]), "gives 2 values for 1"),
        (lambda graph, m: graph.add("shape", {"x": m["x"]}).result, "makes 2xi64 of %y, which is"),
        (lambda graph, m: [graph.add("abs", {"x": m["x"]}), None][1], "declines, but has changed"),
        (lambda graph, m: graph.add("add", {"x": m["x"]}).result, "add has no slot x"),
    ],
)
def test_a_replacement_that_misbehaves_is_named_with_its_node(replace: object, said: str) -> None:
    work = graph("%y = relu(%x)\noutput(y=%y)")
    wrong = Rewrite(pattern(lambda op, x: op.relu(x), name="wrong"), replace)  # type: ignore[arg-type]
    with pytest.raises(PassError) as error:
        rewrite(work, [wrong], Ledger(), "test")
    assert str(error.value).startswith("pass test: rewrite wrong at y: ")
    assert said in str(error.value)


def test_a_rewrite_that_declines_changes_nothing_and_ends() -> None:
    work = graph(GELU)
    version = work.version
    assert once(work, Rewrite(gelu, lambda graph, m: None)) == 0
    assert work.version == version


# -- properties ----------------------------------------------------------------------------------


def network(seed: int, length: int) -> Graph:
    """Ops at random, gelus, products with one and relus of relus among them."""
    pick = random.Random(seed)
    work = Graph()
    kind = TensorType((2, 3), F32)
    values = [work.add("input", types=[kind], name="x").result]

    def number(value: float) -> Value:
        return work.constant(Array.of(np.array(value, np.float32)))

    def two(op: str, a: Value, b: Value) -> Value:
        a, b = (a, b) if pick.randrange(2) or op == "div" else (b, a)
        return work.add(op, {"a": a, "b": b}).result

    for _ in range(length):
        x = pick.choice(values[-3:])
        kind_of = pick.randrange(5)
        if kind_of == 0:
            e = work.add("erf", {"x": two("div", x, number(2**0.5))}).result
            values.append(two("mul", two("mul", x, number(0.5)), two("add", e, number(1.0))))
        elif kind_of == 1:
            values.append(two("mul", x, number(1.0)))
        elif kind_of == 2:
            values.append(work.add("relu", {"x": x}).result)
        elif kind_of == 3:
            values.append(two("add", x, pick.choice(values)))
        else:
            values.append(work.add("tanh", {"x": x}).result)
    work.add("output", {"y": values[-1], "z": pick.choice(values)})
    return work


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_compute_the_same_and_end_where_nothing_matches(seed: int) -> None:
    before = network(seed, 30)
    after = run_passes(before, [Tidy()], Ledger())
    assert not any(matches(after, wanted) for wanted in Tidy().patterns.values())
    again = run_passes(before, [Tidy()], Ledger())
    assert str(again) == str(after)
    twice = run_passes(after, [Tidy()], Ledger())
    assert twice.version == after.copy().version
    data = {"x": np.random.default_rng(seed).normal(0, 1, (2, 3)).astype(np.float32)}
    want, got = run(before, data), run(after, data)
    for name in want:
        assert np.allclose(got[name], want[name], rtol=1e-5, atol=1e-6), seed


def test_many_users_of_one_value_are_followed_in_another_sweep() -> None:
    body = "%one = constant(1.0) : f32\n%a = mul(%x, %one)\n"
    body += "".join(f"%t{i} = relu(%a)\n%u{i} = relu(%t{i})\n" for i in range(100))
    outs = ", ".join(f"y{i}=%u{i}" for i in range(100))
    work = graph(f"{body}output({outs})")
    fed = pattern(lambda op, x: op.relu(x.where("node.op == 'input'")), name="fed")
    made = Rewrite(fed, lambda graph, m: graph.add("abs", {"x": m["x"]}).result)
    assert once(work, made, MUL_ONE) == 101
    assert ops(work).count("abs") == 100


def chain_of_sums(count: int, ending: str) -> tuple[Graph, Pattern]:
    """A sum of many, each step of which is made in a way that could be laid on crosswise."""
    work = Graph()
    kind = TensorType((2,), F32)
    x = work.add("input", types=[kind], name="x").result
    value = work.add(ending, {"x": x}).result
    for _ in range(count):
        a = work.add("add", {"a": value, "b": x}).result
        b = work.add("add", {"a": x, "b": value}).result
        value = work.add("add", {"a": a, "b": b}).result
    work.add("output", {"y": value})
    op = Ops()
    term: Term = op.tanh(Var("z"))
    for _ in range(count):
        term = op.add(op.add(Var("x"), term), op.add(Var("x"), term))
    return work, Pattern("sums", (term,))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("ending", "count"), [("tanh", 1), ("relu", 0)])
def test_a_sum_of_many_operands_does_not_blow_up(ending: str, count: int) -> None:
    work, wanted = chain_of_sums(60, ending)
    assert len(matches(work, wanted)) == count
    plain = Graph()
    kind = TensorType((2,), F32)
    value = plain.add("input", types=[kind], name="x").result
    op = Ops()
    term: Term = op.tanh(Var("v")) if ending == "relu" else Var("v")
    for i in range(200):
        other = plain.add("input", types=[kind], name=f"i{i}").result
        value = plain.add("add", {"a": other, "b": value}).result
        term = op.add(term, Var(f"x{i}"))
    plain.add("output", {"y": value})
    assert len(matches(plain, Pattern("sum", (term,)))) == count


@pytest.mark.timeout(20)
def test_a_long_list_of_operands_does_not_blow_up() -> None:
    work = Graph()
    kind = TensorType((2,), F32)
    x = work.add("input", types=[kind], name="x").result
    made = [work.add("relu", {"x": x}).result for _ in range(12)]
    work.add("output", {"y": work.add("sum", {f"xs.{i}": v for i, v in enumerate(made)}).result})
    op = Ops()
    wanted = Pattern("s", (op.sum(*(op.relu(Var("x")) for _ in range(11)), op.tanh(Var("z"))),))
    assert matches(work, wanted) == []


def test_optional_slots_and_lists_survive_a_rewrite() -> None:
    work = graph(
        "%w = constant([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) : 3x3xf32\n"
        "%y = linear(%x, %w)\noutput(y=%y)"
    )
    wanted = pattern(lambda op, x, w, b: op.linear(x, w, bias=maybe(b)), name="linear")

    def product(graph: Graph, m: Match) -> Value:
        assert m.get("b") is None
        return graph.add("matmul", {"a": m["x"], "b": m["w"]}, {"trans_b": True}).result

    assert once(work, Rewrite(wanted, product)) == 1
    assert ops(work) == ["matmul"]
