"""What is wanted for a tensor: a plan, not a fact. Materializing turns it into a type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from qir.errors import ParseError
from qir.ir.dtype import DType, dtype

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
    share: str = ""
    """Name of the share set: slots of one set hold one map."""

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
        if self.share:
            parts.append(f"share({self.share})")
        return " ".join(parts)


_SCHEME = re.compile(
    r"(?P<storage>\w+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?"
    r"(?: (?P<symmetry>symmetric|affine))?(?: (?P<grain>tensor|channel))?"
    r"(?: fixed\((?P<scale>[^:()]+):(?P<zero>-?\d+)\)| (?!share\()(?P<rule>[\w.:\-]+))?"
    r"(?: share\((?P<share>.*)\))?"
)


def parse_scheme(text: str) -> Scheme:
    """Reads such as `i8<-127:127> symmetric channel`; ParseError for text that is no scheme."""
    found = _SCHEME.fullmatch(text.strip())
    if not found:
        raise ParseError(f"{text[:60]!r} is no scheme, such as 'u8 affine tensor minmax'")
    parts = found.groupdict()
    storage = dtype(parts["storage"])
    if not storage.is_integer:
        raise ParseError(f"{text[:60]!r}: {storage} stores no integer codes")
    grain: Literal["tensor", "channel"] = "channel" if parts["grain"] == "channel" else "tensor"
    try:
        return Scheme(
            storage,
            parts["symmetry"] == "symmetric",
            grain,
            (int(parts["low"]), int(parts["high"])) if parts["low"] else None,
            parts["rule"] or "minmax",
            int(parts["zero"]) if parts["zero"] else None,
            float(parts["scale"]) if parts["scale"] else None,
            parts["share"] or "",
        )
    except ValueError as error:
        raise ParseError(f"{text[:60]!r}: {error}") from None
