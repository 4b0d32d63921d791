"""Kernels of a profile that multiply other weights than those of the graph."""

from __future__ import annotations

from qir.analysis.int32_overflow import profile_name_of
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.layers import TRANSPOSED_CONVOLUTIONS
from qir.profiles import profile_in, query_for_node


def misread_note(graph: Graph, node: Node) -> str:
    """Returns the end of a ledger line that says that a node's kernel multiplies other weights.

    Empty where the profile reads weights as they are, or where the channels of a group are as many
    in as out: then those that are read are the same.
    """
    first = node.stages[0].op if node.stages else node.op
    profile_name = profile_name_of(graph, node)
    if first not in TRANSPOSED_CONVOLUTIONS or not profile_name:
        return ""
    operands = node.stage_operands(0) if node.stages else node.operands
    attrs = node.stages[0].attrs if node.stages else node.attrs
    shape, groups = operands["w"].type.shape, attrs["groups"]
    made = shape[1]
    assert isinstance(groups, int)
    if isinstance(made, int) and shape[0] == made * groups:
        return ""
    method = profile_in(graph, profile_name).resolve(query_for_node(node)).method
    if method is None or not method.params.get("misread"):
        return ""
    return f", which multiply the weights as they are; its kernel of {profile_name} misreads them"


__all__ = ["misread_note"]
