"""QuantizeLinear, DequantizeLinear, and the QLinear operators of ONNX and onnxruntime.

A QLinear operator becomes the float op's node on operands of quantized types, with the quantized
result type: the integer form of the language. Scales and zero points that are computed become
operands of their own, such as `x.scale` (`dynamic_ops`).
"""

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
from .elements import dtype_of_number
from .float_ops import conv_attrs
from .inferred_types import operand_layout
from .op import MICROSOFT, KeepOperator, OnnxOp
from .reader import OnnxReader
from .windows import check_window_fits, explicit_pads

_QDQ_ATTRIBUTES = ("axis", "saturate", "precision", "output_dtype", "block_size")
_CONV_ATTRIBUTES = (
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
    "channels_last",
)
_POOL_ATTRIBUTES = (
    "auto_pad",
    "ceil_mode",
    "channels_last",
    "count_include_pad",
    "kernel_shape",
    "pads",
    "strides",
)


def quantize(reader: OnnxReader, op: OnnxOp) -> None:
    """Reads QuantizeLinear, per tensor, per channel or per block.

    Computed parameters are read as in `dynamic_ops`.
    """
    op.allow_only(*_QDQ_ATTRIBUTES)
    # `precision` asks for a division in another type than the scale's.
    if op.integer("precision", 0):
        raise KeepOperator
    if dynamic_ops.any_computed(reader, op, 1, 2):
        dynamic_ops.quantize(reader, op)
        return
    output_number = op.integer("output_dtype", 0)
    storage = _zero_point_dtype(reader, op.input(2)) or (
        dtype_of_number(output_number) if output_number else U8
    )
    if storage.is_float and not op.integer("saturate", 1):
        # saturate = 0 makes NaN or infinity of what float8 cannot hold, and kernels disagree.
        raise KeepOperator("float8 values that do not saturate differ between runtimes")
    x = reader.value(op, op.input(0))
    axis = None if op.integer("block_size", 0) else _scale_axis(reader, op)
    quant = _quant_type(reader, op, (1, 2), x.type.with_element(storage), axis)
    if quant.express != x.type.express or x.type.quant:
        raise KeepOperator
    reader.add(op, "quantize", {"x": x}, types=[x.type.with_element(quant)])


def _zero_point_dtype(reader: OnnxReader, zero: str) -> DType | None:
    return reader.constant_dtype(zero) if zero else None


def _scale_axis(reader: OnnxReader, op: OnnxOp) -> int | None:
    """Returns the axis of the scales; None for per tensor, as a list of one scale is."""
    return None if reader.constant_data(op.input(1)).size == 1 else op.integer("axis", 1)


def dequantize(reader: OnnxReader, op: OnnxOp) -> None:
    """DequantizeLinear; a constant operand takes the quantized type that the parameters state."""
    op.allow_only(*_QDQ_ATTRIBUTES)
    if dynamic_ops.any_computed(reader, op, 1, 2):
        dynamic_ops.dequantize(reader, op)
        return
    name, block_size = op.input(0), op.integer("block_size", 0)
    data_type, constant = reader.type_of(op, name), reader.is_constant(name)
    axis = None if block_size else _scale_axis(reader, op)
    quant = _quant_type(reader, op, (1, 2), data_type, axis)
    output_number = op.integer("output_dtype", 0)
    if output_number and dtype_of_number(output_number) != quant.express:
        raise KeepOperator
    if not constant:
        # `inferred_quant_type` knows per-tensor types only, so that an input with several scales
        # still has plain integers here. It takes the type in place if nothing else uses it.
        has_several_scales = axis is not None or block_size > 0
        if (
            data_type.quant is None
            and has_several_scales
            and reader.try_set_quant_type(op, name, quant)
        ):
            x = reader.value(op, name)
        else:
            x = _as_quantized(reader, op, name, quant)
    else:
        x = reader.value(op, name, clipped.with_clip_bounds(reader, name, quant))
        x = clipped.with_clip_origin(reader, name, x)
    # Of all nodes of a QDQ model half are such: their type needs no inference.
    types = [x.type.with_element(x.type.express)] if x.type.quant else None
    reader.add(op, "dequantize", {"x": x}, types=types)


