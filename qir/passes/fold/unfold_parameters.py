"""Moves quantization parameters from types to constant operands.

    graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = dequantize(%q) : 2xf32
      output(y=%y)
    }

By `unfold-parameters` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %q.scale = constant(0.5) : f32
      %q.zero = constant(3) : u8
      %q = quantize(%x, scale=%q.scale, zero=%q.zero) : 2x!quant.uniform<u8:f32, ?:?>
      %y = dequantize(%q, x.scale=%q.scale, x.zero=%q.zero) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.equal_types import tied

ParameterValues = dict[str, Value]
"""Values that hold scales and zeros, by the companion's name."""
_IGNORING_PARAMETERS = frozenset({"recode", "shape", "size"})
"""Ops that do not ask what quantized values mean."""


@dataclass(frozen=True)
class UnfoldParameters(Pass):
    """Makes each scale and zero point a constant operand of every reader of the quantized value.

    A type keeps its numbers where somebody reads it who takes none next to: an output, a group, a
    foreign op, the edge of a body.
    """

    name = "unfold-parameters"
    nested = False

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for _, part in graph.walk():
            for value in _unfoldable_values(part, inside=part is not graph):
                _unfold(part, value)
                ledger.add(Change.EXACT, self.name, value.name, "its parameters are operands")
                count += 1
            for node in list(part):
                count += _unfold_inner(part, node)
        return count


def _unfoldable_values(graph: Graph, *, inside: bool) -> list[Value]:
    """Returns the values to unfold; of values that hold the same integers, all or none."""
    chosen = {v: None for v in graph.values.values() if _is_unfoldable(v, inside=inside)}
    connected_groups = [group for node in graph if len(group := tied(node)) > 1]
    changed = True
    # A value that stays as it is keeps all others of its group; repeat until no group is partial.
    while changed:
        partial = [
            group for group in connected_groups if 0 < sum(v in chosen for v in group) < len(group)
        ]
        changed = bool(partial)
        for value in (v for group in partial for v in group):
            chosen.pop(value, None)
    return list(chosen)


def _is_unfoldable(value: Value, *, inside: bool) -> bool:
    """Returns whether the producer and all consumers of a value accept its parameters."""
    quant, node = value.type.quant, value.node
    if quant is None or quant.scale is None or quant.zero is None:
        return False
    producer_accepts = node.op in ("constant", "input") or _accepts_companions(node)
    # The input of a body has the type of what is handed in: both would have to change.
    if not producer_accepts or (inside and node.op == "input") or len(node.results) != 1:
        return False
    if not all(_accepts_companions(node) and spec(node.op).slot(slot) for node, slot in value.uses):
        return False  # quantized parameters keep their own parameters
    producer_interprets = (
        node.op not in ("constant", "input") and node.op not in _IGNORING_PARAMETERS
    )
    return bool(value.uses) and (
        producer_interprets or any(u.node.op not in _IGNORING_PARAMETERS for u in value.uses)
    )


def _accepts_companions(node: Node) -> bool:
    return (
        node.op not in STATED_TYPE_OPS
        and node.op != "constant"
        and not node.bodies
        and not node.stages
    )


def _unfold(graph: Graph, value: Value) -> None:
    quant = value.type.quant
    assert quant is not None
    parameters = _parameter_constants(graph, quant, value.name, value.node)
    tensor_type = value.type.with_element(_without_parameters(quant))
    if (constant := value.constant) is not None:
        graph.set_attrs(value.node, data=Array(constant.contents, tensor_type, constant.name))
    graph.set_type(value, tensor_type)
    # A constant or an input makes no integers, so it needs no parameters of its own.
    if value.node.op not in ("constant", "input", *_IGNORING_PARAMETERS):
        for name, parameter in parameters.items():
            graph.set_operand(value.node, name, parameter)
    for node, slot in list(value.uses):
        if spec(node.op).slot(slot) is not None and node.op not in _IGNORING_PARAMETERS:
            for name, parameter in parameters.items():
                graph.set_operand(node, f"{slot}.{name}", parameter)


def _unfold_inner(graph: Graph, node: Node) -> int:
    count = 0
    for slot, element in list(node.inner.items()):
        if isinstance(element, QuantType) and not element.dynamic and not node.bodies:
            parameters = _parameter_constants(graph, element, f"{node.name}.{slot}", node)
            graph.set_inner(node, slot, _without_parameters(element))
            for name, parameter in parameters.items():
                graph.set_operand(node, f"{slot}.{name}", parameter)
            count += 1
    return count


def _without_parameters(quant: QuantType) -> QuantType:
    """Returns the type with scale and zero point left open; a missing zero point stays missing."""
    return replace(quant, scale=None, zero=() if quant.zero == () else None, scale_dtype=None)


def _parameter_constants(
    graph: Graph, quant: QuantType, stem: str, before: Node
) -> ParameterValues:
    """Constants of the numbers, just before a node."""
    parameters: ParameterValues = {}
    for name, stored in (("scale", quant.scale), ("zero", quant.zero)):
        if stored == () or stored is None:
            continue
        data = (
            stored if isinstance(stored, Array) else _parameter_array(quant, name, f"{stem}.{name}")
        )
        fresh_name = graph.fresh(f"{stem}.{name}")
        parameters[name] = graph.constant(
            Array(data.contents, data.type, fresh_name), name=fresh_name, before=before
        )
    return parameters


def _parameter_array(quant: QuantType, name: str, stem: str) -> Array:
    """Numbers that are in line, in the type they have."""
    if name == "scale":
        return Array.of(np.asarray(quant.scales()), stem)
    zeros = np.asarray(quant.zeros())
    if quant.has_float_zero:
        return Array.of(zeros.astype(quant.express.carrier), stem)
    storage = quant.storage
    if not storage.is_integer:
        return Array.of(zeros, stem)
    return Array(zeros.astype(storage.carrier), TensorType(zeros.shape, storage), stem)
