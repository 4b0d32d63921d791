"""Whether the sums of a model's products can leave 32 bits, and sums of pairs 16: layer by layer.

The bounds are proofs from weights, zero points, biases and bounds of quantized values: some input
meets each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.ir.verify import NodeContext, walk
from qir.ir.verify.accumulators import INT32, Pairs, products, signed_bits, sum_bounds, worst_pair
from qir.ir.verify.step import Product
from qir.reference.constants import compute_constants

_SUMS = re.compile("conv|matmul|gemm|linear|einsum|lstm|gru|rnn|attention", re.IGNORECASE)
"""What names of foreign ops hold that sum products."""


@dataclass(frozen=True, slots=True)
class SumRange:
    """The range of the sums of a quantized product."""

    node: str
    op: str
    depth: int | None
    """Products in one sum; None where a size is not known."""
    least: int | None
    greatest: int | None
    """None where nothing bounds the sum; `why` says why."""
    channel: int | None
    """The output channel that goes furthest, counted over all of them."""
    static: bool
    """Whether the weights are constants; if not, the bounds hold for the worst of their type."""
    pairs: Pairs | None
    """Sums of two products as CPUs without VNNI make them in 16 bits; None for other quantized
    values than 8-bit ones times signed 8-bit ones, and for transposed convolutions, which fix no
    order."""
    why: str = ""
    slot: str = ""
    """What is before the product's slots: nothing, or the place of a later stage: `2.`"""
    path: str = ""
    """The graph, and the nodes and bodies it is in."""
    origin: str = ""

    @property
    def bits(self) -> int | None:
        """Bits of the narrowest signed number that holds every sum."""
        if self.least is None or self.greatest is None:
            return None
        return signed_bits(self.least, self.greatest)

    @property
    def headroom(self) -> int | None:
        """Bits of 32 that no sum needs; negative where 32 do not hold them."""
        return None if self.bits is None else 32 - self.bits

    @property
    def wraps(self) -> bool | None:
        """Whether some input makes a 32-bit sum wrap; None if unknown."""
        if self.least is None or self.greatest is None:
            return None
        return self.least < INT32[0] or self.greatest > INT32[1]

    @property
    def saturates(self) -> bool | None:
        """Whether some input makes a 16-bit sum of a pair saturate; None where there are none."""
        return None if self.pairs is None else self.pairs.saturates

    def to_json(self) -> dict[str, object]:
        """Returns the fields, and what follows from them, as JSON takes them."""
        fields = asdict(self) | {"bits": self.bits, "headroom": self.headroom, "wraps": self.wraps}
        if self.pairs is not None:
            fields["pairs"] = asdict(self.pairs) | {"saturates": self.pairs.saturates}
        return fields


def overflow(graph: Graph) -> tuple[SumRange, ...]:
    """Returns the sums of every quantized product, in QDQ and integer form, bodies included.

    A foreign op that sums quantized values by its name is reported as unknown.
    """
    ranges: list[SumRange] = []
    for context in walk(graph, compute_constants):
        ranges += [sums_of(context, product) for product in products(context)]
        ranges += _unknown(context)
    return tuple(ranges)


def _unknown(context: NodeContext) -> Iterator[SumRange]:
    """Yields what is to be said of a foreign op: it may sum quantized values, and nobody knows
    how."""
    node = context.node
    if node.op != "foreign":
        return
    framework, op = (str(node.attrs.get(name, "")) for name in ("framework", "op"))
    if not _SUMS.search(op) or not any(
        _holds_quantized_integers(v.type) for v in node.operands.values()
    ):
        return
    reason = f"kept as {framework} {op}"
    yield SumRange(
        node.name,
        op,
        None,
        None,
        None,
        None,
        static=False,
        pairs=None,
        why=reason,
        path=context.look.path,
        origin=str(node.origins[0]) if node.origins else "",
    )


def _holds_quantized_integers(kind: TensorType) -> bool:
    """Returns whether a tensor is quantized, or holds integers of as few bits."""
    dtype = kind.dtype
    return kind.rank > 1 and (kind.quant is not None or (dtype.is_integer and dtype.bits <= 16))


def sums_of(context: NodeContext, product: Product) -> SumRange:
    """Returns the sums of one integer product."""
    node, bounds = context.node, sum_bounds(product)
    depth, least, greatest, channel = (None,) * 4 if isinstance(bounds, str) else bounds
    static = product.weights is not None
    return SumRange(
        node.name,
        product.step.spec.name,
        depth,
        least,
        greatest,
        channel if static else None,
        static,
        worst_pair(product),
        bounds if isinstance(bounds, str) else "",
        product.step.prefix,
        context.look.path,
        str(node.origins[0]) if node.origins else "",
    )
