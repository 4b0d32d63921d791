"""Ops about integers: quantize, dequantize, and the operators that compute on integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F16, F32, U8, DType
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ledger import Change

from . import dynamic_ops
from . import qcdq as clipped
from .elements import element
from .float_ops import conv_attrs
from .inferred_types import layout
from .op import MICROSOFT, KeepOperator, OnnxOp
from .reader import OnnxReader
from .windows import check_room, pads

_CODED = ("axis", "saturate", "precision", "output_dtype", "block_size")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "channels_last")
_POOL = (
    "auto_pad",
    "ceil_mode",
    "channels_last",
    "count_include_pad",
    "kernel_shape",
    "pads",
    "strides",
)


def quantize(reader: OnnxReader, op: OnnxOp) -> None:
    """QuantizeLinear with constant parameters, for a whole tensor or along one axis."""
    op.only(*_CODED)
    if op.integer("precision", 0):
        raise KeepOperator
    if dynamic_ops.computed(reader, op, 1, 2):
        dynamic_ops.quantize(reader, op)
        return
    wanted = op.integer("output_dtype", 0)
    storage = _zero_type(reader, op.input(2)) or (element(wanted) if wanted else U8)
    if storage.is_float and not op.integer("saturate", 1):
        raise KeepOperator("float8 values that do not saturate differ between runtimes")
    x = reader.value(op, op.input(0))
    axis = None if op.integer("block_size", 0) else _axis(reader, op)
    quant = _map(reader, op, (1, 2), x.type.with_element(storage), axis)
    if quant.express != x.type.express or x.type.quant:
        raise KeepOperator
    reader.add(op, "quantize", {"x": x}, types=[x.type.with_element(quant)])


def _zero_type(reader: OnnxReader, zero: str) -> DType | None:
    return reader.kind_of(zero) if zero else None


def _axis(reader: OnnxReader, op: OnnxOp) -> int | None:
    """Returns the axis of a list of scales; a list of one stands for the whole tensor."""
    return None if reader.numbers(op.input(1)).size == 1 else op.integer("axis", 1)


def dequantize(reader: OnnxReader, op: OnnxOp) -> None:
    """DequantizeLinear with constant parameters; a constant takes them as its meaning."""
    op.only(*_CODED)
    if dynamic_ops.computed(reader, op, 1, 2):
        dynamic_ops.dequantize(reader, op)
        return
    name, blocks = op.input(0), op.integer("block_size", 0)
    kind, constant = reader.type_of(op, name), reader.is_constant(name)
    axis = None if blocks else _axis(reader, op)
    quant = _map(reader, op, (1, 2), kind, axis)
    wanted = op.integer("output_dtype", 0)
    if wanted and element(wanted) != quant.express:
        raise KeepOperator
    if not constant:
        lists = axis is not None or blocks > 0
        if kind.quant is None and lists and reader.mean(op, name, quant):
            x = reader.value(op, name)
        else:
            x = _read_as(reader, op, name, quant)
        reader.add(op, "dequantize", {"x": x})
        return
    x = reader.value(op, name, clipped.bounded(reader, name, quant))
    reader.add(op, "dequantize", {"x": clipped.mark(reader, name, x)})


def _map(
    reader: OnnxReader, op: OnnxOp, at: tuple[int, int], kind: TensorType, axis: int | None
) -> QuantType:
    scale, zero = op.input(at[0]), op.input(at[1])
    if size := op.integer("block_size", 0):
        along = op.integer("axis", 1)
        if not -kind.rank <= along < kind.rank:
            raise op.fail(f"axis {along}, but its operand has {kind.rank} axes")
        return reader.blocks(scale, zero, kind, along % kind.rank, size)
    if axis is None:
        return reader.quant(scale, zero, kind.dtype)
    # Rank 1 has one axis, whatever the attribute says.
    return reader.quant(scale, zero, kind.dtype, kind.shape, axis if kind.rank != 1 else 0)


# -- quantized operators ------------------------------------------------------------------------


def _operand(
    reader: OnnxReader, op: OnnxOp, index: int, slot: str, axis: int | None = None
) -> dict[str, Value]:
    """Returns one (tensor, scale, zero) operand with its meaning, and its numbers where
    computed."""
    places = layout(op)
    assert places is not None
    data, scale, zero = places.operands[index]
    name = op.input(data)
    kind = reader.type_of(op, name)
    if dynamic_ops.computed(reader, op, scale, zero):
        quant, numbers = _open(reader, op, (scale, zero), kind.dtype, axis)
        return {slot: dynamic_ops.meant(reader, op, name, quant), **_beside(f"{slot}.", numbers)}
    quant = _map(reader, op, (scale, zero), kind, axis)
    if reader.is_constant(name):
        x = reader.value(op, name, clipped.bounded(reader, name, quant))
        return {slot: clipped.mark(reader, name, x)}
    return {slot: _read_as(reader, op, name, quant)}


def _read_as(reader: OnnxReader, op: OnnxOp, name: str, quant: QuantType) -> Value:
    """Computed integers with the quantized type that their reader states, read anew where they hold
    another."""
    value = reader.value(op, name)
    known = value.type.quant
    if known is not None:
        within = quant if known.bounds == quant.bounds else replace(quant, bounds=known.bounds)
        if known.has_same_mapping(within) or _blocks_in_line(known, within):
            return value
    if known is not None:
        reader.note(Change.EXACT, name, f"holds {known}, and {op.place} reads it as {quant}")
    return dynamic_ops.meant(reader, op, name, quant)


def _blocks_in_line(known: QuantType, other: QuantType) -> bool:
    """Returns whether two quantized types differ in that one has the numbers of its blocks in line
    alone."""
    if known.granularity is None or known.dynamic or other.dynamic:
        return False
    if replace(known, scale=other.scale, zero=other.zero) != other:
        return False
    pairs = (known.scales(), other.scales()), (known.zeros(), other.zeros())
    return all(np.array_equal(np.ravel(a), np.ravel(b)) for a, b in pairs)


def _beside(prefix: str, numbers: dict[str, Value]) -> dict[str, Value]:
    return {f"{prefix}{name}": value for name, value in numbers.items()}


def _open(
    reader: OnnxReader, op: OnnxOp, at: tuple[int, int], storage: DType, axis: int | None = None
) -> tuple[QuantType, dict[str, Value]]:
    """Returns the quantized type that asks for its numbers, and these; Keep for numbers of other
    types."""
    numbers = {"scale": reader.value(op, op.input(at[0]))}
    if op.input(at[1]):
        numbers["zero"] = reader.value(op, op.input(at[1]))
    express = numbers["scale"].type.dtype
    wanted = {"scale": F16 if express == F16 and op.domain == "" else F32, "zero": storage}
    if any(v.type.quant or v.type.dtype != wanted[n] for n, v in numbers.items()):
        raise KeepOperator(
            "its scale is no f32, or its zero point of another type than its quantized values"
        )
    grain = None if axis is None else Granularity(((axis, 1),))
    return QuantType(storage, express, None, None if "zero" in numbers else (), grain), numbers


def _result(reader: OnnxReader, op: OnnxOp, kind: DType) -> tuple[QuantType, dict[str, Value]]:
    """Returns the result's quantized type and its numbers where computed; `kind` is its storage
    unless a zero says."""
    places = layout(op)
    assert places is not None
    assert places.result is not None
    scale, zero = places.result
    storage = reader.type_of(op, op.input(zero)).dtype if op.input(zero) else kind
    if dynamic_ops.computed(reader, op, scale, zero):
        return _open(reader, op, places.result, storage)
    return reader.quant(op.input(scale), op.input(zero), storage), {}


def _raw_bias(reader: OnnxReader, op: OnnxOp, index: int) -> dict[str, Value]:
    if not (name := op.input(index)):
        return {}
    value = reader.value(op, name)
    if value.type.dtype.name != "i32" or value.type.quant:
        raise op.fail(f"its bias {name!r} is {value.type.element}, it takes i32")
    return {"bias": value}


def _add(
    reader: OnnxReader, op: OnnxOp, kind: str, operands: dict[str, Value], attrs: dict[str, Attr]
) -> None:
    """Adds the node in integer form: the op's own type rule, with the result's quantized type."""
    first = next(v for v in operands.values() if v.type.quant)
    quant, numbers = _result(reader, op, first.type.dtype)
    node = reader.add(op, kind, {**operands, **numbers}, attrs)
    reader.graph.set_type(node.result, node.result.type.with_element(quant))


def _many(reader: OnnxReader, op: OnnxOp, place: int) -> bool:
    """Returns whether there is more than one scale at a place."""
    return reader.type_of(op, op.input(place)).shape not in ((), (1,))


def conv(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearConv along one to three axes; the bias stays raw, in units of the accumulator."""
    op.only(*_CONV)
    x, w = (reader.type_of(op, op.input(i)).shape for i in (0, 3))
    last = op.integer("channels_last", 0) != 0
    if len(x) != len(w) or not 3 <= len(x) <= 5 or (last and len(x) != 4):
        raise KeepOperator
    attrs = conv_attrs(op, x[1:-1] if last else x[2:], w)
    operands = {
        **_operand(reader, op, 0, "x"),
        **_operand(reader, op, 1, "w", 0 if _many(reader, op, 4) else None),
        **_raw_bias(reader, op, 8),
    }
    _add(reader, op, f"conv{len(x) - 2}d", operands, {**attrs, **_layout(last)})


