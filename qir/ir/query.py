"""Finding nodes and values by an expression, such as `op == "conv2d" and w.bits == 8 and uses > 1`.

    expr     = expr "or" expr | expr "and" expr | "not" expr | compare
    compare  = sum { ("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in") sum }
    sum      = parts joined by + - * / // %, or "-" part
    part     = number | "text" | true | false | (a, b) | name | part.name | part.0 | part[0] | call
    call     = len(a) any(a, expr) all(a, expr) has(a) matches("glob") matches(a, "glob")
               slot("name") min(a) max(a) sum(a) abs(a)

A name is a fact of the node (`op`, `uses`), one of its slots (`w.bits`) or an attribute (`stride`,
or `attr.stride`); `it` is the element that `any` and `all` look at. What is not there makes every
comparison false. The length and the depth of an expression are bounded, and so is the number of
elements that it looks at.
"""

from __future__ import annotations

from collections.abc import Iterator

from qir.ir.expression import Code, Names, Scope, compile_expression
from qir.ir.facts import ATTRS, KNOWN, OF_NODES, SLOTS, VALUE, truth
from qir.ir.graph import Graph
from qir.ir.node import Node, Value

_MOST_LOOKS = 10_000_000
"""So many elements may one query look at, and a hundred more for each node."""
_NODES = Names(
    OF_NODES,
    KNOWN,
    {name: f"is a fact of values, such as result.{name}" for name in set(VALUE) - OF_NODES},
)
_VALUES = Names(
    frozenset(VALUE),
    KNOWN,
    {
        name: f"is a fact of nodes; ask node.{name} of a value"
        for name in (OF_NODES | SLOTS | ATTRS) - set(VALUE)
    },
)


def query(graph: Graph, expression: str) -> list[Node]:
    """The nodes of which an expression is true, in order; ParseError where it is none."""
    code = compile_expression(expression, _NODES)
    budget = _budget(graph)
    return [node for node in graph if _holds(graph, code, node, budget)]


def query_values(graph: Graph, expression: str) -> list[Value]:
    """The values of which an expression is true: its names are facts of values, as in `bits == 8`.

    Raises ParseError where it is none.
    """
    code = compile_expression(expression, _VALUES)
    budget = _budget(graph)
    values: Iterator[Value] = (value for node in graph for value in node.results)
    return [value for value in values if _holds(graph, code, value, budget)]


def _budget(graph: Graph) -> list[int]:
    return [_MOST_LOOKS + 100 * len(graph)]


def _holds(graph: Graph, code: Code, subject: Node | Value, budget: list[int]) -> bool:
    return truth(code(Scope(subject, budget, graph.profile)))
