"""Finds the ops that run on integers, in a graph of integer form or of QDQ form.

In integer form an op's operands and result have quantized types. In QDQ form the op is between
`dequantize` and `quantize`; a fused activation may be between the op and its `quantize`.
"""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.dtype import BF16, F16
from qir.ir.graph import Graph
from qir.ir.node import GraphLike, Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType

STRUCTURAL_OPS = frozenset({"input", "constant", "output"})
"""Ops that compute nothing."""
PLAIN_INTEGER_PRODUCTS = frozenset({"matmul_integer", "conv_integer"})
"""Products of plain integers, as in models with dynamic quantization (ONNX MatMulInteger)."""
CONVERSION_OPS = frozenset({"quantize", "dequantize", "requantize"})
"""Ops between floats and integers, or between two quantized types."""
RETYPING_OPS = CONVERSION_OPS | {"recode"}
"""Ops that give a value another quantized type, or none."""
QPARAMS_OPS = frozenset({"choose_qparams", "qparams"})
"""Ops that compute quantization parameters."""
INNER_ROUNDING_OPS = frozenset({"rnn", "lstm", "gru", "attention"})
"""Ops with quantized intermediate values, whose types are in `Node.inner`."""
NON_COMPUTE_OPS = STRUCTURAL_OPS | RETYPING_OPS | QPARAMS_OPS | {"foreign", "fake_quantize"}
"""Ops that compute nothing, or that only give integers a meaning."""


def is_integral(node: Node) -> bool:
    """Returns whether an op works on sizes, flags or other integers alone, never on floats."""
    if node.op in ("foreign", "fused") or node.op in PLAIN_INTEGER_PRODUCTS or node.bodies:
        return False
    values = (*node.operands.values(), *node.results)
    return node.op in ("shape", "size") or not any(
        v.type.quant or v.type.express.is_float for v in values
    )


def is_float_width_cast(node: Node) -> bool:
    """Returns whether an op is a cast between 16-bit floats and wider ones."""
    if node.op != "cast":
        return False
    values = (*node.operands.values(), *node.results)
    narrow = any(v.type.element in (F16, BF16) for v in values)
    return narrow and all(v.type.quant is None and v.type.dtype.is_float for v in values)


def stored_quant_type(value: Value) -> QuantType | None:
    """Returns the quantized type that a value is stored with: its own, or its only `quantize`'s."""
    if value.type.quant is not None:
        return value.type.quant
    use = value.only_use
    if use is not None and use.node.op == "quantize":
        return use.node.result.type.quant
    return None


def source_quant_type(value: Value) -> QuantType | None:
    """Returns the quantized type a value is read from: its own, or its `dequantize` operand's."""
    if value.type.quant is None and value.node.op == "dequantize":
        return value.node.operands["x"].type.quant
    return value.type.quant


def quantized_nodes(graph: GraphLike) -> dict[Node, bool]:
    """Returns for each op that computes whether it runs on quantized values."""
    # One pass in topological order: `_stays_in_kernel` asks about producers, decided before.
    out: dict[Node, bool] = {}
    for node in graph:
        if node.op not in STRUCTURAL_OPS and node.op not in CONVERSION_OPS:
            out[node] = _is_integer_product(node) or (
                _has_quantized_operands(node, out) and _has_quantized_result(node)
            )
    return out


def _is_integer_product(node: Node) -> bool:
    """Returns whether an op multiplies integers, even where its result is float."""
    traits = spec(node.op).traits
    if node.op in PLAIN_INTEGER_PRODUCTS or traits.weight is None:
        return node.op in PLAIN_INTEGER_PRODUCTS
    pair = [node.operands.get(slot) for slot in (traits.data, traits.weight)]
    return all(value is not None and value.type.quant is not None for value in pair)


def _has_quantized_operands(node: Node, known: dict[Node, bool]) -> bool:
    if node.op == "foreign":
        return False
    op_spec = spec(node.op) if not node.stages else spec(node.stages[0].op)
    has_quantized = False
    for slot, value in node.operands.items():
        if slot == op_spec.traits.bias or not value.type.express.is_float:
            continue  # a bias is in accumulator units, a shape is no float: neither decides
        if source_quant_type(value) is None and not _stays_in_kernel(node, value, known):
            return False
        has_quantized = True
    return has_quantized


def _stays_in_kernel(node: Node, value: Value, known: dict[Node, bool]) -> bool:
    """Returns whether a float value stays inside a fused kernel that runs on quantized values."""
    # The kernel keeps it in registers: elementwise, read once, and quantized nowhere before.
    return (
        spec(node.op).traits.elementwise
        and value.only_use is not None
        and known.get(value.node, False)
        and stored_quant_type(value) is None
    )


def _has_quantized_result(node: Node) -> bool:
    # QDQ form: the `quantize` may come after fused activations, so these are skipped.
    value = node.results[0] if node.results else None
    while value is not None:
        if stored_quant_type(value) is not None:
            return True
        use = value.only_use
        if use is None or not use.node.results or not _is_activation(use.node):
            return False
        value = use.node.results[0]
    return False


def _is_activation(node: Node) -> bool:
    return node.op not in CONVERSION_OPS and spec(node.op).traits.elementwise


def longest_chain(graph: Graph, known: Mapping[Node, bool] | None = None) -> tuple[Node, ...]:
    """Returns the longest path of ops on quantized values that no float op interrupts.

    `known` says which ops are quantized; without it `quantized_nodes` does.
    """
    integer = quantized_nodes(graph) if known is None else known
    length: dict[Node, int] = {}
    previous: dict[Node, Node | None] = {}
    for node in graph:
        producers = [v.node for v in node.operands.values()]
        best_producer = max(producers, key=lambda p: length.get(p, 0), default=None)
        longest = length.get(best_producer, 0) if best_producer is not None else 0
        if integer.get(node, False):
            length[node] = longest + 1
        else:  # quantize and dequantize neither count nor end a path; a float op ends it
            length[node] = longest if node.op in CONVERSION_OPS else 0
        previous[node] = best_producer if longest else None
    last = max(graph, key=lambda n: length[n], default=None)
    path: list[Node] = []
    while last is not None and length[last]:
        if integer.get(last, False):
            path.append(last)
        last = previous[last]
    return tuple(reversed(path))
