"""The quantization that a pass plans for a slot; `materialize` turns the plan into a type."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

from qir.errors import ParseError, SchemeError
from qir.ir.dtype import DType, dtype
from qir.records import record

RESULT = "result"
"""The slot name under which a node's (first) result has its scheme."""

_RANGE = r"[\w.:\-]+"


@record
class Scheme:
    """The planned storage, bounds, symmetry, granularity and range rule of one slot."""

    storage: DType
    symmetric: bool = False
    granularity: Literal["tensor", "channel"] = "tensor"
    bounds: tuple[int, int] | None = None
    range: str = "minmax"
    zero: int | None = None
    """A zero point that the op or target fixes; None: the range decides."""
    scale: float | None = None
    """A scale that the op or target fixes."""
    share: str = ""
    """Name of the share set: slots of one set hold one quantized type."""
    negative: DType | None = None
    """The storage for tensors with negative values, `storage` for others; None: one for all."""

    def __post_init__(self) -> None:
        low, high = self.storage.bounds
        if self.negative is not None and (low != 0 or self.negative.bounds[0] >= 0 or self.bounds):
            raise SchemeError(
                f"{self.storage}|{self.negative} by sign: name an unsigned storage first, a signed "
                "one second, and no bounds"
            )
        if self.negative is not None and self.scale is not None:
            raise SchemeError("a storage by sign has no fixed scale")
        if self.bounds == (low, high):  # one form, as above
            object.__setattr__(self, "bounds", None)
        if not low <= self.low < self.high <= high:
            raise SchemeError(f"bounds {self.low}:{self.high} are not in {self.storage}")
        # A fixed scale leaves the range rule nothing to decide: one form, so that equal plans
        # compare equal.
        if self.scale is not None:
            object.__setattr__(self, "range", "minmax")
            object.__setattr__(self, "zero", self.zero or 0)
        if not re.fullmatch(_RANGE, self.range):
            raise SchemeError(f"{self.range!r} is no name of a range rule")

    @property
    def low(self) -> int:
        """Least quantized value."""
        return (self.bounds or self.storage.bounds)[0]

    @property
    def high(self) -> int:
        """Greatest quantized value."""
        return (self.bounds or self.storage.bounds)[1]

    @property
    def storages(self) -> tuple[DType, ...]:
        """The allowed storages: two where the sign of the values decides."""
        return (self.storage,) if self.negative is None else (self.storage, self.negative)

    def with_storage(self, storage: DType) -> Scheme:
        """Returns the scheme with one of its allowed storages chosen."""
        return replace(self, storage=storage, negative=None)

    def __repr__(self) -> str:
        return f"<scheme {self}>"

    def __str__(self) -> str:
        bounds = f"<{self.bounds[0]}:{self.bounds[1]}>" if self.bounds else ""
        sign = f"|{self.negative} by sign" if self.negative else ""
        symmetry = "symmetric" if self.symmetric else "affine"
        parts = [f"{self.storage}{bounds}{sign}", symmetry, self.granularity]
        if self.scale is not None:
            parts.append(f"fixed({self.scale!r}:{self.zero or 0})")
        else:
            parts += [self.range, *([] if self.zero is None else [f"zero({self.zero})"])]
        if self.share:
            parts.append(f"share({self.share})")
        return " ".join(parts)


_SCHEME = re.compile(
    r"(?P<storage>\w+)(?:<(?P<low>-?\d{1,20}):(?P<high>-?\d{1,20})>)?"
    r"(?:\|(?P<negative>\w+) by sign)?"
    r"(?: (?P<symmetry>symmetric|affine))?(?: (?P<grain>tensor|channel))?"
    rf"(?: fixed\((?P<scale>[^:()]+):(?P<fixed>-?\d{{1,20}})\)| (?!share\()(?P<rule>{_RANGE}))?"
    r"(?: zero\((?P<zero>-?\d{1,20})\))?"
    r"(?: share\((?P<share>.*)\))?",
    re.DOTALL,
)


def parse_scheme(text: str) -> Scheme:
    """Reads such as `i8<-127:127> symmetric channel`; raises ParseError for text that is no scheme.

    `u8|i8 by sign` is u8 where no value is negative, else i8.
    """
    match = _SCHEME.fullmatch(text.strip())
    if not match:
        raise ParseError(f"{text[:60]!r} is no scheme, such as 'u8 affine tensor minmax'")
    parts = match.groupdict()
    storage = dtype(parts["storage"])
    if not storage.is_integer:
        raise ParseError(f"{text[:60]!r}: {storage} stores no integers")
    granularity: Literal["tensor", "channel"] = (
        "channel" if parts["grain"] == "channel" else "tensor"
    )
    zero_text = parts["fixed"] or parts["zero"]
    try:
        scale = float(parts["scale"]) if parts["scale"] else None
    except ValueError:
        raise ParseError(f"{text[:60]!r}: {parts['scale']} is no number") from None
    try:
        scheme = Scheme(
            storage,
            parts["symmetry"] == "symmetric",
            granularity,
            (int(parts["low"]), int(parts["high"])) if parts["low"] else None,
            parts["rule"] or "minmax",
            int(zero_text) if zero_text else None,
            scale,
            parts["share"] or "",
            dtype(parts["negative"]) if parts["negative"] else None,
        )
    except (ValueError, SchemeError) as error:
        raise ParseError(f"{text[:60]!r}: {error}") from None
    if scheme.scale is not None and not (0 < scheme.scale < math.inf):
        raise ParseError(f"{text[:60]!r}: a scale is positive and finite")
    if scheme.zero is not None and not scheme.low <= scheme.zero <= scheme.high:
        raise ParseError(
            f"{text[:60]!r}: zero {scheme.zero} is not a value of {scheme.low}..{scheme.high}"
        )
    return scheme
