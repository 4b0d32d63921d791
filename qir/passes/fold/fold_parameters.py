"""Moves constant quantization parameters from operands into types.

    graph main as native {
      %x = input() : 2xf32
      %s = constant(0.5) : f32
      %z = constant(3) : u8
      %q = quantize(%x, scale=%s, zero=%z) : 2x!quant.uniform<u8:f32, ?:?>
      %y = dequantize(%q, x.scale=%s, x.zero=%z) : 2xf32
      output(y=%y)
    }

By `fold-parameters` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = dequantize(%q) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from qir.errors import QirError
from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import COMPANIONS, spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.text import parse
from qir.ir.types import Array, QuantType
from qir.ledger import Change, Ledger
from qir.reference.companions import with_companion_parameters
from qir.reference.interpreter import profile_name_of
from qir.rewrite import Pass
from qir.rewrite.equal_types import tied

Found = dict[Value, "QuantType | None"]
"""The type that a value's readers and maker agree on; None where they leave it open."""


@dataclass(frozen=True)
class FoldParameters(Pass):
    """Writes scale and zero point into the type of a value whose readers name equal constants.

    Ops that only move quantized values, and have no parameters of their own, follow. A value stays
    as it is where a parameter is computed, and where readers disagree, which the ledger says.
    """

    name = "fold-parameters"
    nested = False

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Quantized values whose scale and zero point are constants next to them."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n  %s = constant(0.5) : f32\n"
            "  %z = constant(3) : u8\n"
            "  %q = quantize(%x, scale=%s, zero=%z) : 2x3x!quant.uniform<u8:f32, ?:?>\n"
            "  %d = dequantize(%q, x.scale=%s, x.zero=%z) : 2x3xf32\n  output(y=%d)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for _, each in graph.walk():
            found = self._agreed(each, ledger, inside=each is not graph)
            for value, quant in found.items():
                if quant is not None:
                    _fold(each, value, quant)
                    ledger.add(Change.EXACT, self.name, value.name, "constant numbers")
                    count += 1
            for node in list(each):
                count += _fold_inner(each, node)
            if count:
                each.prune()
        return count

    def _agreed(self, graph: Graph, ledger: Ledger, *, inside: bool) -> Found:
        """Returns the types that dynamic values can have; what moves integers agrees on both
        sides."""
        found: Found = {}
        for value in graph.values.values():
            if (quant := value.type.quant) is None or not quant.dynamic:
                continue
            named = _named(graph, value)
            known = [n for n in named if n is not None]
            if _at_edge(value, inside=inside):
                found[value] = None
            elif not named:
                found[value] = _carried(value, found)
            elif len(known) == len(named) and not all(map(known[0].has_same_mapping, known)):
                ledger.add(Change.REFUSED, self.name, value.name, "readers disagree on numbers")
                found[value] = None
            else:
                found[value] = known[0] if len(known) == len(named) else None
        while _drop_uneven(graph, found):
            pass
        return found


def _at_edge(value: Value, *, inside: bool) -> bool:
    """Returns whether a value goes into a body or group or comes out of one, which say its type
    too."""
    users = [use.node for use in value.uses]
    if inside and (value.node.op == "input" or any(n.op == "output" for n in users)):
        return True
    return any(n.bodies or n.stages for n in (value.node, *users))


def _named(graph: Graph, value: Value) -> list[QuantType | None]:
    """Returns the type by each reader with parameters; None where a parameter is no constant."""
    quant = value.type.quant
    assert quant is not None
    places = [(use.node, use.slot) for use in value.uses]
    if len(value.node.results) == 1 and value.node.op not in STATED_TYPE_OPS:
        places.append((value.node, ""))
    found = [_told(graph, node, slot, quant) for node, slot in places if _beside(node, slot)]
    return found


