"""Putting what a body holds in the place of the node that holds it."""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin


def inline(
    graph: Graph, body: Graph, given: Sequence[Value], before: Node, *, prefix: str = ""
) -> dict[Value, Value]:
    """Adds a copy of a body's nodes before a node; gives what stands for each of its values.

    `given` stand for its inputs. The body may be held by the graph or not, and stays as it is; a
    name that is taken gets a number. Nodes follow the profile that they did; those that know no
    origin get the one of `before`.
    """
    known = dict(zip(body.inputs, given, strict=True))
    manner = body.profile or before.profile or ""
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
    before: Node,
    manner: str,
    prefix: str,
) -> Node:
    operands = {slot: known[value] for slot, value in node.operands.items()}
    names = [f"{prefix}{value.name}" for value in node.results]
    profile = node.profile or manner or None
    origins: tuple[Origin, ...] = node.origins or before.origins
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
