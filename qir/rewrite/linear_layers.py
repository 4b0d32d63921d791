"""Products that a runtime computes as linear layers: gemm, matmul, and an add of a bias after
it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir import lazy_arrays
from qir.ir.dtype import I32, I64
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.profiles import Profile
from qir.query.alignment import permute

# A linear layer is x @ w^T + bias; a gemm with another factor or a transposed input is none.
_PLAIN: Mapping[str, float | bool] = {"trans_a": False, "alpha": 1.0, "beta": 1.0}


def knows_linear(profile: Profile) -> bool:
    """Returns whether a profile has linear layers and no gemm."""
    heads = {group.chain[0] for group in profile.groups}
    return "linear" in heads and "gemm" not in heads


def as_linear(graph: Graph, profile: Profile, ledger: Ledger) -> int:
    """Rewrites products with quantized constants as linear layers, where a profile has those and no
    gemm.

    Returns how many.
    """
    if not knows_linear(profile):
        return 0
    count = 0
    for node in list(graph):
        if node in graph and node.op in ("gemm", "matmul") and plain_product(node):
            message = _replace(graph, node)
            ledger.add(Change.REGROUPED, "group", node.name, message)
            count += 1
    if count:
        graph.prune()
    return count


def plain_product(node: Node, *, real: bool = False) -> bool:
    """Returns whether a product is of quantized data and a matrix of quantized constants.

    In a graph without quantized values: of float data and a float constant.
    """
    if node.stages or node.schemes or any(node.attrs.get(k, v) != v for k, v in _PLAIN.items()):
        return False
    a, weight = node.operands["a"], _matrix(node, real=real)
    if weight is None or weight.type.rank != 2 or a.type.rank < 2:
        return False
    quant = weight.type.quant
    if real:
        if quant is not None or a.type.quant is not None:
            return False
    elif a.node.op != "dequantize" or a.type.quant or quant is None or quant.dynamic:
        return False
    elif quant.granularity is not None and quant.axis not in (0, 1):
        return False
    bias = node.operands.get(spec(node.op).traits.bias or "")
    return bias is None or _row(bias, weight, node) is not None


def adds_row(node: Node, *, real: bool = False) -> Node | None:
    """Returns the add of a bias after a product without one, if it is the product's only reader."""
    weight = _matrix(node, real=real)
    if weight is None or spec(node.op).traits.bias in node.operands:
        return None
    found = _added(node, weight)
    return found[0] if found else None


def _matrix(node: Node, *, real: bool = False) -> Value | None:
    """Returns the constant after a product's second operand: its quantized values, be it
    dequantized before or after a transpose; None where there are none."""
    value = node.operands["b"]
    if not real:
        value = _before(value)
        if value.node.op != "dequantize" or value.type.quant is not None:
            return None
        value = _before(value.node.operands["x"])
    return value if value.constant is not None else None


def _before(value: Value) -> Value:
    """Returns what a transpose of a matrix turns; the value itself where it is none."""
    node = value.node
    turns = node.op == "transpose" and value.type.rank == 2 and node.attrs["perm"] == (1, 0)
    return node.operands["x"] if turns else value


def _is_turned(node: Node) -> bool:
    """Returns whether a product's constant is as [out, in], as a linear layer has it."""
    value, is_transposed = node.operands["b"], node.attrs.get("trans_b") is True
    # A transpose may stand before or after the dequantize, or on both sides: each turns it once.
    for _ in range(2):
        is_transposed ^= _before(value) is not value
        value = _before(value)
        value = value.node.operands["x"] if value.node.op == "dequantize" else value
    return is_transposed


def _row(value: Value, weight: Value, node: Node) -> tuple[Value, Array] | None:
    """Returns a constant that is added to each row: where it is, and its elements along one
    axis."""
    source = value.node.operands["x"] if value.node.op == "dequantize" else value
    constant, quant = source.constant, source.type.quant
    if constant is None or (quant is None) is (source is not value):
        return None
    if quant is not None and quant.storage not in (I32, I64):
        return None
    assert weight.constant is not None
    wide = weight.constant.contents.shape[0 if _is_turned(node) else 1]
    if source.type.shape == (wide,):
        return source, constant
    # A bias of one number, or with leading axes of 1, is repeated or flattened to one a channel.
    if (quant and quant.granularity) or constant.contents.shape[-1:] not in ((), (1,), (wide,)):
        return None
    if constant.contents.size not in (1, wide) or constant.contents.ndim > node.result.type.rank:
        return None
    data = np.broadcast_to(constant.data.reshape(-1), (wide,))
    return source, Array(data, TensorType((wide,), source.type.element), constant.name)


def _added(node: Node, weight: Value) -> tuple[Node, Value] | None:
    """Returns the add after a product without a bias that alone reads it, and what it adds to
    rows."""
    # Only an add that nobody else reads beside can be the bias.
    use = node.result.only_use
    if use is None or use.node.op != "add" or use.node.stages or use.node.schemes:
        return None
    other = use.node.operands["b" if use.slot == "a" else "a"]
    same = use.node.result.type == node.result.type and use.node.profile == node.profile
    return (use.node, other) if same and _row(other, weight, node) else None


def _replace(graph: Graph, node: Node) -> str:
    """Puts a linear layer in the place of a product; says what became one."""
    weight = _matrix(node)
    assert weight is not None
    bias = node.operands.get(spec(node.op).traits.bias or "")
    bias_add = None if bias else _added(node, weight)
    last = bias_add[0] if bias_add else node
    bias = bias_add[1] if bias_add else bias
    operands = {"x": node.operands["a"], "w": _weight(graph, node, weight)}
    if bias is not None:
        operands["bias"] = _bias(graph, node, bias, weight)
    origins = [*node.origins, *(last.origins if bias_add else ())]
    layer = graph.add(
        "linear",
        operands,
        types=[last.result.type],
        before=last,
        origins=origins,
        profile=node.profile,
    )
    replaced = f"{node.op} and add" if bias_add else node.op
    graph.substitute(last, layer.result, gone=() if last is node else (node,))
    return f"{replaced} of quantized constants is a linear layer"


def _weight(graph: Graph, node: Node, quantized: Value) -> Value:
    """Returns the quantized values of a matrix [out, in], dequantized."""
    old, constant = _before(node.operands["b"]), quantized.constant
    assert constant is not None
    if not _is_turned(node):
        kind = permute(quantized.type, [1, 0])
        constant = Array(lazy_arrays.transposed(constant.contents, (1, 0)), kind, constant.name)
    elif old.node.operands["x"] is quantized:
        return old
    return _real(graph, node, old, quantized, constant)


def _bias(graph: Graph, node: Node, value: Value, weight: Value) -> Value:
    found = _row(value, weight, node)
    assert found is not None
    source, row = found
    if row is source.constant:
        return value
    if source is not value:
        return _real(graph, node, value, source, row)
    made = graph.constant(row, name=graph.fresh(f"{value.name}.row"), before=node)
    graph.set_origins(made.node, value.node.origins)
    return made


def _real(graph: Graph, node: Node, old: Value, quantized: Value, array: Array) -> Value:
    """Other quantized constants, dequantized as the old ones are."""
    constant = graph.constant(array, name=graph.fresh(f"{quantized.name}.turned"), before=node)
    graph.set_origins(constant.node, quantized.node.origins)
    dequantized = graph.add(
        "dequantize", {"x": constant}, old.node.attrs, before=node, origins=old.node.origins
    )
    return dequantized.result