def _layout(last: bool) -> dict[str, Attr]:
    return {"layout": "NHWC"} if last else {}


def _columns(reader: OnnxReader, op: OnnxOp, transposed: bool) -> int | None:
    """Returns the axis of one scale a column, None for a single scale."""
    if not _many(reader, op, 4):
        return None
    rank = reader.type_of(op, op.input(3)).rank
    return max(rank - 2 if transposed else rank - 1, 0)


def matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearMatMul with one scale for a, and one or one a column for b."""
    op.only()
    axis = _columns(reader, op, False)
    operands = {**_operand(reader, op, 0, "a"), **_operand(reader, op, 1, "b", axis)}
    _add(reader, op, "matmul", operands, {})


def gemm(reader: OnnxReader, op: OnnxOp) -> None:
    """QGemm; without a result scale its result is float."""
    op.only("alpha", "transA", "transB")
    turned = op.integer("transB", 0) != 0
    bias = _raw_bias(reader, op, 6)
    operands = {
        **_operand(reader, op, 0, "a"),
        **_operand(reader, op, 1, "b", _columns(reader, op, turned)),
        **({"c": bias["bias"]} if bias else {}),
    }
    attrs: dict[str, Attr] = {
        "alpha": op.real("alpha", 1.0),
        "trans_a": op.integer("transA", 0) != 0,
        "trans_b": turned,
    }
    if op.input(7):
        _add(reader, op, "gemm", operands, attrs)
    else:
        node = reader.add(op, "gemm", operands, attrs)
        reader.graph.set_type(node.result, node.result.type.with_element(F32))


def binary(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearAdd and QLinearMul."""
    op.only()
    operands = {**_operand(reader, op, 0, "a"), **_operand(reader, op, 1, "b")}
    _add(reader, op, "add" if op.type == "QLinearAdd" else "mul", operands, {})


