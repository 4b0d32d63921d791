"""Patterns as a pass developer writes them: each test is one thing that a pattern can say."""

import pytest

from qir.errors import ParseError, TypeRuleError, UsageError
from qir.ir.node import Value
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.matching import match_at, matches
from qir.rewrite.patterns.pattern import (
    FLOW,
    Ops,
    Pattern,
    Term,
    Var,
    chain,
    every,
    maybe,
    near,
    one_of,
    optional,
    pattern,
    repeated,
    rest,
    such,
)
from tests.rewrite.graphs import GELU, LAYER_NORM, SOFTMAX, TANH_GELU, graph, residual


def only(text: str, wanted: Pattern) -> Match:
    """The one match in a graph."""
    (found,) = matches(graph(text), wanted)
    return found


def count(text: str, wanted: Pattern) -> int:
    return len(matches(graph(text), wanted))


@pattern
def gelu(op: Ops, x: Var) -> Term:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    return op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, near(2**0.5))), 1.0))


@pattern
def tanh_gelu(op: Ops, x: Var) -> Term:
    cube = op.pow(x, 3.0) | op.mul(op.mul(x, x), x)
    inner = op.mul(near(0.7978846), op.add(x, op.mul(0.044715, cube)))
    return op.mul(0.5, op.mul(x, op.add(1.0, op.tanh(inner))))


@pattern
def layer_norm(op: Ops, x: Var, eps: Var, gamma: Var, beta: Var) -> Term:
    centred = op.sub(x, op.reduce_mean(x, axes=(-1,)).named("mean"))
    square = op.pow(centred, 2.0) | op.mul(centred, centred) | op.square(centred)
    spread = op.add(op.reduce_mean(square).named("var"), eps.where("constant"))
    return op.add(op.mul(op.div(centred, op.sqrt(spread)), gamma), beta)


@pattern
def softmax(op: Ops, x: Var) -> Term:
    e = op.exp(op.sub(x, op.reduce_max(x, axes=(-1,), keep=True)))
    return op.div(e, op.reduce_sum(e, axes=(-1,), keep=True))


def test_a_pattern_is_the_subgraph_it_matches() -> None:
    found = only(GELU, gelu)
    assert found["x"].name == "x"
    assert found.root.name == "y"
    assert [n.name for n in found.nodes] == ["d", "e", "a", "m", "y"]
    assert found.node("erf").name == "e"


def test_the_other_form_of_gelu_in_its_own_order_of_operands() -> None:
    assert only(TANH_GELU, tanh_gelu)["x"].name == "x"
    assert count(TANH_GELU, gelu) == 0


def test_layer_norm_uses_what_it_centres_twice() -> None:
    found = only(LAYER_NORM, layer_norm)
    assert (found["gamma"].name, found["beta"].name, found["eps"].name) == ("g", "b", "eps")
    assert found.node("var").attrs["axes"] == (-1,)


def test_softmax_written_out() -> None:
    assert only(SOFTMAX, softmax)["x"].name == "x"
    assert count(SOFTMAX.replace("(-1)", "(0)").replace("2x1xf32", "1x3xf32"), softmax) == 0


def test_an_inner_value_with_other_uses_blocks_a_match() -> None:
    assert count(GELU.replace("output(y=%y)", "output(y=%y, e=%e)"), gelu) == 0
    assert count(GELU.replace("output(y=%y)", "%o = relu(%d)\noutput(y=%y, o=%o)"), gelu) == 0


def test_an_input_or_a_constant_of_a_match_may_have_other_uses() -> None:
    assert count(GELU.replace("output(y=%y)", "%o = add(%x, %one)\noutput(y=%y, o=%o)"), gelu) == 1


def test_the_same_variable_is_the_same_value_or_an_equal_constant() -> None:
    twice = pattern(lambda op, x: op.add(op.relu(x), op.tanh(x)), name="twice")
    body = "%a = relu(%x)\n%b = tanh({})\n%y = add(%a, %b)\noutput(y=%y)"
    assert count(body.format("%x"), twice) == 1
    assert count(body.format("%r"), twice) == 0
    same = "%c = constant(2.0) : f32\n%d = constant(2.0) : f32\n%a = add(%x, %c)\n"
    same += "%y = mul(%a, %d)\noutput(y=%y)"
    assert count(same, pattern(lambda op, x, c: op.mul(op.add(x, c), c), name="c")) == 1


