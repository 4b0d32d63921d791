"""The integer products that each profile's runtime makes of a graph, by the names of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from qir.ir.graph import Graph
from qir.ir.verify import NodeContext, walk
from qir.ir.verify.accumulators import products
from qir.ir.verify.step import Product
from qir.ledger import Ledger
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.reference.constants import compute_constants

Place: TypeAlias = tuple[str, str, int]
"""The path of a body, a node's name, and which of its products."""
Found: TypeAlias = Mapping[Place, tuple[NodeContext, Product]]


def layers(graph: Graph, profiles: Sequence[str]) -> tuple[Found, tuple[Found, ...]]:
    """Returns every integer product, fused wherever it can be or by some profile; and those by
    each.

    One on what dequantize makes is named only where every profile leaves it there.
    """
    formed = graph.copy()
    FuseQdq().run(formed, Ledger())
    all_products, own_products = dict(_products(formed)), []
    for name in profiles:
        grouped = graph.copy()
        Group(name).run(grouped, Ledger())
        kernels = _products(grouped)
        all_products = {
            p: layer
            for p, layer in all_products.items()
            if _runs_on_integers(layer[1]) or p in kernels
        }
        own_products.append(
            {p: layer for p, layer in kernels.items() if _runs_on_integers(layer[1])}
        )
    for kernels in own_products:
        all_products = {
            **all_products,
            **{place: layer for place, layer in kernels.items() if place not in all_products},
        }
    return all_products, tuple(own_products)


def _runs_on_integers(product: Product) -> bool:
    """Returns whether a product takes quantized values, not what dequantize makes of them."""
    types = [v.type for slot, v in product.step.operands.items() if slot in product.slots]
    return all(t.quant is not None or not t.dtype.is_float for t in types)


def _products(graph: Graph) -> Found:
    return {
        (context.look.path, context.node.name, i): (context, product)
        for context in walk(graph, compute_constants)
        for i, product in enumerate(products(context))
    }
