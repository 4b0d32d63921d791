"""Takes and gives floats where a model takes and gives quantized values.

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      output(y=%y)
    }

By `float-io` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %x.q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%x.q) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y.dq = dequantize(%y) : 2xf32
      output(y=%y.dq)
    }

`integer-io` is its inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class FloatIo(Pass):
    """Quantizes float inputs to the types that inputs had, and dequantizes outputs.

    Integers inside stay what they are. Types whose scale is chosen while the model runs stay.
    """

    name = "float-io"
    nested = False
    tolerance = Tolerance(inf, inf, "inputs and outputs are other tensors")

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for value in graph.inputs:
            if _is_quantized(value) and may(self.name, "input", value.node):
                count += 1
                kind = take_floats(graph, value)
                ledger.add(Change.REGROUPED, self.name, value.name, f"holds {kind.express} now")
        for name, value in graph.outputs.items():
            if _is_quantized(value) and may(self.name, "output", value.node):
                count += 1
                kind = give_floats(graph, name)
                ledger.add(Change.REGROUPED, self.name, name, f"holds {kind.express} now")
        return count


def take_floats(graph: Graph, value: Value) -> TensorType:
    """Makes a quantized input one of floats that are quantized; returns the type it had."""
    kind = value.type
    graph.set_type(value, kind.with_element(kind.express))
    name = graph.fresh(f"{value.name}.q")
    node = graph.add("quantize", {"x": value}, types=[kind], name=name)
    graph.replace(value, node.result, except_in=node)
    return kind


def give_floats(graph: Graph, name: str) -> TensorType:
    """Dequantizes an output; returns the type it had."""
    value = graph.outputs[name]
    fresh = graph.fresh(f"{value.name}.dq")
    floats = graph.add("dequantize", {"x": value}, name=fresh).result
    graph.set_operand(graph.output, name, floats)
    return value.type


def _is_quantized(value: Value) -> bool:
    quant = value.type.quant
    return quant is not None and not quant.dynamic
