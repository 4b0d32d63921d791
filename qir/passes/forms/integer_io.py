"""Takes inputs and gives outputs as the integers that a quantized model computes with.

    graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      %r = relu(%q) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = dequantize(%r) : 2xf32
      output(y=%y)
    }

By `integer-io` it becomes:

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %r = relu(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      output(y=%r)
    }

Who runs the model quantizes what it takes: `q = round(x / scale) + zero`, saturated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from qir.analysis.integer_boundary import (
    BoundaryTypes,
    BoundaryValue,
    Kind,
    before_casts,
    boundary_values,
    widening_casts,
)
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class IntegerIo(Pass):
    """Gives inputs and outputs their quantized types; integers inside stay what they are.

    An input must be read by quantizes to one type, an output be the dequantize of a quantized
    value; what is only moved may be between. Others stay float, and the ledger says why.
    """

    name = "integer-io"
    nested = False
    tolerance = Tolerance(inf, inf, "inputs and outputs are other tensors")
    inputs: Kind = "integer"
    """`integer`: of the type that the model computes with; `i8` or `u8`: of the same floats in that
    storage; `float`: left as they are."""
    outputs: Kind = "integer"
    """The same of outputs."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        values = boundary_values(graph, BoundaryTypes(self.inputs, self.outputs))
        changed = [
            end
            for end in values
            if end.quant is not None and not end.is_integer and self._retyped(graph, end)
        ]
        for end in changed:
            assert end.quant is not None
            ledger.add(Change.QUANTIZED, self.name, end.name, f"holds {_meaning(end.quant)} now")
        for end in values if changed else ():
            if end.quant is None:
                ledger.add(Change.EXACT, self.name, end.name, f"stays float: {end.reason}")
        return len(changed)

    def _retyped(self, graph: Graph, end: BoundaryValue) -> bool:
        """Gives an input or output its quantized type; False where the change is not wanted."""
        if end.side == "input":
            value = graph[end.name]
            return may(self.name, "input", value.node) and _retype_input(graph, value, end)
        value = graph.outputs[end.name]
        return may(self.name, "output", value.node) and _retype_output(graph, value, end)


def _meaning(quant: QuantType) -> str:
    """Returns storage, scale and zero point of a type: `u8 0.5:3`."""
    zero = int(quant.zeros())
    return f"{quant.storage} {float(quant.scales()):.8g}{f':{zero}' if zero else ''}"


def _retype_input(graph: Graph, value: Value, end: BoundaryValue) -> bool:
    assert end.quant is not None
    casts = widening_casts(value)
    readers = [use.node for x in (value, *casts) for use in x.uses]
    quantizes = [node for node in readers if node.op == "quantize"]
    floats = value.type
    graph.set_type(value, floats.with_element(end.quant))
    name = graph.fresh(f"{value.name}.dq")
    dequantize = graph.add("dequantize", {"x": value}, name=name)
    # What only moves the input goes on with its floats.
    graph.replace(value, dequantize.result, except_in=dequantize)
    integers = value
    if quantizes and end.computed is not None and end.computed != end.quant:
        integers = _requantized(graph, value, floats.with_element(end.computed))
    for node in quantizes:
        graph.replace(node.result, integers)
        graph.remove(node)
    for node in (*(cast.node for cast in casts), dequantize):
        if not node.used:
            graph.remove(node)
    return True


def _retype_output(graph: Graph, value: Value, end: BoundaryValue) -> bool:
    assert end.quant is not None
    casts, value = value, before_casts(value)
    kind, dequantize = value.type.with_element(end.quant), value.node
    if dequantize.op != "dequantize":
        name = graph.fresh(f"{value.name}.q")
        integers = graph.add("quantize", {"x": value}, types=[kind], name=name).result
    elif end.quant == end.computed:
        integers = dequantize.operands["x"]
    else:
        integers = _requantized(graph, dequantize.operands["x"], kind)
    graph.set_operand(graph.output, end.name, integers)
    while casts is not value and not casts.uses:
        cast, casts = casts.node, casts.node.operands["x"]
        graph.remove(cast)
    if dequantize.op == "dequantize" and not dequantize.used:
        graph.remove(dequantize)
    return True


def _requantized(graph: Graph, value: Value, kind: TensorType) -> Value:
    """Returns a quantized value in another storage."""
    assert kind.quant is not None
    name = graph.fresh(f"{value.name}.{kind.quant.storage}")
    return graph.add("requantize", {"x": value}, types=[kind], name=name).result
