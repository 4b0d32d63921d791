"""Patterns as text: what is read matches as the same pattern written in Python does."""

from __future__ import annotations

import pytest

from qir.errors import ParseError
from qir.rewrite.patterns.matching import matches
from qir.rewrite.patterns.parser import parse_pattern
from qir.rewrite.patterns.pattern import Pattern
from tests.rewrite import test_pattern as written
from tests.rewrite.graphs import GELU, LAYER_NORM, SOFTMAX, TANH_GELU, graph, residual
from tests.rewrite.test_prefilter import PATTERNS

LINEAR = """
    %w = constant([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) : 3x3xf32
    %b = constant([1.0, 2.0, 3.0]) : 3xf32
    %y = linear(%x, %w, bias=%b)
    output(y=%y)
"""
LIST = """
    %a = relu(%r)
    %y = concat(xs.0=%x, xs.1=%a, xs.2=%z) {axis = 0} : 6x3xf32
    output(y=%y)
"""
BEST = "%v, %i = top_k(%x) {k = 3} : 2x3xf32, 2x3xi64\n%a = relu(%v)\noutput(a=%a, i=%i)"


@pytest.mark.parametrize(
    ("text", "body", "count"),
    [
        ("mul(mul(%x, 0.5), add(erf(div(%x, near 1.414)), 1.0))", GELU, 1),
        ("mul(mul(%x, 0.5), add(erf(div(%x, near 1.5 within 0.01)), 1.0))", GELU, 0),
        ("erf(%x) ", GELU, 1),
        ("erf(%x) where (result.uses > 1)", GELU, 0),
        ("relu|erf(%x)", GELU, 1),
        ("add(1.0, erf(%x)) ordered", GELU, 0),
        ("mul(%x, %h) ordered where (has(a))", GELU, 2),
        ("mul(mul(%x, 0.5), add(relu?(erf(%d)), 1.0))", GELU, 1),
        ("tanh(mul(0.7978846 or near 0.8, add(%x, mul(0.044715, %c))))", TANH_GELU, 1),
        ("linear(%x, %w)", LINEAR, 0),
        ("linear(%x, %w, ...)", LINEAR, 1),
        ("linear(%x, %w, bias=none)", LINEAR, 0),
        ("linear(%x, %w, bias=maybe %b)", LINEAR, 1),
        ("concat(%a, relu(%b), %c)", LIST, 1),
        ("concat(%a, relu(%b), ... more) {axis = 0 or 1}", LIST, 1),
        ("concat(xs=[%a, ..., %c]) {axis = 1}", LIST, 0),
        ("concat(xs=every %a as part)", LIST, 1),
        ("repeat 2.. (%h: relu(add(matmul(%h, %w), %h))) from %x", residual(3), 2),
        ("repeat 1..1 as one (%h: relu(add(matmul(%h, %w), %h))) from %x", residual(3), 3),
        ("matmul(%x, %w) |> add(., %r) |> relu", written.CHAIN, 1),
        ("matmul(%x, %w) |> ... |> relu(.)", written.CHAIN, 1),
        ("pattern p { return relu(%x) }", residual(1), 1),
        ("pattern p { %w where (rank == 3) return matmul(%x, %w) }", residual(1), 0),
        ("pattern p { %t = top_k(%x) return relu(%t), %t[1] }", BEST, 1),
        ("pattern p {\n  # of codes too\n  %t = relu(%x)\n  return tanh(%t)\n}", BEST, 0),
    ],
)
def test_a_text_matches_as_it_says(text: str, body: str, count: int) -> None:
    wanted = parse_pattern(text)
    assert len(matches(graph(body), wanted)) == count
    again = parse_pattern(str(wanted))
    assert str(again) == str(wanted)
    assert len(matches(graph(body), again)) == count


@pytest.mark.parametrize(
    ("wanted", "body"),
    [
        (written.gelu, GELU),
        (written.tanh_gelu, TANH_GELU),
        (written.layer_norm, LAYER_NORM),
        (written.softmax, SOFTMAX),
        *((wanted, residual(2)) for wanted in PATTERNS),
    ],
    ids=str,
)
def test_a_pattern_of_python_reads_back_from_its_text(wanted: Pattern, body: str) -> None:
    again = parse_pattern(str(wanted))
    assert str(again) == str(wanted)
    found, other = (matches(graph(body), p) for p in (wanted, again))
    assert [[n.name for n in m.nodes] for m in found] == [[n.name for n in m.nodes] for m in other]


def test_the_printed_form() -> None:
    assert str(written.layer_norm) == (
        "pattern layer-norm {\n"
        "  %mean = reduce_mean(x=%x) {axes = (-1,)}\n"
        "  %sub = sub(a=%x, b=%mean)\n"
        "  %var = reduce_mean(x=(pow(a=%sub, b=2.0) or mul(a=%sub, b=%sub) or square(x=%sub)))\n"
        "  %eps where (constant)\n"
        "  return add(a=mul(a=div(a=%sub, b=sqrt(x=add(a=%var, b=%eps))), b=%gamma), b=%beta)\n"
        "}\n"
    )
    asked = written.gelu.check("x is small", lambda match: True)
    assert "  # and: x is small\n" in str(asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reluu(%x)", "did you mean relu"),
        ("relu(%x", "',' should stand here"),
        ("relu(%x) tanh", "is too much after the pattern"),
        ("softmax(%x) {axs = 1}", "did you mean axis"),
        ("softmax(%x) {axis = 1.5}", "is not int"),
        ("add(%x)", "add needs b"),
        ("relu(%x) where (rnak == 2)", "no fact, slot or attribute rnak"),
        ("relu(%x) where (rank == 2", "bracket is not closed"),
        ("%x", "its first result is that of an op"),
        ("pattern p { %a = relu(%x) %a = relu(%x) return %a }", "%a is made twice"),
        ("pattern p { %a = relu(%b) %b = tanh(%x) return %a }", "%b is used before this line"),
        ("repeat 3..2 (%h: relu(%h)) from %x", "3 to 2 times"),
        ("relu(%x) |> tanh(.) |> add(., .)", "FLOW stands once"),
        ("relu?(%x)[1]", "too much"),
        ("constant()", "a pattern names no constant"),
        ("relu(" * 400, "terms within terms"),
        ("", "a name should stand here"),
    ],
)
def test_what_is_no_pattern_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=r"line \d+, column \d+") as error:
        matches(graph(GELU), parse_pattern(text))
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[" * 5000, "concat(" + "[" * 5000, "relu(" * 5000, "(" * 5000])
def test_a_pattern_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_pattern(text)
