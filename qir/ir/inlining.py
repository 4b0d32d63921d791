"""Copies nodes between graphs: inlining a body, merging two graphs, extracting a part of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from qir.errors import GraphError
from qir.ir.dims import may_be_equal
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import TensorType

if TYPE_CHECKING:
    from qir.ir.graph import Graph


def extract(graph: Graph, into: Graph, inputs: Sequence[Value], outputs: Iterable[Value]) -> None:
    """Copies the nodes between two sets of values into an empty graph.

    Raises GraphError where an output depends on an input that is not given.
    """
    given = dict.fromkeys(inputs)
    needed: dict[Node, None] = {}
    wanted = dict.fromkeys(outputs)
    for value in (*given, *wanted):
        if value.node not in graph:
            raise GraphError(f"%{value.name} is of another graph")
    todo = [value for value in wanted if value not in given]
    while todo:
        value = todo.pop()
        if value.node in needed:
            continue
        if value.node.op == "input":
            raise GraphError(
                f"an output depends on the input %{value.name}; name it, or a value that is "
                "computed from it, as an input of the part"
            )
        needed[value.node] = None
        todo += [operand for operand in value.node.operands.values() if operand not in given]
    known: dict[Value, Value] = {}
    for value in given:
        known[value] = into.add("input", types=[value.type], name=value.name).result
        into.set_lineage(known[value], value.lineage)
    for node in graph:
        if node in needed:
            twin = _twin(into, graph, node, known, None, "", "")
            for old, new in zip(node.results, twin.results, strict=True):
                known.setdefault(old, new)
    into.add("output", {value.name: known[value] for value in wanted})


def merge(
    graph: Graph,
    other: Graph,
    given: Mapping[str, Value],
    before: Node | None,
    prefix: str,
) -> dict[str, Value]:
    """Adds a copy of another graph's nodes; returns its outputs by name.

    Raises GraphError where `given` does not name its inputs, or gives one another type.
    """
    wanted = {value.name: value for value in other.inputs}
    if wanted.keys() != given.keys():
        names = ", ".join(wanted) or "none"
        raise GraphError(f"the inputs of {other.name} are {names}; given are {', '.join(given)}")
    for name, value in given.items():
        if not _fits(value.type, wanted[name].type):
            kind = wanted[name].type
            raise GraphError(f"input {name} of {other.name} is {kind}, %{value.name} {value.type}")
        if value.node not in graph:
            raise GraphError(f"%{value.name} is of another graph")
        if before is not None and not value.node.precedes(before):
            raise GraphError(f"%{value.name} is made after {before.name}")
    source = other.copy() if other is graph else other
    known = inline(graph, source, [given[n] for n in wanted], before, prefix=prefix)
    return {name: known[value] for name, value in source.outputs.items()}


def _fits(given: TensorType, wanted: TensorType) -> bool:
    same = given.element == wanted.element and given.rank == wanted.rank
    return same and all(map(may_be_equal, given.shape, wanted.shape))


def inline(
    graph: Graph, body: Graph, given: Sequence[Value], before: Node | None, *, prefix: str = ""
) -> dict[Value, Value]:
    """Adds a copy of a body's nodes before a node, or last; returns the copy of each value.

    `given` take the place of its inputs. The body may be held by the graph or not, and is not
    changed; a name that is taken gets a number. Nodes keep their profile; those without an origin
    get the one of `before`.
    """
    known = dict(zip(body.inputs, given, strict=True))
    manner = body.profile or (before.profile if before else None) or ""
    manner = manner if manner != graph.profile else ""
    for node in body:
        if node.op not in ("input", "output"):
            twin = _twin(graph, body, node, known, before, manner, prefix)
            known |= zip(node.results, twin.results, strict=True)
    return known


def _twin(
    graph: Graph,
    body: Graph,
    node: Node,
    known: dict[Value, Value],
    before: Node | None,
    manner: str,
    prefix: str,
) -> Node:
    operands = {slot: known[value] for slot, value in node.operands.items()}
    names = [f"{prefix}{value.name}" for value in node.results]
    profile = node.profile or manner or None
    origins: tuple[Origin, ...] = node.origins or (before.origins if before else ())
    if node.stages:
        made = graph.add_chain(
            node.stages,
            operands,
            node.result.type,
            name=names[0],
            before=before,
            origins=origins,
            profile=profile,
        )
    else:
        made = graph.add(
            node.op,
            operands,
            node.attrs,
            types=[value.type for value in node.results],
            name=names,
            before=before,
            origins=origins,
            profile=profile,
            bodies={name: body.body(node, name).copy() for name in node.bodies},
            inner=node.inner,
        )
    for slot, found in node.slot_origins.items():
        graph.set_slot_origins(made, slot, found)
    for slot, scheme in node.schemes.items():
        graph.set_scheme(made, slot, scheme)
    for old, new in zip(node.results, made.results, strict=True):
        graph.set_lineage(new, old.lineage)
    return made
