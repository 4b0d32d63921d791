"""Removes unused results, carried values and sequences of scans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value


def trim(graph: Graph, nodes: Iterable[Node]) -> int:
    """Leaves out of these scans what reaches no result that is read; says how many it changed."""
    return sum(_trim(graph, node) for node in nodes if node.op == "scan" and node.used)


def _trim(graph: Graph, node: Node) -> bool:
    body, given = graph.body(node), {p: node.variadic(p) for p in ("vs", "ss", "xs")}
    carried = len(given["vs"])
    kept = _needed(body, [bool(value.uses) for value in node.results], carried)
    if all(kept):
        return False
    made = body.copy()
    takes, ends = made.inputs, dict(made.outputs)
    made.remove(made.output)
    made.add("output", {s: v for (s, v), keep in zip(ends.items(), kept, strict=True) if keep})
    made.prune()
    cells = [kept[i] if i < carried else bool(value.uses) for i, value in enumerate(takes)]
    parts = range(carried, carried + len(given["ss"]))
    if not any(cells[i] for i in parts):
        cells[carried] = True  # one sequence says how many rounds there are
    for value, keep in zip(takes, cells, strict=True):
        if not keep:
            made.remove(value.node)
    operands = dict[str, Value]()
    at = 0
    for prefix, values in given.items():
        left = [v for v, keep in zip(values, cells[at:], strict=False) if keep]
        operands |= {f"{prefix}.{i}": v for i, v in enumerate(left)}
        at += len(values)
    attrs: dict[str, Attr] = dict(node.attrs)
    attrs |= _along(node.attrs, ("axes", "reverse"), cells[carried : carried + len(given["ss"])])
    attrs |= _along(node.attrs, ("out_axes", "out_reverse"), kept[carried:])
    _put(graph, node, operands, attrs, made, kept)
    return True


def _needed(body: Graph, read: Sequence[bool], carried: int) -> list[bool]:
    """Returns which results of a body are needed: those that are read, and states that others hang
    on."""
    kept, ends = list(read), list(body.outputs.values())
    while True:
        above = _above(end for end, keep in zip(ends, kept, strict=True) if keep)
        more = [k or (i < carried and body.inputs[i] in above) for i, k in enumerate(kept)]
        if more == kept:
            return kept
        kept = more


def _above(values: Iterable[Value]) -> set[Value]:
    """Values, and all that they are computed from."""
    found: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += value.node.operands.values()
    return found


def _along(
    attrs: Mapping[str, Attr], names: Iterable[str], kept: Sequence[bool]
) -> dict[str, Attr]:
    """What is said of each sequence, of those that are kept."""
    out: dict[str, Attr] = {}
    for name in names:
        value = attrs[name]
        if isinstance(value, tuple) and value:
            out[name] = tuple(v for v, keep in zip(value, kept, strict=True) if keep)
    return out


def _put(
    graph: Graph,
    node: Node,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    body: Graph,
    kept: Sequence[bool],
) -> None:
    """Puts the smaller scan in the place of one, under the names of what it still gives."""
    left = [value for value, keep in zip(node.results, kept, strict=True) if keep]
    made = graph.add(
        "scan",
        dict(operands),
        dict(attrs),
        types=[value.type for value in left],
        before=node,
        origins=node.origins,
        profile=node.profile,
        bodies={"body": body},
    )
    named = [(value.name, value.lineage) for value in left]
    for old, new in zip(left, made.results, strict=True):
        graph.replace(old, new)
    graph.remove(node)
    for (name, lineage), new in zip(named, made.results, strict=True):
        graph.rename(new, name)
        graph.set_lineage(new, lineage)
