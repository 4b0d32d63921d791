"""Under which profiles pairs of products saturate in 16 bits on a processor."""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir.node import Node
from qir.ir.verify import accumulators
from qir.ir.verify.step import Product
from qir.profiles import ProfileLibrary, profile_names, query_for_node


def saturating_profiles(
    node: Node, product: Product, profiles: Sequence[str], isa: str, library: ProfileLibrary
) -> tuple[str, ...]:
    """Returns the profiles under which pairs of products can saturate on a processor, or the
    quantized values of a window next to zero points of weights."""
    query = query_for_node(node, isa=isa)
    names = profile_names() if query.forms else profiles
    pairs_by_profile = {name: library.find(name).resolve(query).acc.pairs for name in names}
    saturating = {
        mode for mode in set(pairs_by_profile.values()) if saturates_in_16_bits(mode, product)
    }
    return tuple(name for name, mode in pairs_by_profile.items() if mode in saturating)


def saturates_under(
    profile: str, node: Node, product: Product, isa: str, library: ProfileLibrary
) -> bool:
    """Returns whether pairs of products can saturate under one profile on a processor."""
    rule = library.find(profile).resolve(query_for_node(node, isa=isa))
    return saturates_in_16_bits(rule.acc.pairs, product)


def saturates_in_16_bits(mode: str, product: Product) -> bool:
    """Returns whether something saturates in 16 bits where pairs of terms are added so."""
    is_signed_conv = product.x.storage.kind == "int" and product.step.call.op.startswith("conv")
    if mode == "exact" or (mode == "halve_signed" and is_signed_conv):
        return False
    within_tap = mode in ("saturate_i16", "halve_signed")
    pairs = accumulators.worst_pair(product, within_tap=within_tap)
    if pairs is None:
        return False
    window_overflows = (
        mode == "saturate_taps" and accumulators.window(product) > accumulators.INT16[1]
    )
    return pairs.saturates or window_overflows
