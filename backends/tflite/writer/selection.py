"""The greatest elements along an axis, and classes as rows of which one element is on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.dtype import BOOL, I32
from qir.ir.types import TensorType

from .movement import cast_to
from .network import OpCall, Options, OpWriter


def _top_k(c: OpCall) -> Sequence[int]:
    """Writes TOPK_V2, which finds the greatest along the last axis; the least by their negation."""
    x, axis, k = c.kind(), c.axis(), c.integer("k")
    if x.rank == 0:
        raise c.refused("TOPK_V2 wants an axis; reshape the number")
    least, last = not c.attrs["largest"], axis == x.rank - 1
    perm = [*(i for i in range(x.rank) if i != axis), axis]
    at, kind = c.tensor(), x
    if not last:
        kind = x.with_shape(tuple(x.shape[i] for i in perm))
        at = c.w.transposed(c.node, at, kind, perm)
    if least:
        at = c.add("NEG", (at,), kind)
    found = kind.with_shape((*kind.shape[:-1], k))
    values, places = c.node.results
    made = c.w.operator(
        c.node, "TOPK_V2", (at, c.w.ints(k)), (found, TensorType(found.shape, I32)), None
    )
    top = c.add("NEG", (made[0],), found) if least else made[0]
    wide = TensorType(found.shape, places.type.dtype)
    where = c.add("CAST", (made[1],), wide, cast_to(c, made[1], wide.dtype))
    if last:
        return top, where
    back = [perm.index(i) for i in range(x.rank)]
    return [
        c.w.transposed(c.node, each, value.type, back, value.name)
        for each, value in ((top, values), (where, places))
    ]


def _one_hot(c: OpCall) -> int:
    indices, depth = c.kind("indices"), c.integer("depth")
    off, on = c.constant("values", "constant pair of values").reshape(-1)
    # Indices below zero count from the end; ONE_HOT leaves out those that are still below it.
    carrier = indices.dtype.carrier
    zero, count = (c.w.plain(np.asarray(n, carrier)) for n in (0, depth))
    at = c.tensor("indices")
    below = c.add("LESS", (at, zero), TensorType(indices.shape, BOOL))
    moved = c.add("ADD", (at, count), indices, ("AddOptions", {"fused_activation_function": 0}))
    at = c.add("SELECT_V2", (below, moved, at), indices)
    axis = c.integer("axis")
    options: Options = ("OneHotOptions", {"axis": -1 if axis == indices.rank else axis})
    inputs = (at, c.w.ints(depth), c.w.plain(np.asarray(on)), c.w.plain(np.asarray(off)))
    return c.finish("ONE_HOT", inputs, options)


OPS: Mapping[str, OpWriter] = {"one_hot": _one_hot, "top_k": _top_k}
