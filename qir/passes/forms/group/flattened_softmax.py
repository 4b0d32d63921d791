"""Matches a softmax over several flattened axes, which some runtimes compute as one kernel."""

from __future__ import annotations

from qir.ir.node import Node
from qir.records import record

_KINDS = ("softmax", "log_softmax")


@record
class SoftmaxNodes:
    """The three nodes of one op of the source."""

    flat: Node
    soft: Node
    back: Node


def match_flattened_softmax(node: Node) -> SoftmaxNodes | None:
    """Returns the three that a reshape ends."""
    soft = node.operands["x"].node if node.op == "reshape" else node
    flat = soft.operands["x"].node if soft.op in _KINDS else node
    if flat.op != "flatten" or any(n.stages or n.schemes for n in (flat, soft, node)):
        return None
    # The frontend writes one source op as these three; equal origins tell them from a user's
    # reshapes.
    if not soft.origins or not soft.origins == flat.origins == node.origins:
        return None
    have_one_use = (use is not None for use in (flat.result.only_use, soft.result.only_use))
    return SoftmaxNodes(flat, soft, node) if all(have_one_use) else None


def is_restoring_reshape(node: Node) -> bool:
    """Returns whether a reshape is part of such a softmax, and moves nothing by itself."""
    return match_flattened_softmax(node) is not None