def _quant_type(
    reader: OnnxReader,
    op: OnnxOp,
    indices: tuple[int, int],
    data_type: TensorType,
    axis: int | None,
) -> QuantType:
    scale, zero = op.input(indices[0]), op.input(indices[1])
    if size := op.integer("block_size", 0):
        block_axis = op.integer("axis", 1)
        if not -data_type.rank <= block_axis < data_type.rank:
            raise op.error(f"axis {block_axis}, but its operand has {data_type.rank} axes")
        return reader.block_quant_type(scale, zero, data_type, block_axis % data_type.rank, size)
    if axis is None:
        return reader.quant_type(scale, zero, data_type.dtype)
    # Rank 1 has one axis, whatever the attribute says.
    return reader.quant_type(
        scale, zero, data_type.dtype, data_type.shape, axis if data_type.rank != 1 else 0
    )


# -- quantized operators ------------------------------------------------------------------------


def _quantized_operand(
    reader: OnnxReader, op: OnnxOp, index: int, slot: str, axis: int | None = None
) -> dict[str, Value]:
    """Returns a (tensor, scale, zero point) operand with its quantized type.

    Computed parameters come as operands of their own: `x.scale` and `x.zero`.
    """
    layout = operand_layout(op)
    assert layout is not None
    data, scale, zero = layout.operands[index]
    name = op.input(data)
    data_type = reader.type_of(op, name)
    if dynamic_ops.any_computed(reader, op, scale, zero):
        quant, qparams = _runtime_quant_type(reader, op, (scale, zero), data_type.dtype, axis)
        return {
            slot: dynamic_ops.as_quantized(reader, op, name, quant),
            **_parameter_operands(f"{slot}.", qparams),
        }
    quant = _quant_type(reader, op, (scale, zero), data_type, axis)
    if reader.is_constant(name):
        x = reader.value(op, name, clipped.with_clip_bounds(reader, name, quant))
        return {slot: clipped.with_clip_origin(reader, name, x)}
    return {slot: _as_quantized(reader, op, name, quant)}


def _as_quantized(reader: OnnxReader, op: OnnxOp, name: str, quant: QuantType) -> Value:
    """Returns computed integers as the quantized type that their consumer states.

    If their producer states another type, the bits are reinterpreted by a `recode`, as onnxruntime
    would; the ledger says so.
    """
    value = reader.value(op, name)
    producer_type = value.type.quant
    if producer_type is not None:
        # Bounds that a Clip gave to the producer are no part of what the consumer states.
        with_producer_bounds = (
            quant
            if producer_type.bounds == quant.bounds
            else replace(quant, bounds=producer_type.bounds)
        )
        if producer_type.has_same_mapping(with_producer_bounds) or _differ_in_parameter_shape(
            producer_type, with_producer_bounds
        ):
            return value
    if producer_type is not None:
        reader.note(
            Change.EXACT, name, f"holds {producer_type}, and {op.location} reads it as {quant}"
        )
    return dynamic_ops.as_quantized(reader, op, name, quant)


def _differ_in_parameter_shape(producer_type: QuantType, other: QuantType) -> bool:
    """Returns whether two types differ only in the shape of the arrays of their parameters."""
    if producer_type.granularity is None or producer_type.dynamic or other.dynamic:
        return False
    if replace(producer_type, scale=other.scale, zero=other.zero) != other:
        return False
    pairs = (producer_type.scales(), other.scales()), (producer_type.zeros(), other.zeros())
    return all(np.array_equal(np.ravel(a), np.ravel(b)) for a, b in pairs)


def _parameter_operands(prefix: str, qparams: dict[str, Value]) -> dict[str, Value]:
    return {f"{prefix}{name}": value for name, value in qparams.items()}


