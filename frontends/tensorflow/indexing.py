"""Gather, scatter, one-hot and other ops with indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, F64, I32, I64, dtype
from qir.ir.node import Value
from qir.ir.types import Array, TensorType

from .call import NodeCall
from .movement import as_i64
from .reader import KeepNode


def _gather(call: NodeCall) -> Value:
    x, indices = call[0], call[1]
    axis = call.axis(2, x.type.rank) if call.count > 2 else 0
    batch = call.integer("batch_dims")
    batch += indices.type.rank if batch < 0 else 0
    if not batch:
        return call.add("gather", {"x": x, "indices": indices}, {"axis": axis})
    # `gather_nd` with batch axes reads the axis right after these.
    if axis != batch:
        raise KeepNode(f"it gathers along axis {axis} with {batch} batch axes")
    columns = call.add("unsqueeze", {"x": indices}, {"axes": (indices.type.rank,)})
    return call.add("gather_nd", {"x": x, "indices": as_i64(call, columns)}, {"batch": batch})


def _gather_nd(call: NodeCall) -> Value:
    return call.add("gather_nd", {"x": call[0], "indices": as_i64(call, call[1])})


def _one_hot(call: NodeCall) -> Value:
    (depth,) = call.integers(1)
    axis = call.integer("axis", -1)
    on, off = (call.add("unsqueeze", {"x": call[i]}, {"axes": (0,)}) for i in (2, 3))
    values = call.add("concat", {"xs.0": off, "xs.1": on}, {"axis": 0})
    indices = call[0]
    # A negative index gives all `off` in TensorFlow. The language would count it from the end, so
    # it
    # is replaced by one that is out of range.
    is_negative = call.add("less", {"a": indices, "b": call.scalar_like(0, indices)})
    out_of_range = call.scalar_like(depth, indices)
    indices = call.add("where", {"condition": is_negative, "a": out_of_range, "b": indices})
    attrs: dict[str, Attr] = {"depth": depth, "axis": axis}
    return call.add("one_hot", {"indices": indices, "values": values}, attrs)


def _bucketize(call: NodeCall) -> Value:
    """Reads the number of boundaries that a value has reached."""
    kind = call[0].type.dtype if call[0].type.dtype == F64 else F32
    x = call[0] if call[0].type.dtype == kind else call.add("cast", {"x": call[0]}, {"to": kind})
    bounds = np.asarray(call.attr("boundaries").list.f, np.float32).astype(kind.carrier)
    x = call.add("unsqueeze", {"x": x}, {"axes": (call.rank(0),)})
    reached = call.add("greater_equal", {"a": x, "b": call.constant(bounds, "boundaries")})
    counts = call.add("cast", {"x": reached}, {"to": I32})
    return call.add("reduce_sum", {"x": counts}, {"axes": (call.rank(0),), "keep": False})


def _dense_bincount(call: NodeCall) -> Value:
    """Reads how often each number is in a row, or what its weights add up to."""
    x, weights, (size,) = call[0], call[2], call.integers(1)
    kind, axes = weights.type.dtype, (call.rank(0) - 1,)
    values = call.constant(np.asarray([0, 1], kind.carrier), "values")
    ones = call.add("one_hot", {"indices": x, "values": values}, {"depth": size, "axis": -1})
    if call.flag("binary_output"):
        return call.add("reduce_max", {"x": ones}, {"axes": axes, "keep": False})
    if weights.type.shape != (0,):
        weights = call.add("unsqueeze", {"x": weights}, {"axes": (call.rank(0),)})
        ones = call.add("mul", {"a": ones, "b": weights})
    return call.add("reduce_sum", {"x": ones}, {"axes": axes, "keep": False})


def _tensor_scatter(reduction: str) -> Callable[[NodeCall], Value]:
    """Returns the converter of TensorScatterUpdate and its variants."""

    def read(call: NodeCall) -> Value:
        operands = {"x": call[0], "indices": as_i64(call, call[1]), "updates": call[2]}
        return call.add("scatter_nd", operands, {"reduction": reduction})

    return read


def _scatter_nd(call: NodeCall) -> Value:
    indices, updates, shape = call[0], call[1], call[2]
    element_type = updates.type.dtype
    zero_scalar = call.scalar_like(0, updates).constant
    assert zero_scalar is not None
    zero = Array(zero_scalar.data.reshape(1), TensorType((1,), element_type))
    x = call.add("constant_of_shape", {"shape": as_i64(call, shape)}, {"value": zero})
    operands = {"x": x, "indices": as_i64(call, indices), "updates": updates}
    # ScatterNd sums updates of the same index.
    return call.add("scatter_nd", operands, {"reduction": "add"})


def _where(call: NodeCall) -> Value:
    """Reads Where with one operand: the indices of true elements, one row each."""
    columns = call.add("nonzero", {"x": call[0]})
    return call.add("transpose", {"x": columns}, {"perm": (1, 0)})


def _matrix_band_part(call: NodeCall) -> Value:
    """Reads MatrixBandPart: keeps diagonals below and above; a negative count keeps all."""
    (below,), (above,) = call.integers(1), call.integers(2)
    x = call[0]
    if below >= 0:
        x = call.add("trilu", {"x": x}, {"k": -below, "upper": True})
    if above >= 0:
        x = call.add("trilu", {"x": x}, {"k": above, "upper": False})
    return x


def _reverse_sequence(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"batch": call.integer("batch_dim"), "time": call.integer("seq_dim")}
    operands = {"x": call[0], "lengths": as_i64(call, call[1])}
    return call.add("reverse_sequence", operands, attrs)


def _unique(call: NodeCall) -> Sequence[Value]:
    values, _, indices, _ = call.add_many("unique", {"x": call[0]}, {"sorted": False})
    to = call.dtype("out_idx") if call.has("out_idx") else dtype("i32")
    return values, indices if to == I64 else call.add("cast", {"x": indices}, {"to": to})


OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "Gather": _gather,
    "GatherV2": _gather,
    "GatherNd": _gather_nd,
    "OneHot": _one_hot,
    "Bucketize": _bucketize,
    "DenseBincount": _dense_bincount,
    "TensorScatterUpdate": _tensor_scatter("none"),
    "TensorScatterAdd": _tensor_scatter("add"),
    "TensorScatterMax": _tensor_scatter("max"),
    "TensorScatterMin": _tensor_scatter("min"),
    "ScatterNd": _scatter_nd,
    "Where": _where,
    "MatrixBandPart": _matrix_band_part,
    "ReverseSequence": _reverse_sequence,
    "Unique": _unique,
}
