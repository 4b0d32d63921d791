"""Names of tensors in foreign operators: at their slots, and in the subgraphs of an attribute.

A subgraph is the message of its own file format, of which only the fields with names are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .attrs import Attr


def names_at_slots(slots: Sequence[Attr], names: Sequence[str]) -> list[str]:
    """Returns names at their slots, with empty names in between."""
    indices = [slot for slot in slots if isinstance(slot, int)]
    names_by_slot = [""] * (max(indices, default=-1) + 1)
    for slot, name in zip(indices, names, strict=True):
        names_by_slot[slot] = name
    return names_by_slot


def subgraphs_of(attribute: Any) -> list[Any]:
    """Returns the graphs of an attribute that holds one, or a list of them."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def rename_captured(graph: Any, new_names: Mapping[str, str]) -> None:
    """Renames the outer tensors that a subgraph reads."""
    # A tensor that the subgraph defines itself hides an outer one of that name.
    defined = {*(i.name for i in graph.input), *(t.name for t in graph.initializer)}
    defined |= {t.values.name for t in graph.sparse_initializer}
    defined |= {name for node in graph.node for name in node.output}
    changed = {old: new for old, new in new_names.items() if old not in defined and old != new}
    if not changed:
        return
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for subgraph in subgraphs_of(attribute):
                rename_captured(subgraph, changed)
    for info in graph.output:
        info.name = changed.get(info.name, info.name)
