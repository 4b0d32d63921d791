"""Shape, Size, Range, Fill and other ops that create tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I64, DType, dtype
from qir.ir.node import Value
from qir.ir.types import Array, TensorType

from .call import NodeCall
from .constant_evaluation import MAX_KNOWN_ELEMENTS
from .movement import as_i64
from .reader import KeepNode


def _output_dtype(call: NodeCall) -> DType:
    return call.dtype("out_type") if call.has("out_type") else dtype("i32")


def _size_query(call: NodeCall, op: str, x: Value) -> Value:
    size, to = call.add(op, {"x": x}), _output_dtype(call)
    return size if to == I64 else call.add("cast", {"x": size}, {"to": to})


def _shape(call: NodeCall) -> Value:
    return _size_query(call, "shape", call[0])


def _shape_n(call: NodeCall) -> Sequence[Value]:
    return [_size_query(call, "shape", x) for x in call.operands]


def _size(call: NodeCall) -> Value:
    return _size_query(call, "size", call[0])


def _rank(call: NodeCall) -> Value:
    return call.constant(np.asarray(call.rank(0), np.int32), "rank")


def _range(call: NodeCall) -> Value:
    return call.add("range", {"start": call[0], "limit": call[1], "step": call[2]})


def _fill(call: NodeCall) -> Value:
    shape, value = call[0], call[1]
    constant, sizes = value.constant, call.reader.known.elements(shape)
    if constant is None:
        return call.add("expand", {"x": value, "shape": as_i64(call, shape)})
    element = constant.data.reshape(1)
    # Small tensors become constants, which passes can fold.
    if sizes is not None and prod(int(s) for s in sizes) <= MAX_KNOWN_ELEMENTS:
        return call.constant(
            np.broadcast_to(element, tuple(int(s) for s in sizes)).copy(), "filled"
        )
    return _constant_of_shape(
        call, as_i64(call, shape), Array(element, TensorType((1,), constant.type.dtype))
    )


def _constant_of_shape(call: NodeCall, shape: Value, value: Array) -> Value:
    attrs: dict[str, Attr] = {"value": value}
    return call.add("constant_of_shape", {"shape": shape}, attrs)


def _like(number: int) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        element_type = call[0].type.dtype
        element = Array(
            np.asarray([number]).astype(element_type.carrier), TensorType((1,), element_type)
        )
        return _constant_of_shape(call, call.add("shape", {"x": call[0]}), element)

    return read


def _broadcast_args(call: NodeCall) -> Value:
    """Reads the shape that two shapes are broadcast to: where one has 1, the size of the other."""
    lengths = [size for i in (0, 1) for size in call.shape(i) if isinstance(size, int)]
    if len(lengths) != 2:
        raise KeepNode("the number of its sizes is not known")
    most = max(lengths)
    parts = []
    for value, length in zip(call.operands, lengths, strict=True):
        # Shapes are aligned at their last axes: a shorter one gets leading ones.
        if length != most:
            ones = np.ones(most - length, value.type.dtype.carrier)
            joined = {"xs.0": call.constant(ones, "ones"), "xs.1": value}
            value = call.add("concat", joined, {"axis": 0})
        parts.append(value)
    one = call.scalar_like(1, parts[0])
    is_one = call.add("equal", {"a": parts[1], "b": one})
    return call.add("where", {"condition": is_one, "a": parts[0], "b": parts[1]})


def _linear_space(call: NodeCall) -> Value:
    start, stop, (count,) = call.constant_elements(0), call.constant_elements(1), call.integers(2)
    numbers = np.linspace(start.item(), stop.item(), count)
    return call.constant(numbers.astype(call[0].type.dtype.carrier), "numbers")


def _inverse_permutation(call: NodeCall) -> Value:
    return call.constant(
        np.argsort(call.constant_elements(0)).astype(call[0].type.dtype.carrier), "inverse"
    )


OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "Shape": _shape,
    "ShapeN": _shape_n,
    "Size": _size,
    "Rank": _rank,
    "Range": _range,
    "Fill": _fill,
    "ZerosLike": _like(0),
    "OnesLike": _like(1),
    "BroadcastArgs": _broadcast_args,
    "LinSpace": _linear_space,
    "InvertPermutation": _inverse_permutation,
}