def test_numbers_are_constants_of_that_number_as_their_type_rounds_it() -> None:
    tenth = pattern(lambda op, x: op.mul(x, 0.1), name="tenth")
    body = "%c = constant({}) : {}\n%y = mul(%x, %c)\noutput(y=%y)"
    assert count(body.format("0.1", "f32"), tenth) == 1
    assert count(body.format("[0.1, 0.1, 0.1]", "3xf32"), tenth) == 1
    assert count(body.format("[0.1, 0.1, 0.2]", "3xf32"), tenth) == 0
    assert count(body.format("0.1001", "f32"), tenth) == 0
    assert (
        count(body.format("0.1001", "f32"), pattern(lambda op, x: op.mul(x, near(0.1, 0.01)))) == 1
    )
    assert count("%y = mul(%x, %r)\noutput(y=%y)", tenth) == 0


def test_attributes_are_equal_or_meet_a_condition() -> None:
    body = "%y = softmax(%x) {axis = 1}\noutput(y=%y)"
    assert count(body, pattern(lambda op, x: op.softmax(x, axis=1))) == 1
    assert count(body, pattern(lambda op, x: op.softmax(x, axis=-1))) == 0
    assert count(body, pattern(lambda op, x: op.softmax(x))) == 1
    assert count(body, pattern(lambda op, x: op.softmax(x, axis=one_of(-1, 1)))) == 1
    odd = such("is odd", lambda axis: isinstance(axis, int) and axis % 2 == 1)
    assert count(body, pattern(lambda op, x: op.softmax(x, axis=odd))) == 1


def test_types_and_constants_are_asked_as_queries_ask() -> None:
    body = "%c = constant([1.0, 2.0, 3.0]) : 3xf32\n%y = mul(%x, %c)\noutput(y=%y)"
    for asked, fits in (("rank == 1", 1), ("rank == 2", 0), ("constant", 1), ("size == 3", 1)):
        wanted = pattern(lambda op, x, c, a=asked: op.mul(x, c.where(a)).ordered())
        assert count(body, wanted) == fits, asked
    with pytest.raises(ParseError, match="rnak"):
        Var("c").where("rnak == 1")


def test_a_condition_of_ones_own_has_words() -> None:
    def small(value: Value) -> bool:
        return value.constant is not None and value.constant.data.size <= 2

    body = "%c = constant([1.0, 2.0, 3.0]) : 3xf32\n%y = mul(%x, %c)\noutput(y=%y)"
    wanted = pattern(lambda op, x, c: op.mul(x, c.check("has two elements at most", small)))
    assert count(body, wanted) == 0


def test_a_condition_on_the_whole_match() -> None:
    wanted = gelu.check("x is an input", lambda match: match["x"].node.op == "input")
    assert count(GELU, wanted) == 1
    assert count(GELU, gelu.check("never", lambda match: False)) == 0


def test_commutative_ops_are_tried_both_ways_unless_told() -> None:
    body = "%a = relu(%x)\n%y = add({})\noutput(y=%y)"
    either = pattern(lambda op, x, r: op.add(op.relu(x), r))
    ordered = pattern(lambda op, x, r: op.add(op.relu(x), r).ordered())
    assert count(body.format("%a, %r"), either) == count(body.format("%r, %a"), either) == 1
    assert count(body.format("%a, %r"), ordered) == 1
    assert count(body.format("%r, %a"), ordered) == 0


def test_alternatives_of_ops_and_of_subgraphs() -> None:
    ops = pattern(lambda op, x: op.any_of("relu", "clip")(x))
    assert count("%y = clip(%x) {min = 0.0}\noutput(y=%y)", ops) == 1
    square = pattern(lambda op, x: op.sqrt(op.mul(x, x) | op.pow(x, 2.0) | op.square(x)))
    for made in ("mul(%x, %x)", "pow(%x, %two)", "square(%x)"):
        body = f"%two = constant(2.0) : f32\n%s = {made}\n%y = sqrt(%s)\noutput(y=%y)"
        assert count(body, square) == 1, made


def test_a_node_that_may_be_missing() -> None:
    wanted = pattern(lambda op, x: op.tanh(optional(op.relu(x))))
    assert only("%a = relu(%x)\n%y = tanh(%a)\noutput(y=%y)", wanted).find("relu") is not None
    found = only("%y = tanh(%x)\noutput(y=%y)", wanted)
    assert found.find("relu") is None
    assert found["x"].name == "x"


