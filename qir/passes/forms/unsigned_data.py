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

from dataclasses import dataclass, replace

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import QuantType, uniform
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass

_SHIFT = 128


@dataclass(frozen=True)
class UnsignedData(Pass):
    """Moves `i8` values to `u8` where a quantize makes them and only dequantizes read them.

    Values that others read, such as an output of the graph, keep their storage.
    """

    name = "unsigned-data"
    tolerance = REGROUPED

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = [node.result for node in graph if node.op == "quantize" and _movable(node.result)]
        for value in found:
            assert value.type.quant is not None
            graph.set_type(value, value.type.with_element(_unsigned(value.type.quant)))
            said = "stored as u8 with a zero point 128 higher; its float values stay"
            ledger.add(Change.REGROUPED, self.name, value.name, said)
        return len(found)


def _movable(value: Value) -> bool:
    """Returns whether a value is signed bytes of one known scale that are only dequantized."""
    kind = value.type.quant
    if kind is None or kind.storage != I8 or kind.kind != "uniform" or kind.dynamic:
        return False
    if kind.real_zero or kind.plus is not None or kind.grain is not None:
        return False
    return bool(value.uses) and all(use.node.op == "dequantize" for use in value.uses)


def _unsigned(kind: QuantType) -> QuantType:
    bounds = None if kind.bounds is None else (kind.bounds[0] + _SHIFT, kind.bounds[1] + _SHIFT)
    made = uniform(U8, kind.scales(), kind.zeros().astype("int64") + _SHIFT, bounds=bounds)
    return replace(made, express=kind.express, scale_dtype=kind.scale_dtype)
