"""Finds nodes and values by an expression, such as `op == "conv2d" and w.bits == 8 and uses > 1`.

    expr     = expr "or" expr | expr "and" expr | "not" expr | compare
    compare  = sum { ("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in") sum }
    sum      = parts joined by + - * / // %, or "-" part
    part     = number | "text" | true | false | (a, b) | name | part.name | part.0 | part[0] | call
    call     = len(a) any(a, expr) all(a, expr) has(a) matches("glob") matches(a, "glob")
               slot("name") min(a) max(a) sum(a) abs(a)

A name is a fact of the node (`op`, `uses`), one of its slots (`w.bits`) or an attribute (`stride`,
or `attr.stride`); `it` is the element that `any` and `all` look at. `x`, `w` and `bias` are the
data, the weights and the bias also where an op names these slots otherwise. What is not there makes
every comparison false; a list compared with a number holds where each of its elements does. The
length and the depth of an expression are bounded, and so is the number of elements that it looks
at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from qir.arguments import checked
from qir.ir.node import GraphLike, Node, Value
from qir.query.expression import Effort, Names, Scope, compile_expression
from qir.query.facts import ATTRS, KNOWN, OF_NODES, SLOTS, VALUE, truth

_MAX_EVALUATIONS = 5_000_000
"""So many elements may one query look at, and a hundred more for each node."""
_PLAIN = frozenset({"name", "users", "uses", "axis", "max", "min"})
"""Facts of values that mean something of a node too: its own facts, and common attributes."""
_NODES = Names(
    OF_NODES,
    KNOWN,
    {
        name: f"is a fact of values, such as result.{name}"
        + (f"; attr.{name} is an attribute" if name in ATTRS else "")
        + (f"; {name}.NAME, has({name}) ask of a slot" if name in SLOTS else "")
        for name in set(VALUE) - _PLAIN
    },
)
_VALUES = Names(
    frozenset(VALUE),
    KNOWN,
    {
        name: f"is a fact of nodes; ask node.{name} of a value"
        for name in (OF_NODES | SLOTS | ATTRS) - set(VALUE)
    },
)


class QueryMatch(NamedTuple):
    """A node that was found, and the bodies that it is in, from the outermost."""

    node: Node
    path: tuple[str, ...] = ()


@checked
def query(graph: GraphLike, expression: str) -> list[Node]:
    """Returns the nodes, of bodies too, of which an expression is true; raises ParseError where it
    is none."""
    return [match.node for match in search(graph, expression)]


@checked
def search(graph: GraphLike, expression: str) -> list[QueryMatch]:
    """Returns nodes as `query` does, each with its path: `loop/body` for a node in that body."""
    code = compile_expression(expression, _NODES)
    walk = list(_walk(graph, (), graph.profile))
    effort = Effort(_MAX_EVALUATIONS + 100 * len(walk))
    return [m for m, profile in walk if truth(code(Scope(m.node, effort, profile)))]


@checked
def query_values(graph: GraphLike, expression: str) -> list[Value]:
    """Returns the values of which an expression is true: its names are facts of values, as in `bits
    == 8`.

    Raises ParseError where it is none.
    """
    code = compile_expression(expression, _VALUES)
    walk = list(_walk(graph, (), graph.profile))
    effort = Effort(_MAX_EVALUATIONS + 100 * len(walk))
    return [
        value
        for match, profile in walk
        for value in match.node.results
        if truth(code(Scope(value, effort, profile)))
    ]


def ask_node(expression: str) -> Callable[[Node], bool]:
    """Returns an expression as a question to one node; raises ParseError where it is none."""
    code = compile_expression(expression, _NODES)
    return lambda node: truth(code(Scope(node, Effort(_MAX_EVALUATIONS))))


def ask_value(expression: str) -> Callable[[Value], bool]:
    """Returns an expression as a question to one value; raises ParseError where it is none."""
    code = compile_expression(expression, _VALUES)
    return lambda value: truth(code(Scope(value, Effort(_MAX_EVALUATIONS))))


def _walk(graph: GraphLike, path: tuple[str, ...], outer: str) -> Iterator[tuple[QueryMatch, str]]:
    """Yields every node with its path and the profile that holds where it names none."""
    profile = graph.profile or outer
    for node in graph:
        yield QueryMatch(node, path), profile
        for name, body in node.bodies.items():
            yield from _walk(body, (*path, f"{node.name}/{name}"), node.profile or profile)
