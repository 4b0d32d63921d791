"""Tells in the ledger which layers saturate in PyTorch's kernels and did not before."""

from __future__ import annotations

from qir.inspect.pairs import saturates_under
from qir.ir.graph import Graph
from qir.ir.verify import walk
from qir.ir.verify.accumulators import products
from qir.ledger import REQUEST, Change, Ledger
from qir.profiles import library_of
from qir.reference.constants import compute_constants

_ISA = "vnni"
"""Processors without VNNI add pairs in 16 bits in every layer, these in few: what saturates here
saturates everywhere."""


def tell_saturation(graph: Graph, before: str, profile: str, target: str, ledger: Ledger) -> None:
    """Notes the layers that saturate under a target's profile and not under the one before.

    Depthwise kernels of fbgemm add pairs of products in 16 bits on every processor. PyTorch's
    observers give them data of 7 bits, which reach no further; a model that was quantized for
    another runtime has 8. `graph` is grouped; `target` is named in the remedy.
    """
    library = library_of(graph)
    reason = (
        "its kernel adds pairs of products in 16 bits, where its data of 8 bits can saturate; "
        f"qir quantize MODEL --target {target} makes them 7 bits"
    )
    for context in walk(graph, compute_constants):
        node = context.node
        if any(
            saturates_under(profile, node, product, _ISA, library)
            and not saturates_under(before, node, product, _ISA, library)
            for product in products(context)
        ):
            ledger.add(Change.APPROXIMATED, "write torch", node.name, reason, basis=REQUEST)


__all__ = ["tell_saturation"]