def _runtime_quant_type(
    reader: OnnxReader,
    op: OnnxOp,
    indices: tuple[int, int],
    storage: DType,
    axis: int | None = None,
) -> tuple[QuantType, dict[str, Value]]:
    """Returns the type of integers with computed parameters, and these.

    Raises KeepOperator for parameters of other element types.
    """
    qparams = {"scale": reader.value(op, op.input(indices[0]))}
    if op.input(indices[1]):
        qparams["zero"] = reader.value(op, op.input(indices[1]))
    express = qparams["scale"].type.dtype
    # ONNX's own operators accept f16 scales, those of onnxruntime's domain f32 only.
    parameter_types = {"scale": F16 if express == F16 and op.domain == "" else F32, "zero": storage}
    if any(v.type.quant or v.type.dtype != parameter_types[n] for n, v in qparams.items()):
        raise KeepOperator(
            "its scale is no f32, or its zero point of another type than its quantized values"
        )
    granularity = None if axis is None else Granularity(((axis, 1),))
    return QuantType(
        storage, express, None, None if "zero" in qparams else (), granularity
    ), qparams


def _result_quant_type(
    reader: OnnxReader, op: OnnxOp, default_storage: DType
) -> tuple[QuantType, dict[str, Value]]:
    """Returns the result's quantized type, and its parameters where they are computed.

    The storage type is that of the zero point, or `default_storage` without one.
    """
    layout = operand_layout(op)
    assert layout is not None
    assert layout.result_qparams is not None
    scale, zero = layout.result_qparams
    storage = reader.type_of(op, op.input(zero)).dtype if op.input(zero) else default_storage
    if dynamic_ops.any_computed(reader, op, scale, zero):
        return _runtime_quant_type(reader, op, layout.result_qparams, storage)
    return reader.quant_type(op.input(scale), op.input(zero), storage), {}


def _raw_bias(reader: OnnxReader, op: OnnxOp, index: int) -> dict[str, Value]:
    if not (name := op.input(index)):
        return {}
    value = reader.value(op, name)
    # The schemas require int32 here; onnxruntime refuses the model otherwise.
    if value.type.dtype.name != "i32" or value.type.quant:
        raise op.error(f"its bias {name!r} is {value.type.element}, it takes i32")
    return {"bias": value}


def _add_quantized(
    reader: OnnxReader,
    op: OnnxOp,
    float_op: str,
    operands: dict[str, Value],
    attrs: dict[str, Attr],
) -> None:
    """Adds the node in integer form: the op infers the shape, the operator states the type."""
    # Without a zero point of the result, it is stored as the first quantized operand is.
    first = next(v for v in operands.values() if v.type.quant)
    quant, qparams = _result_quant_type(reader, op, first.type.dtype)
    node = reader.add(op, float_op, {**operands, **qparams}, attrs)
    reader.graph.set_type(node.result, node.result.type.with_element(quant))


def _has_several_scales(reader: OnnxReader, op: OnnxOp, index: int) -> bool:
    """Returns whether the scale operand at that index is a list of several."""
    return reader.type_of(op, op.input(index)).shape not in ((), (1,))


