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
from qir.reference.interpreter import rules_of
from qir.rewrite import Pass
from qir.rewrite.equal_types import tied

AgreedTypes = dict[Value, "QuantType | None"]
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
        for _, part in graph.walk():
            agreed = self._agreed_types(part, ledger, inside=part is not graph)
            for value, quant in agreed.items():
                if quant is not None:
                    _fold(part, value, quant)
                    ledger.add(Change.EXACT, self.name, value.name, "constant numbers")
                    count += 1
            for node in list(part):
                count += _fold_inner(part, node)
            if count:
                part.prune()
        return count

    def _agreed_types(self, graph: Graph, ledger: Ledger, *, inside: bool) -> AgreedTypes:
        """Returns the types that dynamic values can have; what moves integers agrees on both
        sides."""
        agreed: AgreedTypes = {}
        for value in graph.values.values():
            if (quant := value.type.quant) is None or not quant.dynamic:
                continue
            by_readers = _types_by_readers(graph, value)
            # All readers must give constant parameters: one that computes them needs the type open.
            stated = [stated_type for stated_type in by_readers if stated_type is not None]
            if _is_at_edge(value, inside=inside):
                agreed[value] = None
            elif not by_readers:
                agreed[value] = _moved_type(value, agreed)
            elif len(stated) == len(by_readers) and not all(
                map(stated[0].has_same_mapping, stated)
            ):
                ledger.add(Change.REFUSED, self.name, value.name, "readers disagree on numbers")
                agreed[value] = None
            else:
                agreed[value] = stated[0] if len(stated) == len(by_readers) else None
        # A value that is left open opens the values connected to it, so this repeats until it
        # settles.
        while _drop_disagreeing(graph, agreed):
            pass
        return agreed


def _is_at_edge(value: Value, *, inside: bool) -> bool:
    """Returns whether a value enters or leaves a body or group, which states its type as well."""
    users = [use.node for use in value.uses]
    if inside and (value.node.op == "input" or any(user.op == "output" for user in users)):
        return True
    return any(user.bodies or user.stages for user in (value.node, *users))


def _types_by_readers(graph: Graph, value: Value) -> list[QuantType | None]:
    """Returns the type by each reader with parameters; None where a parameter is no constant."""
    quant = value.type.quant
    assert quant is not None
    places = [(use.node, use.slot) for use in value.uses]
    if len(value.node.results) == 1 and value.node.op not in STATED_TYPE_OPS:
        places.append((value.node, ""))
    types = [
        _type_by_companions(graph, node, slot, quant)
        for node, slot in places
        if _companions(node, slot)
    ]
    return types


def _companions(node: Node, slot: str) -> dict[str, Value]:
    """Returns the companions of a slot, of the result where it is empty."""
    prefix = f"{slot}." if slot else ""
    op_spec = spec(node.op)
    names = [
        f"{prefix}{name}"
        for name in COMPANIONS
        if node.op not in STATED_TYPE_OPS and op_spec.is_companion(f"{prefix}{name}")
    ]
    return {name: node.operands[name] for name in names if name in node.operands}


def _type_by_companions(graph: Graph, node: Node, slot: str, quant: QuantType) -> QuantType | None:
    arrays = {n: v.constant for n, v in _companions(node, slot).items()}
    constants = {n: a for n, a in arrays.items() if a is not None}
    # A parameter that is computed has no value before the model runs.
    if len(constants) < len(arrays):
        return None
    floats = {n: a.data for n, a in constants.items() if a.type.quant is None}
    try:
        quant_type = with_companion_parameters(quant, slot, floats, rules_of(graph, node))
        for name, array in constants.items():
            if array.type.quant is not None:
                quant_type = _with_quantized_parameter(quant_type, name.rpartition(".")[2], array)
    # What a profile refuses as parameters is left to the run, which says where it is.
    except QirError:
        return None
    return None if quant_type.dynamic else quant_type


def _with_quantized_parameter(quant: QuantType, name: str, array: Array) -> QuantType:
    """Returns the type with numbers that are quantized themselves."""
    if name == "scale":
        return replace(quant, scale=array, scale_dtype=array.type.express)
    return replace(quant, zero=array)


# -- ops that only move quantized values ----------------------------------------------------------


def _moved_type(value: Value, agreed: AgreedTypes) -> QuantType | None:
    """Returns the type of integers that were only moved, where that of the integers before is
    known."""
    node = value.node
    sources = [v for v in tied(node) if v is not value]
    if len(sources) != 1:
        return None
    quant = _static_type(sources[0], agreed)
    return None if quant is None else _type_after_move(node, quant)


def _static_type(value: Value, agreed: AgreedTypes) -> QuantType | None:
    """Returns the static type that a value has, or can have."""
    quant = agreed[value] if value in agreed else value.type.quant
    return None if quant is None or quant.dynamic else quant


def _type_after_move(node: Node, quant: QuantType) -> QuantType | None:
    op_spec = spec(node.op)
    if op_spec.move is None:
        return quant
    return op_spec.move(make_call(node.op, node.operands, node.attrs), quant)


def _drop_disagreeing(graph: Graph, agreed: AgreedTypes) -> bool:
    """Opens types on which values of the same integers disagree; returns whether any did."""
    changed = False
    for node in graph:
        connected = tied(node)
        if not any(agreed.get(v) for v in connected):
            continue
        types = [_static_type(v, agreed) for v in connected]
        # concat takes parts of several quantized types, and converts them.
        if None not in types and (node.op == "concat" or _results_agree(node, agreed)):
            continue
        for value in connected:
            if agreed.get(value) is not None:
                agreed[value] = None
                changed = True
    return changed


def _results_agree(node: Node, agreed: AgreedTypes) -> bool:
    results = [_static_type(v, agreed) for v in node.results]
    for value in tied(node):
        quant = _static_type(value, agreed)
        moved = (
            _type_after_move(node, quant)
            if quant is not None and value not in node.results
            else None
        )
        if moved is not None and not all(
            result is not None and moved.has_same_mapping(result) for result in results
        ):
            return False
    return True


# -- folding --------------------------------------------------------------------------------------


def _fold(graph: Graph, value: Value, quant: QuantType) -> None:
    tensor_type = value.type.with_element(quant)
    if (constant := value.constant) is not None:
        graph.set_attrs(value.node, data=Array(constant.contents, tensor_type, constant.name))
    graph.set_type(value, tensor_type)
    places = [(use.node, use.slot) for use in value.uses]
    if len(value.node.results) == 1 and value.node.op not in STATED_TYPE_OPS:
        places.append((value.node, ""))
    for node, slot in places:
        for name in _companions(node, slot):
            graph.set_operand(node, name, None)


def _fold_inner(graph: Graph, node: Node) -> int:
    count = 0
    for slot, element in list(node.inner.items()):
        if isinstance(element, QuantType) and element.dynamic and _companions(node, slot):
            static_type = _type_by_companions(graph, node, slot, element)
            if static_type is not None:
                for name in _companions(node, slot):
                    graph.set_operand(node, name, None)
                graph.set_inner(node, slot, static_type)
                count += 1
    return count