def test_slots_that_may_be_empty_are_empty_or_hold_what_they_will() -> None:
    bias = "%w = constant([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) : 3x3xf32\n"
    bias += "%b = constant([1.0, 2.0, 3.0]) : 3xf32\n%y = linear(%x, %w{})\noutput(y=%y)"
    with_bias, without = bias.format(", bias=%b"), bias.format("")
    bare = pattern(lambda op, x, w: op.linear(x, w))
    free = pattern(lambda op, x, w: op.linear(x, w, ...))
    empty = pattern(lambda op, x, w: op.linear(x, w, bias=None))
    either = pattern(lambda op, x, w, b: op.linear(x, w, bias=maybe(b)))
    assert [count(with_bias, p) for p in (bare, free, empty, either)] == [0, 1, 0, 1]
    assert [count(without, p) for p in (bare, free, empty, either)] == [1, 1, 1, 1]
    assert only(with_bias, either)["b"].name == "b"
    assert only(without, either).get("b") is None


def test_lists_of_operands_with_a_rest() -> None:
    body = "%a = relu(%r)\n%y = concat(xs.0=%x, xs.1=%a, xs.2=%z, xs.3=%r) {axis = 0} : 8x3xf32\n"
    body += "output(y=%y)"
    assert only(body, pattern(lambda op, a, b, c, d: op.concat(a, b, c, d)))["c"].name == "z"
    assert count(body, pattern(lambda op, a, b: op.concat(a, b))) == 0
    wanted = pattern(lambda op, a, b: op.concat(a, op.relu(b), rest("more"), axis=0))
    assert [v.name for v in only(body, wanted).several("more")] == ["z", "r"]
    assert count(body, pattern(lambda op, a, d: op.concat(xs=[a, ..., d]))) == 1
    assert count(body, pattern(lambda op, b: op.concat(..., op.relu(b)))) == 0


def test_every_operand_of_a_list() -> None:
    body = "%a = relu(%x)\n%b = relu(%r)\n%c = {}(%z)\n%y = sum(xs.0=%a, xs.1=%b, xs.2=%c)\n"
    body += "output(y=%y)"
    wanted = pattern(lambda op, x: op.sum(every(op.relu(x), "part")))
    parts = only(body.format("relu"), wanted).rounds("part")
    assert [part["x"].name for part in parts] == ["x", "r", "z"]
    assert count(body.format("tanh"), wanted) == 0
    with pytest.raises(UsageError, match=r"x has a value in each of rounds\("):
        only(body.format("relu"), wanted)["x"]


def test_repetitions_stand_within_each_other() -> None:
    lines = [
        f"%a{i} = relu(%{f'b{i - 1}' if i else 'x'})\n%c{i} = sigmoid(%a{i})\n"
        f"%d{i} = sigmoid(%c{i})\n%b{i} = tanh(%d{i})"
        for i in range(3)
    ]
    body = "\n".join([*lines, "output(y=%b2)"])

    @pattern
    def nest(op: Ops, x: Var) -> Term:
        def block(h: Var) -> Term:
            return op.tanh(repeated(lambda k: op.sigmoid(k), op.relu(h), name="inner"))

        return repeated(block, x, name="outer")

    outer = matches(graph(body), nest)[0].rounds("outer")
    assert [r.node("relu").name for r in outer] == ["a2", "a1", "a0"]
    inner = [[s.node("sigmoid").name for s in r.rounds("inner")] for r in outer]
    assert inner == [["d2", "c2"], ["d1", "c1"], ["d0", "c0"]]


def test_lists_stand_within_repetitions() -> None:
    lines = [
        f"%a{i} = relu(%{h})\n%b{i} = relu(%{h})\n%s{i} = sum(xs.0=%a{i}, xs.1=%b{i})"
        for i, h in enumerate(("x", "s0"))
    ]
    body = "\n".join([*lines, "output(y=%s1)"])

    @pattern
    def sums(op: Ops, x: Var) -> Term:
        return repeated(lambda h: op.sum(op.relu(h), op.relu(h), rest("more")), x)

    found = matches(graph(body), sums)[0]
    assert found["x"].name == "x"
    assert [r.several("more") for r in found.rounds()] == [(), ()]


def test_operands_of_a_commutative_list_in_any_order() -> None:
    body = "%a = relu(%x)\n%b = tanh(%r)\n%y = sum(xs.0=%z, xs.1=%b, xs.2=%a)\noutput(y=%y)"
    wanted = pattern(lambda op, x, r, z: op.sum(op.relu(x), op.tanh(r), z))
    found = only(body, wanted)
    assert [found[n].name for n in "xrz"] == ["x", "r", "z"]
    loose = pattern(lambda op, r: op.sum(op.tanh(r), rest("more")))
    assert [v.name for v in only(body, loose).several("more")] == ["z", "a"]