def _beside(node: Node, slot: str) -> dict[str, Value]:
    """Returns the companions of a slot, of the result where it is empty."""
    dot = f"{slot}." if slot else ""
    row = spec(node.op)
    names = [
        f"{dot}{n}"
        for n in COMPANIONS
        if node.op not in STATED_TYPE_OPS and row.is_companion(f"{dot}{n}")
    ]
    return {n: node.operands[n] for n in names if n in node.operands}


def _told(graph: Graph, node: Node, slot: str, quant: QuantType) -> QuantType | None:
    arrays = {n: v.constant for n, v in _beside(node, slot).items()}
    known = {n: a for n, a in arrays.items() if a is not None}
    if len(known) < len(arrays):
        return None
    plain = {n: a.data for n, a in known.items() if a.type.quant is None}
    try:
        made = with_companion_parameters(quant, slot, plain, profile_name_of(graph, node))
        for name, array in known.items():
            if array.type.quant is not None:
                made = _nested(made, name.rpartition(".")[2], array)
    except QirError:
        return None
    return None if made.dynamic else made


def _nested(quant: QuantType, name: str, array: Array) -> QuantType:
    """Returns the type with numbers that are quantized themselves."""
    if name == "scale":
        return replace(quant, scale=array, scale_dtype=array.type.express)
    return replace(quant, zero=array)


# -- ops that only move quantized values ----------------------------------------------------------


def _carried(value: Value, found: Found) -> QuantType | None:
    """Returns the type of integers that were only moved, where that of the integers before is
    known."""
    node = value.node
    sources = [v for v in tied(node) if v is not value]
    if len(sources) != 1:
        return None
    quant = _now(sources[0], found)
    return None if quant is None else _move(node, quant)


def _now(value: Value, found: Found) -> QuantType | None:
    """Returns the static type that a value has, or can have."""
    quant = found[value] if value in found else value.type.quant
    return None if quant is None or quant.dynamic else quant


def _move(node: Node, quant: QuantType) -> QuantType | None:
    row = spec(node.op)
    if row.move is None:
        return quant
    return row.move(make_call(node.op, node.operands, node.attrs), quant)


def _drop_uneven(graph: Graph, found: Found) -> bool:
    """Leaves open what not all who hold the same integers agree on; says whether there was any."""
    changed = False
    for node in graph:
        both = tied(node)
        if not any(found.get(v) for v in both):
            continue
        known = [_now(v, found) for v in both]
        if None not in known and (node.op == "concat" or _even(node, found)):
            continue
        for value in both:
            if found.get(value) is not None:
                found[value] = None
                changed = True
    return changed


def _even(node: Node, found: Found) -> bool:
    results = [_now(v, found) for v in node.results]
    for value in tied(node):
        quant = _now(value, found)
        moved = _move(node, quant) if quant is not None and value not in node.results else None
        if moved is not None and not all(
            r is not None and moved.has_same_mapping(r) for r in results
        ):
            return False
    return True


# -- folding --------------------------------------------------------------------------------------


def _fold(graph: Graph, value: Value, quant: QuantType) -> None:
    kind = value.type.with_element(quant)
    if (held := value.constant) is not None:
        graph.set_attrs(value.node, data=Array(held.contents, kind, held.name))
    graph.set_type(value, kind)
    places = [(use.node, use.slot) for use in value.uses]
    if len(value.node.results) == 1 and value.node.op not in STATED_TYPE_OPS:
        places.append((value.node, ""))
    for node, slot in places:
        for name in _beside(node, slot):
            graph.set_operand(node, name, None)


def _fold_inner(graph: Graph, node: Node) -> int:
    count = 0
    for slot, element in list(node.inner.items()):
        if isinstance(element, QuantType) and element.dynamic and _beside(node, slot):
            made = _told(graph, node, slot, element)
            if made is not None:
                for name in _beside(node, slot):
                    graph.set_operand(node, name, None)
                graph.set_inner(node, slot, made)
                count += 1
    return count
