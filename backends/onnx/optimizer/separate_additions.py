"""Keeps additions after dynamic integer products separate, so that they are not fused.

Of MatMul and Add onnxruntime's optimizer makes a Gemm, between reshapes where data have not two
axes. A Gemm that adds float values is no quantized kernel; after a reshape it becomes MatMulNBits,
which rounds its data once more. A Sum adds the same numbers, and is joined to nothing.
"""

from __future__ import annotations

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger

from ..writer.writer import STEP

_PRODUCTS = {"matmul": ("a", "b"), "linear": ("x", "w")}
_SAID = (
    "is added by Sum: of an Add onnxruntime's optimizer makes a Gemm, and computes the product in "
    "float32 or on data that it rounds once more"
)


def add_apart(graph: Graph, ledger: Ledger) -> int:
    """Adds by a sum what is added to products of computed quantized values; says how many there
    are.

    Those that a source has between its own dequantizes stay, as onnxruntime computes them there.
    """
    count = 0
    for node in list(graph):
        if not _chosen(node):
            continue
        if "bias" in node.operands:
            made = _split(graph, node)
        elif last := _joined(node):
            made = _summed(graph, last, last.operands["a"], last.operands["b"])
        else:
            continue
        ledger.add(Change.EXACT, STEP, made.name, _SAID)
        count += 1
    return count


def _chosen(node: Node) -> bool:
    """Returns whether it is an integer product, those of its data computed, that gives floats."""
    slots = _PRODUCTS.get(node.op)
    if slots is None or node.stages or node.schemes or node.result.type.element != F32:
        return False
    bias = node.operands.get("bias")
    if bias is not None and bias.type.element != F32:
        return False
    data, weights = (node.operands[slot] for slot in slots)
    if node.op == "linear" and data.type.rank == 2:  # a Gemm, whatever it adds
        return False
    return _codes(weights) is not None and _computed(data) and weights.type.rank == 2


def _computed(value: Value) -> bool:
    """Returns whether a value has quantized values whose scale is one and computed, and that no
    dequantize of the source reads."""
    codes = _codes(value)
    kept = value.node.op == "dequantize" and any(
        o.op == "DequantizeLinear" for o in value.node.origins
    )
    quant = codes.type.quant if codes is not None else None
    return quant is not None and quant.dynamic and quant.granularity is None and not kept


def _codes(value: Value) -> Value | None:
    """Returns the quantized values that a value has, or that it is the float values of."""
    if value.type.quant is not None:
        return value
    return value.node.operands["x"] if value.node.op == "dequantize" else None


def _joined(node: Node) -> Node | None:
    """Returns the addition that alone reads a product, of a row, or of a matrix to one."""
    use = node.result.only_use
    if use is None or use.node.op != "add" or use.node.stages or use.node.schemes:
        return None
    other = use.node.operands["b" if use.slot == "a" else "a"]
    rank = node.result.type.rank
    fits = other.type.element == F32 and (other.type.rank == 1 or other.type.rank == rank == 2)
    return use.node if fits and use.node.result.type.quant is None else None


def _split(graph: Graph, node: Node) -> Node:
    """Takes the bias out of a product; what adds it then."""
    product = graph.add(
        node.op,
        {slot: v for slot, v in node.operands.items() if slot != "bias"},
        node.attrs,
        name=graph.fresh(f"{node.name}.product"),
        before=node,
        origins=node.origins,
        profile=node.profile,
        inner=node.inner,
    )
    for slot, origins in node.slot_origins.items():
        if slot != "bias":
            graph.set_slot_origins(product, slot, origins)
    return _summed(graph, node, product.result, node.operands["bias"])


def _summed(graph: Graph, last: Node, *parts: Value) -> Node:
    """Puts a sum in the place of what added."""
    operands = {f"xs.{i}": part for i, part in enumerate(parts)}
    origins = last.origins if last.op == "add" else ()
    made = graph.add("sum", operands, before=last, origins=origins, profile=last.profile)
    graph.substitute(last, made.result)
    return made
