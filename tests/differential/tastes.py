"""What a random integer network may be made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .spelling import Kind

Style: TypeAlias = Literal["dyadic", "order", "free"]
STYLES: tuple[Style, ...] = ("dyadic", "order", "free")


@dataclass(frozen=True)
class Taste:
    """What a network may be made of."""

    kind: Kind = "u8"
    style: Style = "dyadic"
    ops: tuple[str, ...] = ()
    layers: int = 5
    tails: float = 0.4
    """How many convolutions, products and sums have a relu or clip."""
    loose: float = 0.0
    """How many of these cut off integers that the rounding would keep."""
    specials: float = 0.1
    """How many float inputs hold NaN, infinities and numbers at the ends of float32."""
    wraps: float = 0.03
    """How many biases are so large that 32-bit sums wrap."""
    gains: float = 0.2
    """How many Gemm have an alpha."""
    real_ends: float = 0.3
    """How many networks end in a Gemm whose result stays float."""
    narrow_first: bool = True
    """Whether the first operand of a sum may be the one that is repeated."""


ALL = (
    *("conv", "conv", "depthwise", "pointwise", "add", "add", "add_constant", "mul"),
    *("scale", "max_pool", "average_pool", "global_pool", "concat", "sigmoid", "softmax"),
    *("reshape", "transpose", "requantize", "gemm", "gemm", "matmul", "attend"),
)
