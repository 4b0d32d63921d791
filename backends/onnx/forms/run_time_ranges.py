"""Dynamic quantization by another framework's range rule: ONNX has one rule of its own."""

from __future__ import annotations

from dataclasses import replace

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import RECURRENT_OPS
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.reference.ranges import RULES

from ..writer.chosen_ops import BY_OPERATORS
from ..writer.writer import STEP

_ONNX = "onnx.dynamic"


def by_onnx(graph: Graph, ledger: Ledger) -> int:
    """Chooses scales and zero points of whole u8 tensors as DynamicQuantizeLinear does.

    States of recurrent layers that are quantized in each step stay float.
    """
    return sum(_rule(graph, node, ledger) or _state(graph, node, ledger) for node in list(graph))


def _rule(graph: Graph, node: Node, ledger: Ledger) -> bool:
    attrs = node.attrs
    if node.op != "choose_qparams" or attrs["rule"] not in set(RULES) - BY_OPERATORS:
        return False
    if str(attrs["storage"]) != "u8" or attrs["keep"] or attrs["symmetric"] is True:
        return False
    scale = node.results[0]
    said = f"{_ONNX} chooses scale and zero point in the place of {attrs['rule']}"
    graph.set_attrs(node, rule=_ONNX, bounds=(), scale_type=F32)
    graph.set_type(scale, scale.type.with_element(F32))
    for user in scale.users:
        for value in (*user.operands.values(), *user.results):
            _in_f32(graph, value)
    ledger.add(Change.APPROXIMATED, STEP, node.name, said)
    return True


def _in_f32(graph: Graph, value: Value) -> None:
    quant = value.type.quant
    if isinstance(quant, QuantType) and quant.dynamic and quant.scale_dtype is not None:
        graph.set_type(value, value.type.with_element(replace(quant, scale_dtype=None)))


def _state(graph: Graph, node: Node, ledger: Ledger) -> bool:
    inner = dict(node.inner)
    if node.op not in RECURRENT_OPS or not inner:
        return False
    if not all(isinstance(kind, QuantType) and kind.dynamic for kind in inner.values()):
        return False
    for slot in inner:
        graph.set_inner(node, slot, None)
    said = f"ONNX's {node.op.upper()} does not quantize its state in each step: it stays float"
    ledger.add(Change.APPROXIMATED, STEP, node.name, said)
    return True