def test_a_chain_that_repeats_is_matched_whole() -> None:
    block = pattern(
        lambda op, x, w: repeated(lambda h: op.relu(op.add(op.matmul(h, w), h)), x), name="blocks"
    )
    found = matches(graph(residual(3)), block)[0]
    assert found["x"].name == "x"
    rounds = found.rounds()
    assert [r["w"].name for r in rounds] == ["w2", "w1", "w0"]
    assert [r.node("matmul").name for r in rounds] == ["c2", "c1", "c0"]
    assert len(found.nodes) == 9


def test_a_repetition_keeps_to_its_bounds() -> None:
    def blocks(least: int, most: int) -> Pattern:
        def write(op: Ops, x: Var) -> Term:
            return repeated(lambda h: op.relu(h), x, least=least, most=most)

        return pattern(write)

    body = "%a = relu(%x)\n%b = relu(%a)\n%c = relu(%b)\noutput(y=%c)"
    assert match_at(blocks(4, 9), graph(body)["c"].node) is None
    found = match_at(blocks(1, 2), graph(body)["c"].node)
    assert found is not None
    assert found["x"].name == "a"


CHAIN = """
    %w = constant([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) : 3x3xf32
    %y = matmul(%x, %w) |> add(., %r) |> relu
    output(y=%y)
"""


def test_groups_are_matched_by_their_stages() -> None:
    wanted = pattern(
        lambda op, x, w, r: chain(op.matmul(x, w), op.add(FLOW, r), op.relu(FLOW)), name="g"
    )
    assert only(CHAIN, wanted)["r"].name == "r"
    assert count(CHAIN, pattern(lambda op, x, w: chain(op.matmul(x, w), op.relu(FLOW)))) == 0
    loose = pattern(lambda op, x, w: chain(op.matmul(x, w), ..., op.relu(FLOW)))
    assert count(CHAIN, loose) == 1
    assert count(CHAIN, pattern(lambda op, x: op.relu(x))) == 0  # a stage is no node


def test_results_of_one_op_and_patterns_of_several_results() -> None:
    body = "%v, %i = top_k(%x) {k = 3} : 2x3xf32, 2x3xi64\n%a = relu(%v)\noutput(a=%a, i=%i)"

    @pattern
    def best(op: Ops, x: Var) -> tuple[Term, ...]:
        top = op.top_k(x)
        return op.relu(top), top[1]

    found = only(body, best)
    assert [v.name for v in found.results] == ["a", "i"]
    assert count(body, pattern(lambda op, x: op.relu(op.top_k(x)))) == 0  # %i is used


def test_two_results_that_share_an_operand() -> None:
    body = "%a = relu(%x)\n%s = sigmoid(%a)\n%t = tanh(%a)\noutput(s=%s, t=%t)"
    both = pattern(lambda op, x: (op.sigmoid(a := op.relu(x)), op.tanh(a)), name="both")
    assert [v.name for v in only(body, both).results] == ["s", "t"]
    assert count(body.replace("t=%t", "t=%t, a=%a"), both) == 0


def test_ops_on_integers_are_matched_where_a_pattern_asks_for_them() -> None:
    q = "2x3x!quant.uniform<u8:f32, 0.5:3>"
    body = f"%q = quantize(%x) : {q}\n%m = relu(%q) : {q}\n%y = dequantize(%m)\noutput(y=%y)"
    assert count(body, pattern(lambda op, x: op.relu(x))) == 0
    assert count(body, pattern(lambda op, x: op.relu(x), codes=True)) == 1
    assert count(body, pattern(lambda op, x: op.quantize(x))) == 1


def test_what_a_pattern_cannot_mean_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeRuleError, match="did you mean relu"):
        pattern(lambda op, x: op.reluu(x))
    with pytest.raises(TypeRuleError, match="softmax has no attribute axes; did you mean axis"):
        pattern(lambda op, x: op.softmax(x, axes=1))
    with pytest.raises(TypeRuleError, match="add needs b"):
        pattern(lambda op, x: op.add(x))
    with pytest.raises(TypeRuleError, match="softmax: axis = 'last' is not int"):
        pattern(lambda op, x: op.softmax(x, axis="last"))
    with pytest.raises(TypeRuleError, match="where"):
        pattern(lambda op: op.relu(op.constant()))
    with pytest.raises(UsageError, match="its first result is that of an op"):
        pattern(lambda op, x: x)
    with pytest.raises(UsageError, match="two things are named x"):
        matches(graph(GELU), pattern(lambda op, x: op.erf(x).named("x")))
    with pytest.raises(UsageError, match="names nothing w; it names"):
        only(GELU, gelu)["w"]
