"""Reductions, ArgMax, CumSum and TopK, and normalizations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import Value
from qir.ir.types import Array

from .elementwise_ops import WRAPPING_DTYPES, keep_unless_floats
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

Handler = Callable[[OnnxReader, OnnxOp], None]
_IDENTITY_OVER_NO_AXES = ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
"""Reductions that return their operand if they are over no axis; others, as ReduceL1, compute."""


def _is_float(kind: DType) -> bool:
    return kind.is_float


def _can_be_summed(kind: DType) -> bool:
    return kind.is_float or kind.name in WRAPPING_DTYPES


def _can_be_ordered(kind: DType) -> bool:
    return kind.is_float or kind.is_integer


def _keep_unless(reader: OnnxReader, op: OnnxOp, is_supported: Callable[[DType], bool]) -> None:
    if not is_supported(reader.type_of(op, op.input(0)).dtype):
        raise KeepOperator


def _reduce(op_name: str, is_supported: Callable[[DType], bool], since: int = 18) -> Handler:
    """Returns the handler of a reduction; before opset `since` its axes are an attribute."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        _keep_unless(reader, op, is_supported)
        if op.opset < since:
            axes = op.integers("axes", ())
        else:
            name = op.input(1)
            axes = tuple(int(a) for a in reader.constant_data(name).reshape(-1)) if name else ()
            # No axes mean all axes, unless this attribute says none.
            if not axes and op.integer("noop_with_empty_axes", 0):
                if op.type not in _IDENTITY_OVER_NO_AXES:
                    raise KeepOperator
                reader.alias(op.outputs[0], op.input(0))
                return
        attrs: dict[str, Attr] = {"axes": axes, "keep": op.integer("keepdims", 1) != 0}
        reader.add(op, op_name, {"x": reader.value(op, op.input(0))}, attrs)

    return read


def _arg_reduce(op_name: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        _keep_unless(reader, op, _can_be_ordered)
        attrs: dict[str, Attr] = {
            "axis": op.integer("axis", 0),
            "keep": op.integer("keepdims", 1) != 0,
            "last": op.integer("select_last_index", 0) != 0,
        }
        reader.add(op, op_name, {"x": reader.value(op, op.input(0))}, attrs)

    return read


def _scalar_operand(reader: OnnxReader, op: OnnxOp, index: int) -> int:
    data = reader.constant_data(op.input(index)).reshape(-1)
    if data.size != 1:
        raise op.error(f"operand {index} has {data.size} numbers, it takes 1")
    return int(data[0])


def _cumulative(reader: OnnxReader, op: OnnxOp) -> None:
    _keep_unless(reader, op, _can_be_summed)
    attrs: dict[str, Attr] = {
        "axis": _scalar_operand(reader, op, 1),
        "exclusive": op.integer("exclusive", 0) != 0,
        "reverse": op.integer("reverse", 0) != 0,
    }
    reader.add(op, op.type.lower(), {"x": reader.value(op, op.input(0))}, attrs)


def _top_k(reader: OnnxReader, op: OnnxOp) -> None:
    _keep_unless(reader, op, _can_be_ordered)
    # The node has both results.
    if len(op.outputs) != 2 or not all(op.outputs):
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "k": op.integer("k", 0) if op.opset < 10 else _scalar_operand(reader, op, 1),
        "axis": op.integer("axis", -1),
        "largest": op.integer("largest", 1) != 0,
        "sorted": op.integer("sorted", 1) != 0,
    }
    reader.add(op, "top_k", {"x": reader.value(op, op.input(0))}, attrs)


def _norm(op_name: str, *slots: str) -> Handler:
    """Returns the handler of a normalization; one that returns its statistics is kept."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        keep_unless_floats(reader, op)
        if len(op.outputs) > 1 or op.integer("stash_type", 1) != 1:
            raise KeepOperator
        has_group_parameters = op_name == "group_norm" and op.opset < 21
        # Before opset 21 gamma and beta are per group: they are repeated below.
        names = zip(("x", *(() if has_group_parameters else slots)), op.inputs, strict=False)
        operands = {s: reader.value(op, n) for s, n in names if n}
        attrs: dict[str, Attr] = {"eps": op.floating("epsilon", 1e-5)}
        if op_name == "group_norm":
            attrs["groups"] = op.integer("num_groups", 0)
            if has_group_parameters:
                _spread_over_channels(reader, op, operands)
        elif op_name != "instance_norm":
            attrs["axis"] = op.integer("axis", -1)
            if any(v.type.rank > operands["x"].type.rank for v in operands.values()):
                raise KeepOperator
        reader.add(op, op_name, operands, attrs)

    return read


def _spread_over_channels(reader: OnnxReader, op: OnnxOp, operands: dict[str, Value]) -> None:
    """Repeats gamma and beta for each channel: before opset 21 they are per group."""
    count, shape = op.integer("num_groups", 0), operands["x"].type.shape
    channels = shape[1] if len(shape) > 1 else None
    for slot, name in zip(("gamma", "beta"), op.inputs[1:], strict=True):
        parameter = reader.array(name)
        if parameter is None or not isinstance(channels, int):
            raise KeepOperator(
                "its numbers by group are computed, or nothing says how many channels"
            )
        if count < 1 or channels % count or parameter.data.shape != (count,):
            raise op.error(f"{channels} channels, {count} groups, {parameter.type} for {name!r}")
        data = np.repeat(parameter.data, channels // count)
        channel_type = parameter.type.with_shape((channels,))
        operands[slot] = reader.add_constant(
            reader.unused_name(f"{name}_by_channel"), Array(data, channel_type), None
        )


def _lrn(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    attrs: dict[str, Attr] = {
        "size": op.integer("size", 0),
        "alpha": op.floating("alpha", 1e-4),
        "beta": op.floating("beta", 0.75),
        "bias": op.floating("bias", 1.0),
    }
    reader.add(op, "lrn", {"x": reader.value(op, op.input(0))}, attrs)


OPS: dict[str, Handler] = {
    "ReduceMean": _reduce("reduce_mean", _is_float),
    "ReduceSum": _reduce("reduce_sum", _can_be_summed, 13),
    "ReduceProd": _reduce("reduce_prod", _can_be_summed),
    "ReduceMax": _reduce("reduce_max", _can_be_ordered),
    "ReduceMin": _reduce("reduce_min", _can_be_ordered),
    "ReduceL1": _reduce("reduce_l1", _is_float),
    "ReduceL2": _reduce("reduce_l2", _is_float),
    "ReduceLogSum": _reduce("reduce_log_sum", _is_float),
    "ReduceLogSumExp": _reduce("reduce_log_sum_exp", _is_float),
    "ReduceSumSquare": _reduce("reduce_sum_square", _is_float),
    "ArgMax": _arg_reduce("arg_max"),
    "ArgMin": _arg_reduce("arg_min"),
    "CumSum": _cumulative,
    "CumProd": _cumulative,
    "TopK": _top_k,
    "LayerNormalization": _norm("layer_norm", "gamma", "beta"),
    "RMSNormalization": _norm("rms_norm", "gamma"),
    "InstanceNormalization": _norm("instance_norm", "gamma", "beta"),
    "GroupNormalization": _norm("group_norm", "gamma", "beta"),
    "LRN": _lrn,
}
