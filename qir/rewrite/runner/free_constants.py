"""Turns defaults (constants that the caller may replace) into constants where a pass relies on
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger

STEP = "passes"
_Reader: TypeAlias = tuple[Node, str, Mapping[str, Attr], tuple[TensorType, ...]]
Fixed: TypeAlias = Mapping[Value, "Role"]
"""What were defaults of a graph, with what each did."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a default is, and who reads it how: as long as that stays, nothing counted on it."""

    name: str
    type: TensorType
    data: Array | None
    readers: tuple[_Reader, ...]

    @classmethod
    def of(cls, value: Value) -> Role:
        """Returns the role that a value has now."""
        # Sorted, because the order of uses changes when a reader is replaced by an equal one.
        uses = sorted(value.uses, key=lambda use: (use.node.name, use.slot))
        readers = tuple(
            (u.node, u.slot, dict(u.node.attrs), tuple(v.type for v in u.node.results))
            for u in uses
        )
        return cls(value.name, value.type, value.constant, readers)


def fix_defaults(graph: Graph, ledger: Ledger) -> Fixed:
    """Makes defaults of a graph constants like others, one line of the ledger each."""
    roles = {value: Role.of(value) for value in graph.defaults}
    message = "a default is a plain constant from here on"
    for value in roles:
        graph.set_attrs(value.node, default=False)
        ledger.add(Change.DROPPED, STEP, value.name, message)
    return roles


def restore_defaults(graph: Graph, roles: Fixed, ledger: Ledger) -> None:
    """Lets those be defaults again that are read as they were, and takes their lines back.

    What was folded, merged, coded or moved is read otherwise, or not at all.
    """
    restorable = [v for v, role in roles.items() if v.node in graph and Role.of(v) == role]
    for value in restorable:
        graph.set_attrs(value.node, default=True)
    ledger.withdraw(STEP, {value.name for value in restorable})