def where(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearWhere, which takes quantized values of two maps to those of a third."""
    op.only()
    operands = {
        "condition": reader.value(op, op.input(0)),
        **_operand(reader, op, 0, "a"),
        **_operand(reader, op, 1, "b"),
    }
    _add(reader, op, "where", operands, {})


def sigmoid(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearSigmoid."""
    op.only()
    _add(reader, op, "sigmoid", _operand(reader, op, 0, "x"), {})


def leaky_relu(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearLeakyRelu."""
    op.only("alpha")
    alpha: dict[str, Attr] = {"alpha": op.real("alpha", 0.01)}
    _add(reader, op, "leaky_relu", _operand(reader, op, 0, "x"), alpha)


def reduce_mean(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearReduceMean, for which onnxruntime has a description and no kernel."""
    op.only("axes", "keepdims")
    operands = _operand(reader, op, 0, "x")
    attrs: dict[str, Attr] = {
        "axes": op.integers("axes", ()),
        "keep": op.integer("keepdims", 1) != 0,
    }
    _add(reader, op, "reduce_mean", operands, attrs)


def softmax(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearSoftmax; before opset 13 all axes from its own on are one."""
    op.only("axis", "opset")
    operands = _operand(reader, op, 0, "x")
    old = op.integer("opset", 13) < 13
    axis = op.integer("axis", 1 if old else -1)
    rank = operands["x"].type.rank
    if not -rank <= axis < rank:
        raise op.fail(f"axis {axis}, but its operand has {rank} axes")
    if old and any(d != 1 for d in operands["x"].type.shape[axis % rank + 1 :]):
        _flattened(reader, op, operands, axis % rank)
        return
    _add(reader, op, "softmax", operands, {"axis": axis % rank})


def _flattened(reader: OnnxReader, op: OnnxOp, operands: dict[str, Value], axis: int) -> None:
    """The softmax of rows into which quantized values are laid, and laid back."""
    x, name = operands["x"], op.outputs[0]
    sizes = [d if isinstance(d, int) else -1 for d in x.type.shape]
    if sizes.count(-1) > 1:
        raise KeepOperator(
            f"before opset 13 it takes all axes from {axis} on as one, of open sizes"
        )
    quant, numbers = _result(reader, op, x.type.dtype)
    flat = reader.add(op, "flatten", {"x": x}, {"axis": axis}, names=[reader.spare(f"{name}.rows")])
    made = reader.spare(f"{name}.shares")
    beside = {**operands, "x": flat.result, **numbers}
    soft = reader.add(op, "softmax", beside, {"axis": 1}, names=[made])
    reader.graph.set_type(soft.result, soft.result.type.with_element(quant))
    shape = Array.of(np.array(sizes, np.int64))
    held = reader.graph.constant(shape, name=reader.spare(f"{name}.shape"))
    last = reader.add(op, "reshape", {"x": soft.result, "shape": held})
    reader.graph.set_type(last.result, x.type.with_element(quant))


def average_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearAveragePool along one to three axes."""
    op.only(*_POOL)
    x = reader.type_of(op, op.input(0)).shape
    last = op.integer("channels_last", 0) != 0
    if not 3 <= len(x) <= 5 or (last and len(x) != 4):
        raise KeepOperator
    n, sizes = len(x) - 2, x[1:-1] if last else x[2:]
    kernel, stride = op.integers("kernel_shape", ()), op.integers("strides", (1,) * n)
    pad, ceil = pads(op, sizes, kernel, stride, (1,) * n, n, pool=True), op.integer("ceil_mode", 0)
    if not ceil:
        check_room(sizes, kernel, stride, pad, (1,) * n)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        "ceil": ceil != 0,
        "count_pad": op.integer("count_include_pad", 0) != 0,
        **_layout(last),
    }
    _add(reader, op, f"avg_pool{n}d", _operand(reader, op, 0, "x"), attrs)


def global_average_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearGlobalAveragePool along any axes."""
    op.only("channels_last")
    if not 3 <= reader.type_of(op, op.input(0)).rank <= 5:
        raise KeepOperator
    attrs = _layout(op.integer("channels_last", 0) != 0)
    _add(reader, op, "global_avg_pool", _operand(reader, op, 0, "x"), attrs)


def concat(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearConcat, whose operands may have each their own quantized type."""
    op.only("axis")
    places = layout(op)
    if places is None or not places.operands:
        raise op.fail("joins nothing")
    if any(reader.type_of(op, op.input(p[0])).dtype.is_float for p in places.operands):
        raise KeepOperator
    raw: dict[str, Value] = {}
    for i in range(len(places.operands)):
        raw |= _operand(reader, op, i, f"xs.{i}")
    quant, numbers = _result(reader, op, raw["xs.0"].type.dtype)
    attrs: dict[str, Attr] = {"axis": op.integer("axis", 0)}
    node = reader.add(op, "concat", {**raw, **numbers}, attrs)
    reader.graph.set_type(node.result, node.result.type.with_element(quant))


OPS = {
    ("", "Clip"): clipped.clip,
    ("", "QuantizeLinear"): quantize,
    (MICROSOFT, "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): dequantize,
    (MICROSOFT, "DequantizeLinear"): dequantize,
    ("", "QLinearConv"): conv,
    (MICROSOFT, "QLinearConv"): conv,
    ("", "QLinearMatMul"): matmul,
    (MICROSOFT, "QGemm"): gemm,
    (MICROSOFT, "QLinearAdd"): binary,
    (MICROSOFT, "QLinearMul"): binary,
    (MICROSOFT, "QLinearWhere"): where,
    (MICROSOFT, "QLinearReduceMean"): reduce_mean,
    (MICROSOFT, "QLinearSigmoid"): sigmoid,
    (MICROSOFT, "QLinearLeakyRelu"): leaky_relu,
    (MICROSOFT, "QLinearSoftmax"): softmax,
    (MICROSOFT, "QLinearAveragePool"): average_pool,
    (MICROSOFT, "QLinearGlobalAveragePool"): global_average_pool,
    (MICROSOFT, "QLinearConcat"): concat,
    **dynamic_ops.OPS,
}
