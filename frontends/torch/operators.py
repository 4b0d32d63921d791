"""The converter of each overload of PyTorch's operators, by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    products,
    recurrent,
    reduction,
    resizing,
)
from .call import Call

OPS: dict[str, Callable[[Call], Any]] = {
    f"aten.{name}": handler
    for family in (
        attention,
        convolution,
        creation,
        elementwise,
        indexing,
        movement,
        normalization,
        pooling,
        products,
        recurrent,
        reduction,
        resizing,
    )
    for name, handler in family.OPS.items()
}
