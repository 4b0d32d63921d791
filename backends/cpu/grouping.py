"""Groups a QDQ model into the integer ops that the kernels compute, and records it in a ledger."""

from __future__ import annotations

from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.kernel_groups import is_float
from qir.analysis.quantized_regions import touches_quantized
from qir.ir.graph import Graph
from qir.ir.inlining import inline
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.quantized_ops import CONVERSION_OPS, STRUCTURAL_OPS
from qir.ledger import Ledger
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.rewrite.fusing import CONVOLUTIONS_1D_3D, ChainMatch

from .kernel_types import KERNEL_PROFILE

_NO_KERNEL = CONVERSION_OPS | STRUCTURAL_OPS | {"foreign", "recode"}


def group(graph: Graph, ledger: Ledger) -> None:
    """Groups a graph in QDQ form by the profile that it names.

    Matrix products that this profile leaves in float are computed on integers all the same: no
    order is defined for float sums, so that no kernel could match them. A graph of the kernels' own
    profile, or of none, gets every integer op that computes the same floats.

    A graph that has integer ops was grouped before and stays as it is. So does one in which the
    profile groups nothing.
    """
    parts = graphs_with_bodies(graph)
    if any(_computes_on_integers(node) for part in parts for node in part):
        return
    for part in parts:
        profile_name = part.profile or graph.profile or KERNEL_PROFILE
        if profile_name == KERNEL_PROFILE:
            FuseQdq().run(part, ledger)
        elif not is_float(part):
            before = len(ledger)
            Group(profile_name).run(part, ledger)
            if len(ledger) > before:
                # Only where the profile grouped something: a model that it leaves in float stays
                # so.
                _FuseProducts().run(part, ledger)


def _computes_on_integers(node: Node) -> bool:
    """Returns whether an op computes on integers; one that only moves them does not."""
    if node.op in _NO_KERNEL or not touches_quantized(node):
        return False
    return bool(node.stages) or not spec(node.op).traits.value_preserving


class _FuseProducts(FuseQdq):
    """Fuses matrix products and convolutions alone."""

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        return match.anchor.op in INTEGER_SUM_LAYERS | CONVOLUTIONS_1D_3D and super().allows(
            match, graph
        )


def unwrap(graph: Graph) -> None:
    """Inlines fused kernels: each of their ops has a kernel here, or falls back."""
    for part in graphs_with_bodies(graph):
        for node in [n for n in part if n.op == "fused" and n.bodies]:
            body = part.body(node, "body")
            operands = [node.operands[value.name] for value in body.inputs]
            inlined = inline(part, body, operands, node)
            for old, new in zip(node.results, body.outputs.values(), strict=True):
                part.replace(old, inlined[new])
            part.remove(node)
