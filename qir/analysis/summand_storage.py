"""Kernels that store a sum with the storage type of its summand.

Some runtimes add a second tensor in the memory of that tensor. Where it is i8 and the result u8, or
the other way round, the sum saturates at bounds that a sum of floats does not have.
"""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.numerics.stages import SumBufferStage, stage_function
from qir.profiles import profile_in, query_for_node


def saturation_note(graph: Graph, node: Node) -> str:
    """Returns the end of a ledger line that says where a kernel's sum saturates too early.

    Empty for kernels whose sums have the bounds of their result.
    """
    if len(node.stages) < 2 or node.stages[1].op != "add" or len(node.results) != 1:
        return ""
    result = node.result.type
    beside = [v.type.quant for v in node.stage_operands(1).values()]
    if result.quant is None or not beside or beside[0] is None:
        return ""
    rule = profile_in(graph, node.profile or graph.profile).resolve(query_for_node(node))
    summand, stored = beside[0].storage, result.quant.storage
    stage = stage_function(SumBufferStage, rule.stage.sum_reads)
    limits = stage.read_limit(summand, stored), stage.write_limit(summand, stored)
    if stage.written_as(summand, stored) == stored and limits == (None, None):
        return ""
    return f", where its kernel stores the sum as {summand} like its summand, and saturates"