def conv(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearConv along one to three axes.

    The bias stays plain i32: its scale is that of the accumulator, x_scale * w_scale.
    """
    op.allow_only(*_CONV_ATTRIBUTES)
    x, w = (reader.type_of(op, op.input(i)).shape for i in (0, 3))
    channels_last = op.integer("channels_last", 0) != 0
    if len(x) != len(w) or not 3 <= len(x) <= 5 or (channels_last and len(x) != 4):
        raise KeepOperator
    attrs = conv_attrs(op, x[1:-1] if channels_last else x[2:], w)
    # Operands of QLinearConv: x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias.
    operands = {
        **_quantized_operand(reader, op, 0, "x"),
        # One scale for each output channel; ONNX has no other granularity for w.
        **_quantized_operand(reader, op, 1, "w", 0 if _has_several_scales(reader, op, 4) else None),
        **_raw_bias(reader, op, 8),
    }
    _add_quantized(
        reader, op, f"conv{len(x) - 2}d", operands, {**attrs, **_layout_attr(channels_last)}
    )


def _layout_attr(channels_last: bool) -> dict[str, Attr]:
    return {"layout": "NHWC"} if channels_last else {}


def _column_axis(reader: OnnxReader, op: OnnxOp, transposed: bool) -> int | None:
    """Returns the axis of per-column scales of `b`, None for a single scale."""
    if not _has_several_scales(reader, op, 4):
        return None
    # Columns are the last axis of `b`, or the one before it when it is transposed; a vector has
    # one.
    rank = reader.type_of(op, op.input(3)).rank
    return max(rank - 2 if transposed else rank - 1, 0)


def matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearMatMul; `b` may have a scale for each column."""
    op.allow_only()
    axis = _column_axis(reader, op, False)
    operands = {
        **_quantized_operand(reader, op, 0, "a"),
        **_quantized_operand(reader, op, 1, "b", axis),
    }
    _add_quantized(reader, op, "matmul", operands, {})


def gemm(reader: OnnxReader, op: OnnxOp) -> None:
    """QGemm; without a result scale its result is float."""
    op.allow_only("alpha", "transA", "transB")
    transposed = op.integer("transB", 0) != 0
    bias = _raw_bias(reader, op, 6)
    operands = {
        **_quantized_operand(reader, op, 0, "a"),
        **_quantized_operand(reader, op, 1, "b", _column_axis(reader, op, transposed)),
        **({"c": bias["bias"]} if bias else {}),
    }
    attrs: dict[str, Attr] = {
        "alpha": op.floating("alpha", 1.0),
        "trans_a": op.integer("transA", 0) != 0,
        "trans_b": transposed,
    }
    if op.input(7):
        _add_quantized(reader, op, "gemm", operands, attrs)
    else:
        # Without the result's scale, QGemm returns floats: x * w summed in i32, then scaled.
        node = reader.add(op, "gemm", operands, attrs)
        reader.graph.set_type(node.result, node.result.type.with_element(F32))


def binary(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearAdd and QLinearMul."""
    op.allow_only()
    operands = {**_quantized_operand(reader, op, 0, "a"), **_quantized_operand(reader, op, 1, "b")}
    _add_quantized(reader, op, "add" if op.type == "QLinearAdd" else "mul", operands, {})


def where(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearWhere, which requantizes both branches to the result's type."""
    op.allow_only()
    operands = {
        "condition": reader.value(op, op.input(0)),
        **_quantized_operand(reader, op, 0, "a"),
        **_quantized_operand(reader, op, 1, "b"),
    }
    _add_quantized(reader, op, "where", operands, {})


def sigmoid(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearSigmoid."""
    op.allow_only()
    _add_quantized(reader, op, "sigmoid", _quantized_operand(reader, op, 0, "x"), {})


def leaky_relu(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearLeakyRelu."""
    op.allow_only("alpha")
    alpha: dict[str, Attr] = {"alpha": op.floating("alpha", 0.01)}
    _add_quantized(reader, op, "leaky_relu", _quantized_operand(reader, op, 0, "x"), alpha)


def reduce_mean(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearReduceMean, for which onnxruntime has a schema and no kernel."""
    op.allow_only("axes", "keepdims")
    operands = _quantized_operand(reader, op, 0, "x")
    attrs: dict[str, Attr] = {
        "axes": op.integers("axes", ()),
        "keep": op.integer("keepdims", 1) != 0,
    }
    _add_quantized(reader, op, "reduce_mean", operands, attrs)


def softmax(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearSoftmax; its `opset` attribute says whose Softmax it replaces.

    Before opset 13, Softmax works on a matrix: all axes from `axis` on are one.
    """
    op.allow_only("axis", "opset")
    operands = _quantized_operand(reader, op, 0, "x")
    # `opset` is an attribute of QLinearSoftmax: the operator set of the Softmax that it replaces.
    is_before_13 = op.integer("opset", 13) < 13
    axis = op.integer("axis", 1 if is_before_13 else -1)
    rank = operands["x"].type.rank
    if not -rank <= axis < rank:
        raise op.error(f"axis {axis}, but its operand has {rank} axes")
    if is_before_13 and any(d != 1 for d in operands["x"].type.shape[axis % rank + 1 :]):
        _flattened_softmax(reader, op, operands, axis % rank)
        return
    _add_quantized(reader, op, "softmax", operands, {"axis": axis % rank})


def _flattened_softmax(
    reader: OnnxReader, op: OnnxOp, operands: dict[str, Value], axis: int
) -> None:
    """Adds flatten, softmax and reshape, as Softmax before opset 13 computes."""
    x, name = operands["x"], op.outputs[0]
    # A reshape infers one open size only.
    sizes = [d if isinstance(d, int) else -1 for d in x.type.shape]
    if sizes.count(-1) > 1:
        raise KeepOperator(
            f"before opset 13 it takes all axes from {axis} on as one, of open sizes"
        )
    quant, qparams = _result_quant_type(reader, op, x.type.dtype)
    flattened = reader.add(
        op, "flatten", {"x": x}, {"axis": axis}, names=[reader.unused_name(f"{name}.rows")]
    )
    softmax_name = reader.unused_name(f"{name}.shares")
    softmax_operands = {**operands, "x": flattened.result, **qparams}
    softmax_node = reader.add(op, "softmax", softmax_operands, {"axis": 1}, names=[softmax_name])
    reader.graph.set_type(softmax_node.result, softmax_node.result.type.with_element(quant))
    shape = Array.of(np.array(sizes, np.int64))
    shape_value = reader.graph.constant(shape, name=reader.unused_name(f"{name}.shape"))
    reshaped = reader.add(op, "reshape", {"x": softmax_node.result, "shape": shape_value})
    reader.graph.set_type(reshaped.result, x.type.with_element(quant))


def average_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearAveragePool along one to three axes."""
    op.allow_only(*_POOL_ATTRIBUTES)
    x = reader.type_of(op, op.input(0)).shape
    channels_last = op.integer("channels_last", 0) != 0
    if not 3 <= len(x) <= 5 or (channels_last and len(x) != 4):
        raise KeepOperator
    axes, sizes = len(x) - 2, x[1:-1] if channels_last else x[2:]
    kernel, stride = op.integers("kernel_shape", ()), op.integers("strides", (1,) * axes)
    pad, ceil = (
        explicit_pads(op, sizes, kernel, stride, (1,) * axes, axes, pool=True),
        op.integer("ceil_mode", 0),
    )
    if not ceil:
        check_window_fits(sizes, kernel, stride, pad, (1,) * axes)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        "ceil": ceil != 0,
        "count_pad": op.integer("count_include_pad", 0) != 0,
        **_layout_attr(channels_last),
    }
    _add_quantized(reader, op, f"avg_pool{axes}d", _quantized_operand(reader, op, 0, "x"), attrs)


def global_average_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearGlobalAveragePool along any axes."""
    op.allow_only("channels_last")
    if not 3 <= reader.type_of(op, op.input(0)).rank <= 5:
        raise KeepOperator
    attrs = _layout_attr(op.integer("channels_last", 0) != 0)
    _add_quantized(reader, op, "global_avg_pool", _quantized_operand(reader, op, 0, "x"), attrs)


def concat(reader: OnnxReader, op: OnnxOp) -> None:
    """QLinearConcat, whose operands may have different quantized types."""
    op.allow_only("axis")
    layout = operand_layout(op)
    if layout is None or not layout.operands:
        raise op.error("joins nothing")
    if any(reader.type_of(op, op.input(p[0])).dtype.is_float for p in layout.operands):
        raise KeepOperator
    operands: dict[str, Value] = {}
    for i in range(len(layout.operands)):
        operands |= _quantized_operand(reader, op, i, f"xs.{i}")
    quant, qparams = _result_quant_type(reader, op, operands["xs.0"].type.dtype)
    attrs: dict[str, Attr] = {"axis": op.integer("axis", 0)}
    node = reader.add(op, "concat", {**operands, **qparams}, attrs)
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
