"""What a node of a symbol is read as: values, and what stands for values that no node computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from qir.ir.node import Value


class Unsupported(Exception):
    """Raised for a node without a form in the language; the text has the reason or a remedy."""


@dataclass(frozen=True)
class RangeBound:
    """Minimum or maximum of a quantized tensor's range, known while reading."""

    number: float


@dataclass(frozen=True)
class ShapelessZeros:
    """Zeros whose shape MXNet infers from their consumers, such as an initial state.

    A size of 0 is unknown.
    """

    shape: tuple[int, ...] = ()


Result: TypeAlias = Value | RangeBound | ShapelessZeros | None
"""A converted result of a node; None for one that inference does not compute."""
