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

Numbers = dict[str, Value]
"""Values that hold scales and zeros, by the companion's name."""
_BITS = frozenset({"recode", "shape", "size"})
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
        for _, each in graph.walk():
            for value in _open_ones(each, inside=each is not graph):
                _unfold(each, value)
                ledger.add(Change.EXACT, self.name, value.name, "its parameters are operands")
                count += 1
            for node in list(each):
                count += _unfold_inner(each, node)
        return count


def _open_ones(graph: Graph, *, inside: bool) -> list[Value]:
    """Returns the values that are unfolded: of those that hold the same quantized values, all or
    none."""
    chosen = {v: None for v in graph.values.values() if _takes(v, inside=inside)}
    rows = [both for node in graph if len(both := tied(node)) > 1]
    uneven = True
    while uneven:
        broken = [both for both in rows if 0 < sum(v in chosen for v in both) < len(both)]
        uneven = bool(broken)
        for value in (v for both in broken for v in both):
            chosen.pop(value, None)
    return list(chosen)


def _takes(value: Value, *, inside: bool) -> bool:
    """Returns whether all who read or make a value can be given its numbers."""
    quant, node = value.type.quant, value.node
    if quant is None or quant.scale is None or quant.zero is None:
        return False
    makes = node.op in ("constant", "input") or _told(node)
    if not makes or (inside and node.op == "input") or len(node.results) != 1:
        return False
    if not all(_told(node) and spec(node.op).slot(slot) for node, slot in value.uses):
        return False  # numbers that are quantized keep theirs
    somebody = node.op not in ("constant", "input") and node.op not in _BITS
    return bool(value.uses) and (somebody or any(u.node.op not in _BITS for u in value.uses))


def _told(node: Node) -> bool:
    return (
        node.op not in STATED_TYPE_OPS
        and node.op != "constant"
        and not node.bodies
        and not node.stages
    )


def _unfold(graph: Graph, value: Value) -> None:
    quant = value.type.quant
    assert quant is not None
    numbers = _constants(graph, quant, value.name, value.node)
    kind = value.type.with_element(_open(quant))
    if (held := value.constant) is not None:
        graph.set_attrs(value.node, data=Array(held.contents, kind, held.name))
    graph.set_type(value, kind)
    if value.node.op not in ("constant", "input", *_BITS):
        for name, number in numbers.items():
            graph.set_operand(value.node, name, number)
    for node, slot in list(value.uses):
        if spec(node.op).slot(slot) is not None and node.op not in _BITS:
            for name, number in numbers.items():
                graph.set_operand(node, f"{slot}.{name}", number)


def _unfold_inner(graph: Graph, node: Node) -> int:
    count = 0
    for slot, element in list(node.inner.items()):
        if isinstance(element, QuantType) and not element.dynamic and not node.bodies:
            numbers = _constants(graph, element, f"{node.name}.{slot}", node)
            graph.set_inner(node, slot, _open(element))
            for name, number in numbers.items():
                graph.set_operand(node, f"{slot}.{name}", number)
            count += 1
    return count


def _open(quant: QuantType) -> QuantType:
    """Returns the type without its numbers; a zero point that is not there is not asked for."""
    return replace(quant, scale=None, zero=() if quant.zero == () else None, scale_dtype=None)


def _constants(graph: Graph, quant: QuantType, stem: str, before: Node) -> Numbers:
    """Constants of the numbers, just before a node."""
    made: Numbers = {}
    for name, held in (("scale", quant.scale), ("zero", quant.zero)):
        if held == () or held is None:
            continue
        data = held if isinstance(held, Array) else _listed(quant, name, f"{stem}.{name}")
        free = graph.fresh(f"{stem}.{name}")
        made[name] = graph.constant(Array(data.contents, data.type, free), name=free, before=before)
    return made


def _listed(quant: QuantType, name: str, stem: str) -> Array:
    """Numbers that are in line, in the type they have."""
    if name == "scale":
        return Array.of(np.asarray(quant.scales()), stem)
    zeros = np.asarray(quant.zeros())
    if quant.has_float_zero:
        return Array.of(zeros.astype(quant.express.carrier), stem)
    kind = quant.storage
    if not kind.is_integer:
        return Array.of(zeros, stem)
    return Array(zeros.astype(kind.carrier), TensorType(zeros.shape, kind), stem)
