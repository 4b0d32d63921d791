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
    body, operands_by_kind = graph.body(node), {p: node.variadic(p) for p in ("vs", "ss", "xs")}
    carried = len(operands_by_kind["vs"])
    needed = _needed(body, [bool(value.uses) for value in node.results], carried)
    if all(needed):
        return False
    trimmed = body.copy()
    body_inputs, body_outputs = trimmed.inputs, dict(trimmed.outputs)
    # A smaller body is built from a copy: the node's types and its body must change together.
    trimmed.remove(trimmed.output)
    trimmed.add(
        "output",
        {s: v for (s, v), is_needed in zip(body_outputs.items(), needed, strict=True) if is_needed},
    )
    trimmed.prune()
    inputs_needed = [
        needed[i] if i < carried else bool(value.uses) for i, value in enumerate(body_inputs)
    ]
    parts = range(carried, carried + len(operands_by_kind["ss"]))
    if not any(inputs_needed[i] for i in parts):
        inputs_needed[carried] = True  # one sequence says how many rounds there are
    for value, is_needed in zip(body_inputs, inputs_needed, strict=True):
        if not is_needed:
            trimmed.remove(value.node)
    operands = dict[str, Value]()
    at = 0
    for prefix, values in operands_by_kind.items():
        left = [v for v, is_needed in zip(values, inputs_needed[at:], strict=False) if is_needed]
        operands |= {f"{prefix}.{i}": v for i, v in enumerate(left)}
        at += len(values)
    attrs: dict[str, Attr] = dict(node.attrs)
    attrs |= _for_kept(
        node.attrs,
        ("axes", "reverse"),
        inputs_needed[carried : carried + len(operands_by_kind["ss"])],
    )
    attrs |= _for_kept(node.attrs, ("out_axes", "out_reverse"), needed[carried:])
    _replace_scan(graph, node, operands, attrs, trimmed, needed)
    return True


def _needed(body: Graph, read: Sequence[bool], carried: int) -> list[bool]:
    """Returns which results of a body are needed: those that are read, and states that others hang
    on."""
    needed, ends = list(read), list(body.outputs.values())
    while True:
        above = _producers_of(end for end, is_needed in zip(ends, needed, strict=True) if is_needed)
        grown = [need or (i < carried and body.inputs[i] in above) for i, need in enumerate(needed)]
        # A state may need a second one that needs a third, so this repeats until nothing is added.
        if grown == needed:
            return needed
        needed = grown


def _producers_of(values: Iterable[Value]) -> set[Value]:
    """Values, and all that they are computed from."""
    found: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += value.node.operands.values()
    return found


def _for_kept(
    attrs: Mapping[str, Attr], names: Iterable[str], needed: Sequence[bool]
) -> dict[str, Attr]:
    """What is said of each sequence, of those that are kept."""
    out: dict[str, Attr] = {}
    for name in names:
        value = attrs[name]
        if isinstance(value, tuple) and value:
            out[name] = tuple(v for v, is_needed in zip(value, needed, strict=True) if is_needed)
    return out


def _replace_scan(
    graph: Graph,
    node: Node,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    body: Graph,
    needed: Sequence[bool],
) -> None:
    """Puts the smaller scan in the place of one, under the names of what it still gives."""
    remaining = [value for value, is_needed in zip(node.results, needed, strict=True) if is_needed]
    new_scan = graph.add(
        "scan",
        dict(operands),
        dict(attrs),
        types=[value.type for value in remaining],
        before=node,
        origins=node.origins,
        profile=node.profile,
        bodies={"body": body},
    )
    # Names are taken over after the old node is gone, as a graph has each name once.
    named = [(value.name, value.lineage) for value in remaining]
    for old, new in zip(remaining, new_scan.results, strict=True):
        graph.replace(old, new)
    graph.remove(node)
    for (name, lineage), new in zip(named, new_scan.results, strict=True):
        graph.rename(new, name)
        graph.set_lineage(new, lineage)
