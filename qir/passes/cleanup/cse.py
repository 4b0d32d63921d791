"""Merges nodes that compute the same.

    graph main as native {
      %a = input() : 2xf32
      %b = input() : 2xf32
      %s = add(%a, %b) : 2xf32
      %t = add(%b, %a) : 2xf32
      %y = mul(%s, %t) : 2xf32
      output(y=%y)
    }

By `cse` it becomes:

    graph main as native {
      %a = input() : 2xf32
      %b = input() : 2xf32
      %s = add(%a, %b) : 2xf32
      %y = mul(%s, %s) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may

_NEVER_MERGED = frozenset({"input", "output", "foreign"})
# 0.0 and -0.0 are equal, so which of them min and max return depends on their order.
_ORDER_MATTERS = frozenset({"min", "max"})


@dataclass(frozen=True)
class Cse(Pass):
    """Keeps the first of several nodes of equal op, attributes, operands, types and profile.

    Sums and products of two are equal either way round; least and greatest are not, since 0.0 and
    -0.0 are equal to them. Constants are equal where type and bytes are. Nodes that are planned,
    that hold bodies or that train stay, and so do foreign ones, of which nobody knows whether they
    keep a state.
    """

    name = "cse"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        first_nodes: dict[Hashable, Node] = {}
        count = 0
        for node in list(graph):
            if not _is_mergeable(node):
                continue
            # In order: operands of the later nodes have been merged already, so that whole chains
            # merge.
            first = first_nodes.setdefault(_key(node), node)
            if first is node or not may(self.name, "equal", node, first):
                continue
            for old, new in zip(node.results, first.results, strict=True):
                graph.replace(old, new)
            graph.set_origins(first, (*first.origins, *node.origins))
            ledger.add(Change.EXACT, self.name, node.name, f"computed as {first.name} already")
            graph.remove(node)
            count += 1
        return count


def _is_mergeable(node: Node) -> bool:
    if node.op in _NEVER_MERGED or node.bodies or node.schemes:
        return False
    # Equal at the start, trained weights differ after the first step.
    return node.op != "constant" or not node.attrs["trainable"]


def _key(node: Node) -> Hashable:
    """Returns a key that is equal for nodes that compute the same."""
    if (array := node.result.constant if node.op == "constant" else None) is not None:
        # Bytes are compared by their digest, as weights may be large.
        return (array.digest, node.result.type)
    return (
        node.op,
        node.profile,
        _attrs_key(node),
        _operands_key(node),
        tuple(value.type for value in node.results),
        tuple(node.inner.items()),
        tuple(_stage_key(stage) for stage in node.stages),
    )


def _operands_key(node: Node) -> Hashable:
    """Returns the operands by slot, or as a set for a commutative op."""
    by_slot = tuple(node.operands.items())
    if node.op in _ORDER_MATTERS or len(by_slot) != 2 or not spec(node.op).traits.commutative:
        return by_slot
    values = [value for _, value in by_slot]
    # Quantized operands differ in scale and zero point, so their slots are not exchangeable.
    if node.inner or node.stages or any(value.type.quant for value in values):
        return by_slot
    return frozenset(values) if values[0] is not values[1] else by_slot


def _stage_key(stage: Stage) -> Hashable:
    return (stage.op, stage.slots, stage.flow, stage.type, _attrs_key(stage))


def _attrs_key(holder: Node | Stage) -> Hashable:
    return tuple((name, _attr_key(value)) for name, value in holder.attrs.items())


def _attr_key(value: Attr) -> Hashable:
    """Returns a key of an attribute: 1 is not 1.0, 0.0 is not -0.0, but NaN is NaN."""
    if isinstance(value, tuple):
        return tuple(_attr_key(item) for item in value)
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, Array):
        return (value.digest, value.type)
    return (type(value).__name__, value)
