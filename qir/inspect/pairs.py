"""Under which profiles pairs of products saturate in 16 bits on a processor."""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir.node import Node
from qir.ir.verify import accumulators
from qir.ir.verify.step import Product
from qir.profiles import profile, profile_names, query_for_node


def saturating_profiles(
    node: Node, made: Product, profiles: Sequence[str], isa: str
) -> tuple[str, ...]:
    """Returns the profiles under which pairs of products can saturate on a processor, or the
    quantized values of a window next to zero points of weights."""
    query = query_for_node(node, isa=isa)
    names = profile_names() if query.forms else profiles
    said = {name: profile(name).resolve(query).acc.pairs for name in names}
    lossy = {how for how in set(said.values()) if saturates_in_16_bits(how, made)}
    return tuple(name for name, how in said.items() if how in lossy)


def saturates_in_16_bits(how: str, made: Product) -> bool:
    """Returns whether something saturates in 16 bits where pairs of terms are added so."""
    signed = made.x.storage.kind == "int" and made.step.call.op.startswith("conv")
    if how == "exact" or (how == "halve_signed" and signed):
        return False
    inside = how in ("saturate_i16", "halve_signed")
    pairs = accumulators.worst_pair(made, within_tap=inside)
    if pairs is None:
        return False
    wide = how == "saturate_taps" and accumulators.window(made) > accumulators.INT16[1]
    return pairs.saturates or wide
