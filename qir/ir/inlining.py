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
    input_set = dict.fromkeys(inputs)
    needed: dict[Node, None] = {}
    output_set = dict.fromkeys(outputs)
    for value in (*input_set, *output_set):
        if value.node not in graph:
            raise GraphError(f"%{value.name} is of another graph")
    pending = [value for value in output_set if value not in input_set]
    while pending:
        value = pending.pop()
        if value.node in needed:
            continue
        if value.node.op == "input":
            raise GraphError(
                f"an output depends on the input %{value.name}; name it, or a value that is "
                "computed from it, as an input of the part"
            )
        needed[value.node] = None
        pending += [operand for operand in value.node.operands.values() if operand not in input_set]
    copies: dict[Value, Value] = {}
    for value in input_set:
        copies[value] = into.add("input", types=[value.type], name=value.name).result
        into.set_lineage(copies[value], value.lineage)
    for node in graph:
        if node in needed:
            node_copy = _copy_node(into, graph, node, copies, None, "", "")
            for old, new in zip(node.results, node_copy.results, strict=True):
                # A value that was asked for as an input keeps its input node, even if its producer
                # was copied for another of its results.
                copies.setdefault(old, new)
    into.add("output", {value.name: copies[value] for value in output_set})


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
    inputs_by_name = {value.name: value for value in other.inputs}
    if inputs_by_name.keys() != given.keys():
        names = ", ".join(inputs_by_name) or "none"
        raise GraphError(f"the inputs of {other.name} are {names}; given are {', '.join(given)}")
    for name, value in given.items():
        if not _fits(value.type, inputs_by_name[name].type):
            kind = inputs_by_name[name].type
            raise GraphError(f"input {name} of {other.name} is {kind}, %{value.name} {value.type}")
        if value.node not in graph:
            raise GraphError(f"%{value.name} is of another graph")
        if before is not None and not value.node.precedes(before):
            raise GraphError(f"%{value.name} is made after {before.name}")
    # A graph merged into itself would grow while its nodes are walked.
    source = other.copy() if other is graph else other
    copies = inline(graph, source, [given[n] for n in inputs_by_name], before, prefix=prefix)
    return {name: copies[value] for name, value in source.outputs.items()}


def _fits(actual: TensorType, expected: TensorType) -> bool:
    has_same_elements = actual.element == expected.element and actual.rank == expected.rank
    return has_same_elements and all(map(may_be_equal, actual.shape, expected.shape))


def inline(
    graph: Graph, body: Graph, given: Sequence[Value], before: Node | None, *, prefix: str = ""
) -> dict[Value, Value]:
    """Adds a copy of a body's nodes before a node, or last; returns the copy of each value.

    `given` take the place of its inputs. The body may be held by the graph or not, and is not
    changed; a name that is taken gets a number. Nodes keep their profile; those without an origin
    get the one of `before`.
    """
    for carried in body.own_profiles.values():
        graph.carry_profile(carried)
    copies = dict(zip(body.inputs, given, strict=True))
    profile = body.profile or (before.profile if before else None) or ""
    # Nodes that the graph's own profile covers name none, so that a change of it reaches them.
    profile = profile if profile != graph.profile else ""
    for node in body:
        if node.op not in ("input", "output"):
            node_copy = _copy_node(graph, body, node, copies, before, profile, prefix)
            copies |= zip(node.results, node_copy.results, strict=True)
    return copies


def _copy_node(
    graph: Graph,
    body: Graph,
    node: Node,
    copies: dict[Value, Value],
    before: Node | None,
    outer_profile: str,
    prefix: str,
) -> Node:
    operands = {slot: copies[value] for slot, value in node.operands.items()}
    names = [f"{prefix}{value.name}" for value in node.results]
    profile = node.profile or outer_profile or None
    origins: tuple[Origin, ...] = node.origins or (before.origins if before else ())
    if node.stages:
        node_copy = graph.add_chain(
            node.stages,
            operands,
            node.result.type,
            name=names[0],
            before=before,
            origins=origins,
            profile=profile,
        )
    else:
        node_copy = graph.add(
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
    for slot, slot_origins in node.slot_origins.items():
        graph.set_slot_origins(node_copy, slot, slot_origins)
    for slot, scheme in node.schemes.items():
        graph.set_scheme(node_copy, slot, scheme)
    for old, new in zip(node.results, node_copy.results, strict=True):
        graph.set_lineage(new, old.lineage)
    return node_copy
