"""Shapes, quantized values and numbers as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qir.cli.screen import float_text, number_text

if TYPE_CHECKING:
    from qir.inspect.summary import InterfaceTensor, QuantizedStorage


def shape(sizes: Sequence[int | str | None], kind: str = "") -> str:
    """`Nx1x8x8`; `scalar` where there are no axes, `?` where nobody knows how many there are."""
    if kind.startswith("opaque"):
        return "?" if kind.endswith('[...]">') else "-"
    return "x".join("?" if s is None else _size(s) for s in sizes) or "scalar"


def _size(size: int | str) -> str:
    text = str(size)
    # An expression such as `N + 1` needs parentheses between the x of a shape.
    return text if text.isalnum() else f"({text})"


def scale(quantized: QuantizedStorage | None) -> str:
    """`0.02353:128`; the least and the greatest where there are many."""
    if quantized is None:
        return ""
    # Scales that are computed at run time are in no type.
    if not quantized.scale:
        return "dynamic"
    low, high = min(quantized.scale), max(quantized.scale)
    zeros = sorted(set(quantized.zero))
    zero = "" if zeros == [0] else f":{number_text(zeros[0])}" if len(zeros) == 1 else ":.."
    if len(quantized.scale) == 1:
        return f"{float_text(low)}{zero}"
    return f"{float_text(low, 2)}..{float_text(high, 2)}{zero}"


def weights(tensor: InterfaceTensor | None) -> str:
    """`i8/ch 32x16x3x3`: one scale for each channel."""
    if tensor is None:
        return ""
    many = tensor.codes is not None and len(tensor.codes.scale) > 1
    return f"{tensor.dtype}{'/ch' if many else ''} {shape(tensor.shape)}"
