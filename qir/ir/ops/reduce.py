"""Reductions."""

from __future__ import annotations

from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _reduce(call: Call) -> tuple[TensorType, ...]:
    shape = call.shape("x")
    rank = len(shape)
    axes = call.wholes("axes")
    if any(not -rank <= a < rank for a in axes):
        raise call.fail(f"axes {axes}, but x has {rank}")
    if len({a % rank for a in axes}) < len(axes):
        raise call.fail(f"axes {axes} name one axis twice")
    gone = {a % rank for a in axes} if axes else set(range(rank))
    if call.flag("keep"):
        out = tuple(1 if i in gone else d for i, d in enumerate(shape))
    else:
        out = tuple(d for i, d in enumerate(shape) if i not in gone)
    return (TensorType(out, call.express("x")),)


OPS = (
    OpSpec(
        "reduce_mean",
        (Slot("x"),),
        _reduce,
        (AttrSpec("axes", "ints", ()), AttrSpec("keep", "bool", True)),
        doc="mean over the axes, over all of them if none is named",
    ),
)
