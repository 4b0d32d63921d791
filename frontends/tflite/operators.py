"""The table of converters, by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.node import Value

from . import control, elementwise, indexing, layers, movement, recurrent, reduction
from .call import OperatorCall

OPS: dict[str, Callable[[OperatorCall], Value | Sequence[Value]]] = {
    **control.OPS,
    **elementwise.OPS,
    **indexing.OPS,
    **layers.OPS,
    **movement.OPS,
    **recurrent.OPS,
    **reduction.OPS,
}
