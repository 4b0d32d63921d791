"""Whether two graphs say the same, part by part: independent of how QIR prints them."""

from __future__ import annotations

from qir.ir.attrs import Attr, same
from qir.ir.graph import Graph
from qir.ir.node import GraphLike, Node, Stage
from qir.ir.types import Array


def difference(a: Graph, b: Graph, *, history: bool = False) -> str:
    """The first thing that differs, or nothing; `history` compares origins and lineage too."""
    return _nodes(a, b, history=history)


def _nodes(a: GraphLike, b: GraphLike, *, history: bool) -> str:
    nodes, others = list(a), list(b)
    if (a.name, a.profile, len(nodes)) != (b.name, b.profile, len(others)):
        return f"{a.name} as {a.profile} has {len(nodes)} nodes, {b.name} as {b.profile} others"
    for one, other in zip(nodes, others, strict=True):
        found = _node(one, other) or (_history(one, other) if history else "")
        if found:
            return f"{one.name}: {found}: {one!r} and {other!r}"
    return ""


def _node(a: Node, b: Node) -> str:
    if a.op != b.op or a.profile != b.profile:
        return "op or profile"
    if [v.name for v in a.results] != [v.name for v in b.results]:
        return "names of results"
    if [v.type for v in a.results] != [v.type for v in b.results]:
        return "types"
    if {s: v.name for s, v in a.operands.items()} != {s: v.name for s, v in b.operands.items()}:
        return "operands"
    if a.op in ("output", "foreign") and list(a.operands) != list(b.operands):
        return "order of operands"
    if not _attrs(dict(a.attrs), dict(b.attrs)):
        return "attributes"
    if a.schemes != b.schemes:
        return "schemes"
    if len(a.stages) != len(b.stages) or not all(map(_stage, a.stages, b.stages)):
        return "stages"
    if a.inner != b.inner:
        return "inner slots"
    if list(a.bodies) != list(b.bodies):
        return "bodies"
    for one, other in zip(a.bodies.values(), b.bodies.values(), strict=True):
        if found := _nodes(one, other, history=False):
            return found
    return ""


def _stage(a: Stage, b: Stage) -> bool:
    plain = (a.op, sorted(a.slots), a.flow, a.type) == (b.op, sorted(b.slots), b.flow, b.type)
    return plain and _attrs(dict(a.attrs), dict(b.attrs))


def _attrs(a: dict[str, Attr], b: dict[str, Attr]) -> bool:
    return a.keys() == b.keys() and all(_attr(a[k], b[k]) for k in a)


def _attr(a: Attr, b: Attr) -> bool:
    if isinstance(a, Array) and isinstance(b, Array):
        if a.data.dtype.kind == "O":
            return [_bytes(x) for x in a.data.flat] == [_bytes(x) for x in b.data.flat]
        return a.type == b.type and a.data.tobytes() == b.data.tobytes()
    return same(a, b)


def _bytes(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode(errors="surrogatepass")


def _history(a: Node, b: Node) -> str:
    if a.origins != b.origins:
        return "origins"
    if a.slot_origins != b.slot_origins:
        return "origins of slots"
    if [v.lineage for v in a.results] != [v.lineage for v in b.results]:
        return "lineage"
    if [(s.name, s.origins) for s in a.stages] != [(s.name, s.origins) for s in b.stages]:
        return "names or origins of stages"
    return ""


def picture(graph: Graph) -> tuple[object, ...]:
    """All that edits may change of a graph: equal pictures, equal graphs, object by object."""
    return (
        graph.name,
        graph.profile,
        graph.version,
        [(name, id(value)) for name, value in graph.values.items()],
        sorted((id(a), id(b), slot) for a, b, slot in graph.nx.edges(keys=True)),
        [_picture(node) for node in graph],
        [id(node) for node in reversed(graph)],
        [picture(body) for _, body in list(graph.walk())[:-1]],
    )


def _picture(node: Node) -> tuple[object, ...]:
    attrs = [(name, type(value), repr(value)) for name, value in node.attrs.items()]
    results = [
        (id(v), v.index, v.name, v.type, v.lineage, [(id(u.node), u.slot) for u in v.uses])
        for v in node.results
    ]
    tables = [list(t.items()) for t in (node.slot_origins, node.schemes, node.inner)]
    bodies = [(name, id(body)) for name, body in node.bodies.items()]
    operands = [(slot, id(value)) for slot, value in node.operands.items()]
    whose = (id(node), node.op, node.profile, node.origins, node.stages)
    return (*whose, attrs, operands, results, tables, bodies)
