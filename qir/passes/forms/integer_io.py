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

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from qir.analysis.integer_boundary import (
    BoundaryTypes,
    BoundaryValue,
    Kind,
    before_casts,
    boundary_values,
    mapping_problem,
    widening_casts,
)
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.passes.forms.float_io import give_floats, take_floats
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class IntegerIo(Pass):
    """Gives inputs and outputs their quantized types; integers inside stay what they are.

    An input must be read by quantizes to one type, an output be the dequantize of a quantized
    value; what is only moved may be between. Others stay float. What is integers already is stored
    as asked, or becomes floats. The ledger says what stays as it is, and why.
    """

    name = "integer-io"
    nested = False
    tolerance = Tolerance(inf, inf, "inputs and outputs are other tensors")
    inputs: Kind = "integer"
    """`integer`: of the type that the model computes with; `i8` or `u8`: of the same floats in that
    storage; `float`: floats, also where they were integers."""
    outputs: Kind = "integer"
    """The same of outputs."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        values = self._ends(graph)
        changed = [end for end in values if end.changes and self._retyped(graph, end)]
        for end in changed:
            if end.quant is None:
                ledger.add(Change.REGROUPED, self.name, end.name, "holds floats now")
            else:
                said = f"holds {_meaning(end.quant)} now"
                ledger.add(Change.QUANTIZED, self.name, end.name, said)
        if changed:
            self._say_what_stays(values, ledger)
        return len(changed)

    def explain_no_change(self, graph: Graph, ledger: Ledger) -> None:
        values = self._ends(graph)
        for end in values:
            if end.quant is not None and not end.changes and not end.reason:
                said = f"holds {_meaning(end.quant)} already"
                ledger.add(Change.EXACT, self.name, end.name, said)
        self._say_what_stays(values, ledger)

    def _ends(self, graph: Graph) -> list[BoundaryValue]:
        return boundary_values(graph, BoundaryTypes(self.inputs, self.outputs))

    def _say_what_stays(self, values: Sequence[BoundaryValue], ledger: Ledger) -> None:
        for end in values:
            if end.reason:
                kind = "float" if end.quant is None else end.quant.storage
                ledger.add(Change.EXACT, self.name, end.name, f"stays {kind}: {end.reason}")

    def _retyped(self, graph: Graph, end: BoundaryValue) -> bool:
        """Gives an input or output its type; False where the change is not wanted."""
        value = graph[end.name] if end.side == "input" else graph.outputs[end.name]
        if not may(self.name, end.side, value.node):
            return False
        if end.side == "input":
            if end.quant is None:
                take_floats(graph, value)
            elif end.is_integer:
                _store_input(graph, value, end.quant)
            else:
                _retype_input(graph, value, end)
        elif end.quant is None:
            give_floats(graph, end.name)
        elif end.is_integer:
            integers = _requantized(graph, value, value.type.with_element(end.quant))
            graph.set_operand(graph.output, end.name, integers)
            _remove_unread(graph, value.node)
        else:
            _retype_output(graph, value, end)
        return True


def _meaning(quant: QuantType) -> str:
    """Returns storage, scale and zero point of a type: `u8 0.5:3`."""
    if mapping_problem(quant):
        return str(quant.storage)
    zero = int(quant.zeros())
    return f"{quant.storage} {float(quant.scales()):.8g}{f':{zero}' if zero else ''}"


def _store_input(graph: Graph, value: Value, quant: QuantType) -> None:
    """Stores an input of integers otherwise; what reads it goes on with those it had."""
    before, kind = value.type, value.type.with_element(quant)
    undone = [
        use.node
        for use in value.uses
        if use.node.op == "requantize" and use.node.result.type == kind
    ]
    graph.set_type(value, kind)
    back = _requantized(graph, value, before)
    graph.replace(value, back, except_in=back.node)
    for node in undone:  # a conversion to what the input holds now
        graph.replace(node.result, value)
        graph.remove(node)
    _remove_unread(graph, back.node)


def _retype_input(graph: Graph, value: Value, end: BoundaryValue) -> None:
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


def _retype_output(graph: Graph, value: Value, end: BoundaryValue) -> None:
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


def _requantized(graph: Graph, value: Value, kind: TensorType) -> Value:
    """Returns a quantized value in another storage."""
    assert kind.quant is not None
    node = value.node
    if node.op == "requantize" and node.operands["x"].type == kind:
        return node.operands["x"]
    name = graph.fresh(f"{value.name}.{kind.quant.storage}")
    return graph.add("requantize", {"x": value}, types=[kind], name=name).result


def _remove_unread(graph: Graph, node: Node) -> None:
    """Removes a conversion that nothing reads now."""
    if node.op == "requantize" and not node.used:
        graph.remove(node)
