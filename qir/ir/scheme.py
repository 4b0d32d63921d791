"""What is wanted for a tensor: a plan, not a fact. Materializing turns it into a type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qir.ir.dtype import DType

RESULT = "result"
"""The slot name under which a node's (first) result has its scheme."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Storage, bounds, symmetry, granularity and range rule wanted for one slot."""

    storage: DType
    symmetric: bool = False
    grain: Literal["tensor", "channel"] = "tensor"
    bounds: tuple[int, int] | None = None
    range: str = "minmax"
    zero: int | None = None
    """A zero point that the op or target fixes; None: the range decides."""
    scale: float | None = None
    """A scale that the op or target fixes."""

    @property
    def low(self) -> int:
        return (self.bounds or self.storage.bounds)[0]

    @property
    def high(self) -> int:
        return (self.bounds or self.storage.bounds)[1]

    def __str__(self) -> str:
        bounds = f"<{self.bounds[0]}:{self.bounds[1]}>" if self.bounds else ""
        parts = [f"{self.storage}{bounds}", "symmetric" if self.symmetric else "affine", self.grain]
        if self.scale is not None:
            parts.append(f"fixed({self.scale!r}:{self.zero or 0})")
        else:
            parts.append(self.range)
        return " ".join(parts)
