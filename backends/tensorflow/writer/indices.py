"""Ops with computed places, one-hot values, triangles and bits, as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.node import Node, Value

from .moves import int_attr, int_list, transposed
from .nodes import GraphNodes, refusal, type_attr, type_name
from .wire import TypeAttr

Write = Callable[[GraphNodes, Node], str]
_SCATTERS = {
    "none": "TensorScatterUpdate",
    "add": "TensorScatterAdd",
    "max": "TensorScatterMax",
    "min": "TensorScatterMin",
}


def _from_start(w: GraphNodes, n: Node, at: Value, size: int) -> str:
    """Returns indices of which negative ones, which count from the end, are made others."""
    name, carrier = type_name(at.type.element, at), at.type.dtype.carrier
    low, by = (w.constant(np.asarray(number, carrier), name) for number in (0, size))
    given, kind = w.tensor(at), type_attr(at)
    if at.type.dtype.carrier.kind == "u":
        return given
    negative = w.add("Less", (given, low), n.name, T=kind)
    from_end = w.add("AddV2", (given, by), n.name, T=kind)
    return w.add("SelectV2", (negative, from_end, given), n.name, T=kind)


def _one_hot(w: GraphNodes, n: Node) -> str:
    at, values, depth = n.operands["indices"], n.operands["values"], int_attr(n, "depth")
    held = values.constant
    if held is None:
        raise refusal(n, "the two values of a one-hot are written as constants, these are computed")
    name = type_name(values.type.element, values)
    off, on = (w.constant(each, name) for each in held.data.reshape(2))
    given = (_from_start(w, n, at, depth), w.constant(np.asarray(depth, np.int32)), on, off)
    axis = int_attr(n, "axis") % (at.type.rank + 1)
    axis = -1 if axis == at.type.rank else axis
    return w.add("OneHot", given, n.name, T=type_attr(values), TI=type_attr(at), axis=axis)


def _slice_at(w: GraphNodes, n: Node) -> str:
    x, rank = n.operands["x"], n.operands["x"].type.rank
    axes = [axis % rank for axis in int_list(n, "axes")] or list(range(rank))
    steps = dict(zip(axes, int_list(n, "steps") or [1] * len(axes), strict=True))
    kind, row = n.operands["starts"].type.dtype.carrier, type_attr(n.operands["starts"])
    rest = w.constant(np.zeros(1, kind))
    at = w.int_constant([axes.index(i) if i in axes else len(axes) for i in range(rank)])
    axis = w.constant(np.asarray(0, np.int32))
    bounds = []
    for slot in ("starts", "ends"):
        parts = (w.tensor(n.operands[slot]), rest, axis)
        held = w.add("ConcatV2", parts, n.name, N=2, T=row, Tidx=TypeAttr("int32"))
        types = {"Tparams": row, "Tindices": TypeAttr("int32"), "Taxis": TypeAttr("int32")}
        bounds.append(w.add("GatherV2", (held, at, axis), n.name, **types))
    by = w.constant(np.asarray([steps.get(i, 1) for i in range(rank)], kind))
    mask = sum(1 << i for i in range(rank) if i not in axes)
    masks = {"begin_mask": mask, "end_mask": mask}
    given = (w.tensor(x), *bounds, by)
    return w.add("StridedSlice", given, n.name, T=type_attr(x), Index=row, **masks)


def _reverse_sequence(w: GraphNodes, n: Node) -> str:
    x, lengths = n.operands["x"], n.operands["lengths"]
    time, batch = (int_attr(n, name) % x.type.rank for name in ("time", "batch"))
    types = {"T": type_attr(x), "Tlen": type_attr(lengths)}
    given = (w.tensor(x), w.tensor(lengths))
    return w.add("ReverseSequence", given, n.name, seq_dim=time, batch_dim=batch, **types)


def _scatter_nd(w: GraphNodes, n: Node) -> str:
    x, at, updates = (n.operands[slot] for slot in ("x", "indices", "updates"))
    op = _SCATTERS.get(str(n.attrs["reduction"]))
    if op is None:
        raise refusal(n, f"TensorFlow scatters no {n.attrs['reduction']!s}")
    given = (w.tensor(x), w.tensor(at), w.tensor(updates))
    return w.add(op, given, n.name, T=type_attr(x), Tindices=type_attr(at))


def _nonzero(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    places = w.add("Where", (w.tensor(x),), n.name, T=type_attr(x))
    return transposed(w, places, (1, 0), n.result, n.name)


def _trilu(w: GraphNodes, n: Node) -> str:
    x, k, upper = n.operands["x"], int_attr(n, "k"), bool(n.attrs["upper"])
    if (k > 0) if upper else (k < 0):
        raise refusal(n, "TensorFlow's bands of a matrix hold its main diagonal, this one does not")
    ends = (-k, -1) if upper else (-1, k)
    given = (w.tensor(x), *(w.constant(np.asarray(end, np.int64)) for end in ends))
    return w.add("MatrixBandPart", given, n.name, T=type_attr(x), Tindex=TypeAttr("int64"))


def _is_infinite(w: GraphNodes, n: Node) -> str:
    x, sides = n.operands["x"], (bool(n.attrs["negative"]), bool(n.attrs["positive"]))
    if all(sides):
        return w.add("IsInf", (w.tensor(x),), n.name, T=type_attr(x))
    if not any(sides):
        raise refusal(n, "it counts no side")
    end = np.asarray(-np.inf if sides[0] else np.inf, x.type.dtype.carrier)
    given = (w.tensor(x), w.constant(end, type_name(x.type.element, x)))
    return w.add("Equal", given, n.name, T=type_attr(x))


def _shift(w: GraphNodes, n: Node) -> str:
    op = "LeftShift" if n.attrs["direction"] == "left" else "RightShift"
    a, b = n.operands["a"], n.operands["b"]
    return w.add(op, (w.tensor(a), w.tensor(b)), n.name, T=type_attr(a))


OPS: Mapping[str, Write] = {
    "one_hot": _one_hot,
    "slice_at": _slice_at,
    "reverse_sequence": _reverse_sequence,
    "scatter_nd": _scatter_nd,
    "nonzero": _nonzero,
    "trilu": _trilu,
    "is_inf": _is_infinite,
    "bit_shift": _shift,
}
