"""Replacements that are written as functions of the pattern's variables."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.errors import PassError, TypeRuleError, UsageError
from qir.ir.node import Value
from qir.rewrite import Match, Ops, Rewrite, Term, Var, maybe, near, pattern, replacement
from qir.rewrite.patterns.replacement import Adder
from qir.rewrite.patterns.rewriting import rewrite

TEXT = """\
graph main as native {
  %x = input() : 2x3xf32
  %b = input() : 3x4xf32
  %root = constant([1.4142135]) : f32
  %half = constant([0.5]) : f32
  %one = constant([1.0]) : f32
  %d = div(%x, %root) : 2x3xf32
  %e = erf(%d) : 2x3xf32
  %s = add(%one, %e) : 2x3xf32
  %h = mul(%x, %half) : 2x3xf32
  %g = mul(%h, %s) : 2x3xf32
  %p = matmul(%g, %b) : 2x4xf32
  %y = softmax(%p) {axis = -1} : 2x4xf32
  output(y=%y)
}
"""


@pattern
def gelu(op: Ops, x: Var) -> Term:
    return op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, near(2**0.5))), 1.0))


def applied(graph: qir.Graph, one: Rewrite) -> qir.Graph:
    assert rewrite(graph, [one], qir.Ledger(), "test") == 1
    assert qir.verify(graph) == []
    return graph


def test_a_variable_of_the_pattern_is_a_parameter() -> None:
    @replacement
    def whole(op: Adder, x: Value) -> object:
        return op.gelu(x)

    graph = applied(qir.parse(TEXT), Rewrite(gelu, whole))
    assert graph["g"].node.op == "gelu"
    assert graph["g"].node.operands["x"] is graph["x"]


def test_numbers_and_attributes_are_written_as_in_a_pattern() -> None:
    @replacement
    def scaled(op: Adder, x: Value, match: Match) -> object:
        return op.softmax(op.mul(op.mul(x, 2.0), 0.5), axis=match.node("softmax").attr("axis"))

    found = pattern(lambda op, x: op.softmax(x.where("node.op == 'matmul'")), name="softmax")
    graph = applied(qir.parse(TEXT), Rewrite(found, scaled))
    half = graph["y"].node.operands["x"].node
    assert half.operands["b"].constant is not None
    assert half.operands["b"].constant.data == np.float32(0.5)
    assert graph["y"].node.attr("axis") == -1
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.normal(size=(2, 3)).astype(np.float32),
        "b": rng.normal(size=(3, 4)).astype(np.float32),
    }
    assert np.array_equal(qir.run(graph, inputs)["y"], qir.run(qir.parse(TEXT), inputs)["y"])


@pytest.mark.parametrize("bias", [True, False])
def test_an_optional_variable_may_be_none(bias: bool) -> None:
    more = ("  %c = input() : 4xf32\n", ", bias=%c") if bias else ("", "")
    graph = qir.parse(
        "graph main as native {\n  %x = input() : 2x3xf32\n  %w = input() : 4x3xf32\n"
        f"{more[0]}  %l = linear(%x, %w{more[1]}) : 2x4xf32\n  %y = relu(%l) : 2x4xf32\n"
        "  output(y=%y)\n}\n"
    )

    @pattern
    def layer(op: Ops, x: Var, w: Var, b: Var) -> Term:
        return op.relu(op.linear(x, w, bias=maybe(b)))

    @replacement
    def negated(op: Adder, x: Value, w: Value, b: Value | None) -> object:
        return op.clip(op.linear(x, w, bias=b), min=0.0)

    operands = applied(graph, Rewrite(layer, negated))["y"].node.operands
    assert ("bias" in operands["x"].node.operands) is bias


def test_a_list_fills_a_variadic_slot() -> None:
    graph = qir.parse(
        "graph main as native {\n  %x = input() : 2xf32\n  %m = mul(%x, %x) : 2xf32\n"
        "  %y = relu(%m) : 2xf32\n  output(y=%y)\n}\n"
    )

    @replacement
    def summed(op: Adder, m: Value) -> object:
        return op.sum([m, m])

    made = applied(graph, Rewrite(pattern(lambda op, m: op.relu(m), name="relu"), summed))
    assert qir.run(made, {"x": np.array([1, 2], np.float32)})["y"].tolist() == [2.0, 8.0]


def test_an_array_is_a_constant_of_its_own_type() -> None:
    @replacement
    def turned(op: Adder, m: Value) -> object:
        return op.reshape(m, np.array([1, -1]))

    graph = qir.parse(
        "graph main as native {\n  %x = input() : 2xf32\n  %m = neg(%x) : 2xf32\n"
        "  %y = relu(%m) : 2xf32\n  output(y=%y)\n}\n"
    )
    found = pattern(lambda op, m: op.relu(m), name="relu")
    with pytest.raises(PassError, match="makes 1x2xf32 of %y"):
        rewrite(graph, [Rewrite(found, turned)], qir.Ledger(), "test")
    made = Adder(graph).reshape(graph["m"], np.array([1, -1]))
    assert str(made.type) == "1x2xf32"
    assert made.node.operands["shape"].constant.data.tolist() == [1, -1]


def test_what_is_no_value_is_no_result() -> None:
    other = replacement(lambda op, x: 5)
    with pytest.raises(PassError, match="returned 5; return a value, a list of values, or None"):
        rewrite(qir.parse(TEXT), [Rewrite(gelu, other)], qir.Ledger(), "test")


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="its first parameter adds ops"):
        replacement(lambda: None)
    other = replacement(lambda op, z: op.gelu(z))
    with pytest.raises(PassError, match="pattern gelu names nothing z"):
        rewrite(qir.parse(TEXT), [Rewrite(gelu, other)], qir.Ledger(), "test")
    graph = qir.parse(TEXT)
    op = Adder(graph)
    with pytest.raises(TypeRuleError, match="relu takes 1 operands at most"):
        op.relu(graph["x"], graph["x"])
    with pytest.raises(TypeRuleError, match="no operand of a replacement"):
        op.relu(1.0)
    with pytest.raises(TypeRuleError, match="slot x is bound twice"):
        op.relu(graph["x"], x=graph["x"])
