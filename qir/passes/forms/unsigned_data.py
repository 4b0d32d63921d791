"""Stores signed 8-bit data as unsigned, with a zero point that is 128 higher.

    graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<i8:f32, 0.5:3>
      %d = dequantize(%q) : 2xf32
      output(d=%d)
    }

By `unsigned-data` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:131>
      %d = dequantize(%q) : 2xf32
      output(d=%d)
    }

Some runtimes have kernels for unsigned data alone. Both types have the same float values. A profile
that adds the zero point before it rounds may give a neighbour where float32 rounds that sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qir.analysis.integer_boundary import with_storage
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ABOUT_INTEGERS
from qir.rewrite import REGROUPED, Pass


@dataclass(frozen=True)
class UnsignedData(Pass):
    """Moves `i8` values to `u8` where a quantize makes them and only dequantizes read them.

    With `kernels`, quantized kernels make and read such values too. Values that others read, such
    as an output of the graph, keep their storage, and so do weights.
    """

    name = "unsigned-data"
    tolerance = REGROUPED
    kernels: bool = False

    def run(self, graph: Graph, ledger: Ledger) -> int:
        moved = movable(graph, _is_signed_bytes, kernels=self.kernels)
        for value in moved:
            assert value.type.quant is not None
            graph.set_type(value, value.type.with_element(with_storage(value.type.quant, U8)))
            message = "stored as u8 with a zero point 128 higher; its float values stay"
            ledger.add(Change.REGROUPED, self.name, value.name, message)
        return len(moved)


def movable(graph: Graph, accepts: Callable[[Value], bool], *, kernels: bool) -> list[Value]:
    """Returns values that can be stored otherwise; those that an op only moves go together.

    A quantize makes them and dequantizes read them; with `kernels`, quantized kernels do too.
    """

    def is_movable_end(node: Node, reads: bool = False) -> bool:
        if node.op in ("quantize", "dequantize"):
            return node.op == ("dequantize" if reads else "quantize")
        return kernels and node.op not in ABOUT_INTEGERS and not node.bodies

    produced = [value for node in graph for value in node.results if is_movable_end(node)]
    candidates = {
        v: None
        for v in produced
        if accepts(v) and all(is_movable_end(u.node, True) for u in v.uses)
    }
    dropped: list[Value] | None = None
    # Values that one op moves must change together. Dropping one drops its group, so this repeats
    # until nothing changes.
    while kernels and dropped != []:
        dropped = [
            v
            for v in candidates
            if any(other not in candidates for other in _values_of_same_type(v))
        ]
        for value in dropped:
            del candidates[value]
    return list(candidates)


def _values_of_same_type(value: Value) -> list[Value]:
    """Returns the values that must have the type of a value, since an op moves one to the other."""
    connected: list[Value] = []
    for node in {value.node, *value.users}:
        moved_slots = () if node.stages else spec(node.op).traits.same_params
        moved_values = [v for s, v in node.operands.items() if s.partition(".")[0] in moved_slots]
        if moved_slots and (value in moved_values or value in node.results):
            connected += [*moved_values, *node.results]
    return connected


def _is_signed_bytes(value: Value) -> bool:
    """Returns whether a value is signed bytes of one known scale that somebody reads."""
    quant = value.type.quant
    if quant is None or quant.storage != I8 or quant.kind != "uniform" or quant.dynamic:
        return False
    # Kernels take unsigned data with one whole zero point for the tensor.
    if quant.has_float_zero or quant.plus is not None or quant.granularity is not None:
        return False
    return bool(value.uses) and not _is_weight(value)


def _is_weight(value: Value) -> bool:
    """Returns whether a value is a quantized constant that layers read as their weight.

    Models in training have such weights; kernels that want unsigned data want signed weights.
    """
    source = value.node.operands.get("x")
    if source is None or source.constant is None:
        return False
    # A weight is dequantized first, so the layer is two steps from it.
    uses = [use for user in value.users for result in user.results for use in result.uses]
    return any(not use.node.stages and use.slot == _weight_slot(use.node) for use in uses)


def _weight_slot(node: Node) -> str | None:
    """Returns the slot of a layer's weight; transposed convolutions have no trait for it."""
    traits = spec(node.op).traits
    return traits.weight or ("w" if traits.layer else None)
