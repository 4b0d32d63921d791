"""Keeps additions after dynamically quantized products out of onnxruntime's MatMulAddFusion.

It fuses MatMul and Add to a Gemm, between reshapes where data are not 2-D. A Gemm with a float bias
is no quantized kernel; after a reshape it becomes MatMulNBits, which rounds its data once more. A
Sum adds the same numbers and is not fused.
"""

from __future__ import annotations

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger

from ..writer.writer import STEP

_PRODUCT_SLOTS = {"matmul": ("a", "b"), "linear": ("x", "w")}
_SUM_NOTE = (
    "is added by Sum: of an Add onnxruntime's optimizer makes a Gemm, and computes the product in "
    "float32 or on data that it rounds once more"
)


def separate_additions(graph: Graph, ledger: Ledger) -> int:
    """Replaces the Add after dynamically quantized products by Sum; returns how many there are.

    Additions that the source has between its own dequantizes stay, as onnxruntime computes them
    there.
    """
    count = 0
    for node in list(graph):
        if not _is_dynamic_product(node):
            continue
        if "bias" in node.operands:
            addition = _split_bias(graph, node)
        elif following := _only_addition(node):
            addition = _add_by_sum(
                graph, following, following.operands["a"], following.operands["b"]
            )
        else:
            continue
        ledger.add(Change.EXACT, STEP, addition.name, _SUM_NOTE)
        count += 1
    return count


def _is_dynamic_product(node: Node) -> bool:
    """Returns whether a node is a product of integers, those of its data computed, with a float
    result."""
    slots = _PRODUCT_SLOTS.get(node.op)
    if slots is None or node.stages or node.schemes or node.result.type.element != F32:
        return False
    bias = node.operands.get("bias")
    if bias is not None and bias.type.element != F32:
        return False
    data, weights = (node.operands[slot] for slot in slots)
    if node.op == "linear" and data.type.rank == 2:  # a Gemm, whatever it adds
        return False
    return (
        _integers_of(weights) is not None and _has_computed_scale(data) and weights.type.rank == 2
    )


def _has_computed_scale(value: Value) -> bool:
    """Returns whether a value is integers with one computed scale, which no dequantize of the
    source reads."""
    quantized = _integers_of(value)
    is_from_source = value.node.op == "dequantize" and any(
        o.op == "DequantizeLinear" for o in value.node.origins
    )
    quant = quantized.type.quant if quantized is not None else None
    return quant is not None and quant.dynamic and quant.granularity is None and not is_from_source


def _integers_of(value: Value) -> Value | None:
    """Returns the integers that a value is, or that it is dequantized from."""
    if value.type.quant is not None:
        return value
    return value.node.operands["x"] if value.node.op == "dequantize" else None


def _only_addition(node: Node) -> Node | None:
    """Returns the addition that alone reads a product, if MatMulAddFusion would take it."""
    use = node.result.only_use
    if use is None or use.node.op != "add" or use.node.stages or use.node.schemes:
        return None
    other = use.node.operands["b" if use.slot == "a" else "a"]
    rank = node.result.type.rank
    # MatMulAddFusion takes a bias of rank 1, or one of the product's own rank 2.
    is_fusible = other.type.element == F32 and (
        other.type.rank == 1 or other.type.rank == rank == 2
    )
    return use.node if is_fusible and use.node.result.type.quant is None else None


def _split_bias(graph: Graph, node: Node) -> Node:
    """Moves the bias of a product to a sum after it."""
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
    return _add_by_sum(graph, node, product.result, node.operands["bias"])


def _add_by_sum(graph: Graph, last: Node, *parts: Value) -> Node:
    """Replaces an addition by a sum."""
    operands = {f"xs.{i}": part for i, part in enumerate(parts)}
    origins = last.origins if last.op == "add" else ()
    total = graph.add("sum", operands, before=last, origins=origins, profile=last.profile)
    graph.substitute(last, total.result)
    return total
