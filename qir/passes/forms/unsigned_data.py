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
from dataclasses import dataclass, replace

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, uniform
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ABOUT_INTEGERS
from qir.rewrite import REGROUPED, Pass

_SHIFT = 128


@dataclass(frozen=True)
class UnsignedData(Pass):
    """Moves `i8` values to `u8` where a quantize makes them and only dequantizes read them.

    With `kernels`, quantized kernels make and read such values too. Values that others read, such
    as an output of the graph, keep their storage.
    """

    name = "unsigned-data"
    tolerance = REGROUPED
    kernels: bool = False

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = movable(graph, _signed, kernels=self.kernels)
        for value in found:
            assert value.type.quant is not None
            graph.set_type(value, value.type.with_element(_unsigned(value.type.quant)))
            said = "stored as u8 with a zero point 128 higher; its float values stay"
            ledger.add(Change.REGROUPED, self.name, value.name, said)
        return len(found)


def movable(graph: Graph, takes: Callable[[Value], bool], *, kernels: bool) -> list[Value]:
    """Returns values that can be stored otherwise; those that an op only moves go together.

    A quantize makes them and dequantizes read them; with `kernels`, quantized kernels do too.
    """

    def ours(node: Node, reads: bool = False) -> bool:
        if node.op in ("quantize", "dequantize"):
            return node.op == ("dequantize" if reads else "quantize")
        return kernels and node.op not in ABOUT_INTEGERS and not node.bodies

    made = [value for node in graph for value in node.results if ours(node)]
    found = {v: None for v in made if takes(v) and all(ours(u.node, True) for u in v.uses)}
    left: list[Value] | None = None
    while kernels and left != []:
        left = [v for v in found if any(other not in found for other in _together(v))]
        for value in left:
            del found[value]
    return list(found)


def _together(value: Value) -> list[Value]:
    """Returns the values that must have the type of a value, since an op moves one to the other."""
    out: list[Value] = []
    for node in {value.node, *value.users}:
        moved = () if node.stages else spec(node.op).traits.same_params
        slots = [v for s, v in node.operands.items() if s.partition(".")[0] in moved]
        if moved and (value in slots or value in node.results):
            out += [*slots, *node.results]
    return out


def _signed(value: Value) -> bool:
    """Returns whether a value is signed bytes of one known scale that somebody reads."""
    kind = value.type.quant
    if kind is None or kind.storage != I8 or kind.kind != "uniform" or kind.dynamic:
        return False
    if kind.has_float_zero or kind.plus is not None or kind.granularity is not None:
        return False
    return bool(value.uses)


def _unsigned(kind: QuantType) -> QuantType:
    bounds = None if kind.bounds is None else (kind.bounds[0] + _SHIFT, kind.bounds[1] + _SHIFT)
    made = uniform(U8, kind.scales(), kind.zeros().astype("int64") + _SHIFT, bounds=bounds)
    return replace(made, express=kind.express, scale_dtype=kind.scale_dtype)
