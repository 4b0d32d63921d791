"""The table of converters, by overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    attention,
    convolution,
    creation,
    dynamic,
    dynamic_recurrent,
    elementwise,
    indexing,
    movement,
    normalization,
    pointwise,
    pooling,
    products,
    quantization,
    recurrent,
    reduction,
    resizing,
    scattering,
    sorting,
    windows,
)
from .call import OverloadCall

OPS: dict[str, Callable[[OverloadCall], Any]] = (
    {
        f"aten.{name}": handler
        for family in (
            attention,
            convolution,
            creation,
            dynamic_recurrent,
            elementwise,
            indexing,
            movement,
            normalization,
            pooling,
            products,
            quantization,
            recurrent,
            reduction,
            resizing,
            scattering,
            sorting,
            windows,
        )
        for name, handler in family.OPS.items()
    }
    | quantization.DECOMPOSED
    | dynamic.OPS
    | pointwise.OPS
)
_NOT_TYPE_KEEPING = ("cat.default", "stack.default", "pad.default", "constant_pad_nd.default")
_ALSO_TYPE_KEEPING = ("alias.default", "clone.default", "contiguous.default", "detach.default")
KEEPS_QUANTIZED_TYPE = frozenset(
    f"aten.{name}" for name in (*movement.OPS, *_ALSO_TYPE_KEEPING) if name not in _NOT_TYPE_KEEPING
)
"""Operators that only move elements, so that quantized operands keep their type.

Concatenation and padding combine operands, whose types may differ.
"""
