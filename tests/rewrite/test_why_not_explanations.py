"""Why a pattern does not match: the first condition that failed, and where."""

from __future__ import annotations

import pytest

from qir.rewrite.patterns.mismatch import why_not
from qir.rewrite.patterns.pattern import FLOW, Pattern, chain, pattern
from tests.rewrite.graphs import GELU, LAYER_NORM, graph, residual
from tests.rewrite.test_pattern import CHAIN, gelu, layer_norm


def said(text: str, node: str, wanted: Pattern) -> str:
    return str(why_not(wanted, graph(text)[node].node))


USED = GELU.replace("output(y=%y)", "%o = relu(%e)\noutput(y=%y, o=%o)")
SOFTMAX = pattern(lambda op, x: op.softmax(x, axis=-1), name="last")
LINEAR = pattern(lambda op, x, w: op.linear(x, w), name="product")
BIASED = """
    %w = constant([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) : 3x3xf32
    %b = constant([1.0, 2.0, 3.0]) : 3xf32
    %y = linear(%x, %w, bias=%b)
    output(y=%y)
"""
CODES = """
    %q = quantize(%x) : 2x3x!quant.uniform<u8:f32, 0.5:3>
    %y = relu(%q) : 2x3x!quant.uniform<u8:f32, 0.5:3>
    output(y=%y)
"""
TWO = pattern(lambda op, x, w: op.relu(op.add(op.matmul(x, w), x)), name="block")


@pytest.mark.parametrize(
    ("text", "node", "wanted", "answer"),
    [
        (GELU, "y", gelu, "gelu matches at y"),
        (GELU, "e", gelu, "gelu matches at y"),
        (USED, "e", gelu, "gelu does not match at e: %e is also used by o (laid on at y)"),
        (USED, "o", gelu, "it is relu, which the pattern does not have; it ends in mul"),
        (GELU.replace("1.4142135", "1.5"), "y", gelu, " at root: is not near 1.414"),
        (GELU.replace("erf", "tanh"), "y", gelu, "at e: is tanh, not erf"),
        (GELU.replace("erf", "tanh"), "d", gelu, "at e: is tanh, not erf"),
        (GELU.replace("mul(%x", "mul(%r"), "y", gelu, "at x: %x is not %r, which x is"),
        (LAYER_NORM.replace("(-1)", "(1)"), "y", layer_norm, "at mean: axes is (1,), not (-1,)"),
        ("%y = softmax(%x) {axis = 0}\noutput(y=%y)", "y", SOFTMAX, "axis is 0, not -1"),
        (BIASED, "y", LINEAR, "at y: has bias, of which the pattern says nothing"),
        (CODES, "y", pattern(lambda op, x: op.relu(x)), "is quantized"),
        (residual(1).replace("%x)", "%r)"), "h0", TWO, "at r: %r is not %x, which x is"),
        (residual(2), "h0", TWO, "block matches at h0"),
        (
            BIASED,
            "y",
            pattern(lambda op, x, w: op.linear(x, w.where("rank == 3"), ...)),
            "at w: w: %w, not so: rank == 3",
        ),
        (GELU, "y", gelu.check("x is small", lambda match: False), "at y: not so: x is small"),
        (
            CHAIN,
            "y",
            pattern(lambda op, x, w: chain(op.matmul(x, w), op.relu(FLOW)), name="c"),
            "stage 1 is add, not relu",
        ),
        ("%y = erf(%x)\noutput(y=%y)", "y", gelu, "it is erf, but leads to no mul as the pattern"),
    ],
)
def test_the_first_condition_that_failed_is_named(
    text: str, node: str, wanted: Pattern, answer: str
) -> None:
    assert answer in said(text, node, wanted)


def test_plans_and_profiles_are_told_too() -> None:
    work = graph(GELU)
    work.set_profile(work["e"].node, "ort")
    assert "at e: follows another profile than y" in str(why_not(gelu, work["y"].node))


def test_the_answer_has_its_parts() -> None:
    work = graph(USED)
    answer = why_not(gelu, work["d"].node)
    assert answer.match is None
    assert answer.root is work["y"].node
    assert answer.at is work["e"].node
    assert answer.met > 4
