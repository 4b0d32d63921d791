"""Gathers, scatters, one-hot values, triangles and bits, as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.node import Node, Value

from .moves import int_attr, int_list, transposed
from .nodes import Data, GraphNodes, refusal, type_attr, type_name
from .wire import TypeAttr

Write = Callable[[GraphNodes, Node], str]
_SCATTERS = {
    "none": "TensorScatterUpdate",
    "add": "TensorScatterAdd",
    "max": "TensorScatterMax",
    "min": "TensorScatterMin",
}


def _from_start(w: GraphNodes, n: Node, at: Value, sizes: Data | str) -> str:
    """Returns indices of which negative ones, which count from the end, are made others.

    `sizes` are those of the axes, one or a row as long as the last axis of the indices, or their
    tensor: TensorFlow takes no negative indices.
    """
    given, kind, carrier = w.tensor(at), type_attr(at), at.type.dtype.carrier
    fixed = None if at.constant is None else np.asarray(at.constant.data)
    if carrier.kind == "u" or (fixed is not None and not (fixed < 0).any()):
        return given
    name = type_name(at.type.element, at)
    if not isinstance(sizes, str):
        if fixed is not None:
            return w.constant(np.where(fixed < 0, fixed + sizes, fixed).astype(carrier), name)
        sizes = w.constant(sizes.astype(carrier), name)
    negative = w.add("Less", (given, w.constant(np.asarray(0, carrier), name)), n.name, T=kind)
    from_end = w.add("AddV2", (given, sizes), n.name, T=kind)
    return w.add("SelectV2", (negative, from_end, given), n.name, T=kind)


def _axis_sizes(w: GraphNodes, n: Node, x: Value, axes: range, at: Value) -> Data | str:
    """Returns the sizes of axes of x, computed in the type of the indices where one is open."""
    known = [size for size in (x.type.shape[axis] for axis in axes) if isinstance(size, int)]
    if len(known) == len(axes):
        return np.asarray(known, np.int64)
    kind = type_attr(at)
    sizes = w.add("Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=kind)
    inputs = (sizes, *(w.int_constant([each]) for each in (axes.start, axes.stop, 1)))
    return w.add("StridedSlice", inputs, n.name, T=kind, Index=TypeAttr("int32"))


def _gather(w: GraphNodes, n: Node) -> str:
    x, at = n.operands["x"], n.operands["indices"]
    axis = int_attr(n, "axis") % x.type.rank
    size = _axis_sizes(w, n, x, range(axis, axis + 1), at)
    if isinstance(size, str):
        size = w.add("Squeeze", (size,), n.name, T=type_attr(at))
    else:
        size = size.reshape(())
    return _gathered(w, n, x, _from_start(w, n, at, size), axis)


def _embedding(w: GraphNodes, n: Node) -> str:
    return _gathered(w, n, n.operands["w"], w.tensor(n.operands["indices"]), 0)


def _gathered(w: GraphNodes, n: Node, x: Value, indices: str, axis: int) -> str:
    types = {
        "Tparams": type_attr(x),
        "Tindices": type_attr(n.operands["indices"]),
        "Taxis": TypeAttr("int32"),
    }
    inputs = (w.tensor(x), indices, w.constant(np.asarray(axis, np.int32)))
    return w.add("GatherV2", inputs, n.name, **types)


def _gather_nd(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    types = {"Tparams": type_attr(x), "Tindices": type_attr(n.operands["indices"])}
    indices = _with_batch_indices(w, n, int_attr(n, "batch"))
    return w.add("GatherNd", (w.tensor(x), indices), n.name, **types)


def _tuples_from_start(w: GraphNodes, n: Node, batch: int) -> str:
    """Returns the indices of a gather_nd or scatter_nd, which name places in several axes."""
    x, at = n.operands["x"], n.operands["indices"]
    named = at.type.shape[-1]
    assert isinstance(named, int)
    return _from_start(w, n, at, _axis_sizes(w, n, x, range(batch, batch + named), at))


def _with_batch_indices(w: GraphNodes, n: Node, batch: int) -> str:
    """Returns the indices of a gather_nd after those of its batch axes, which count up."""
    index_value = n.operands["indices"]
    indices, kind = _tuples_from_start(w, n, batch), type_attr(index_value)
    if not batch:
        return indices
    last = index_value.type.rank - 1
    slice_lists = ([0] * (last + 1), [0] * last + [1], [1] * (last + 1))
    masks = {"begin_mask": (1 << last) - 1, "end_mask": (1 << last) - 1}
    inputs = (indices, *(w.int_constant(each) for each in slice_lists))
    one = w.add("StridedSlice", inputs, n.name, T=kind, Index=TypeAttr("int32"), **masks)
    ones = w.add("OnesLike", (one,), n.name, T=kind)
    axes = [w.constant(np.asarray(axis, np.int32)) for axis in (*range(batch), last)]
    attrs = {"T": kind, "Tidx": TypeAttr("int32")}
    # A running sum of ones without its own element is the position along an axis.
    counted = [
        w.add("Cumsum", (ones, axis), n.name, exclusive=True, reverse=False, **attrs)
        for axis in axes[:-1]
    ]
    return w.add("ConcatV2", (*counted, indices, axes[-1]), n.name, N=batch + 1, **attrs)


def _one_hot(w: GraphNodes, n: Node) -> str:
    at, values, depth = n.operands["indices"], n.operands["values"], int_attr(n, "depth")
    held = values.constant
    if held is None:
        raise refusal(n, "the two values of a one-hot are written as constants, these are computed")
    name = type_name(values.type.element, values)
    off, on = (w.constant(each, name) for each in held.data.reshape(2))
    size = np.asarray(depth, np.int32)
    given = (_from_start(w, n, at, size), w.constant(size), on, off)
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
    how = str(n.attrs["reduction"])
    op = _SCATTERS.get(how)
    if op is None:
        raise refusal(n, f"TensorFlow scatters no {n.attrs['reduction']!s}")
    given = (w.tensor(x), _tuples_from_start(w, n, 0), w.tensor(updates))
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
    "gather": _gather,
    "embedding": _embedding,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "slice_at": _slice_at,
    "reverse_sequence": _reverse_sequence,
    "scatter_nd": _scatter_nd,
    "nonzero": _nonzero,
    "trilu": _trilu,
    "is_inf": _is_infinite,
    "bit_shift": _shift,
}
