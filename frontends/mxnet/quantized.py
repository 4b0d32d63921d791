"""Quantized operators with calibrated ranges, as ops on quantized types.

A quantized tensor of MXNet comes with two more results, minimum and maximum of its range. They
become part of its type. Operators without calibrated ranges are read by `uncalibrated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType

from . import pooling, uncalibrated
from .call import SymbolCall
from .ranges import (
    HOW_TO_CALIBRATE,
    I8,
    U8,
    calibrated_range,
    has_empty_range,
    note_empty_range,
    note_refused_range,
    quantized_operand,
    quantized_type,
    results_with_range,
)
from .results import Result, Unsupported

PROFILE = "mxnet-1.9"
UNCALIBRATED = f"the file has no calibrated range for it; {HOW_TO_CALIBRATE}"


def add_quantized(
    call: SymbolCall,
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    element: QuantType | None,
) -> Value:
    """Adds an op with a quantized result, or a float one; its shape is inferred."""
    call.reader.graph.profile = PROFILE
    all_attrs = spec(op).complete_attrs(attrs)
    (float_type,) = infer_result_types(op, operands, all_attrs)
    return call.add_node(op, operands, attrs, [TensorType(float_type.shape, element or F32)]).result


def _calibrated_range(call: SymbolCall) -> tuple[float, float]:
    calibrated = calibrated_range(call)
    if calibrated is None:
        raise Unsupported(UNCALIBRATED)
    return calibrated


def _quantize(call: SymbolCall) -> list[Result]:
    out_type = call.choice("out_type", "int8", "int8", "uint8", "auto")
    calibrated = calibrated_range(call)
    if calibrated is None:
        return uncalibrated.quantize(call, signed=out_type != "uint8")
    low, high = calibrated
    note_empty_range(call, low, high)
    is_signed = out_type == "int8" or (out_type == "auto" and low < 0)
    if not is_signed:
        note_refused_range(call, low)
    element = quantized_type(I8 if is_signed else U8, low, high)
    return results_with_range(add_quantized(call, "quantize", {"x": call.value(0)}, {}, element))


def _dequantize(call: SymbolCall) -> Value:
    call.choice("out_type", "float32")
    call.ignore("min_calib_range", "max_calib_range")
    if uncalibrated.is_uncalibrated(call, 0):
        return uncalibrated.dequantize(call)
    x = quantized_operand(call, 0, 1, 2)
    floats = add_quantized(call, "dequantize", {"x": x}, {}, None)
    if not has_empty_range(x):
        return floats
    # For an empty range, layers assume a scale; _contrib_dequantize multiplies by 0.
    return call.add("mul", {"a": floats, "b": call.number(0.0, F32)})


def _pooling(call: SymbolCall) -> list[Result]:
    if uncalibrated.is_uncalibrated(call, 0):
        return uncalibrated.pooling_of_integers(call)
    x = quantized_operand(call, 0, 1, 2)
    pool_type = call.choice("pool_type", "max", "max", "avg")
    call.ignore("p_value")
    call.choice("layout", "", "", "NCHW")
    if x.type.rank != 4:
        raise Unsupported(f"its data have {x.type.rank} axes; 4 are read")
    if call.attrs.flag("global_pool"):
        call.ignore("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
        if pool_type == "avg":
            return results_with_range(
                add_quantized(call, "global_avg_pool", {"x": x}, {}, x.type.quant)
            )
        # A global max pool is one window over the whole image.
        kernel = (call.size(x, 2), call.size(x, 3))
        attrs: dict[str, Attr] = {"kernel": kernel}
    else:
        attrs = pooling.window_attrs(call)
        counts_padding = call.attrs.flag("count_include_pad", True)
        attrs = attrs if pool_type == "max" else attrs | {"count_pad": counts_padding}
    return results_with_range(
        add_quantized(call, f"{pool_type}_pool2d", {"x": x}, attrs, x.type.quant)
    )


def _flatten(call: SymbolCall) -> list[Result]:
    if uncalibrated.is_uncalibrated(call, 0):
        return uncalibrated.move_integers(call, "flatten", {"axis": 1})
    x = quantized_operand(call, 0, 1, 2)
    return results_with_range(add_quantized(call, "flatten", {"x": x}, {"axis": 1}, x.type.quant))


def _activation(call: SymbolCall) -> list[Result]:
    if uncalibrated.is_uncalibrated(call, 0):
        return uncalibrated.activation(call)
    x = quantized_operand(call, 0, 1, 2)
    call.choice("act_type", "relu")
    return results_with_range(add_quantized(call, "relu", {"x": x}, {}, x.type.quant))


def _concat(call: SymbolCall) -> list[Result]:
    call.ignore("num_args")
    count, remainder = divmod(len(call), 3)
    if remainder or not count:
        raise Unsupported(f"it has {len(call)} operands, three for each tensor are needed")
    parts = [quantized_operand(call, i, count + 2 * i, count + 2 * i + 1) for i in range(count)]
    pairs = [results_with_range(part)[1:] for part in parts]
    # The union of the ranges, with 0 in it.
    low = min(0.0, *(pair[0].number for pair in pairs))  # type: ignore[union-attr]
    high = max(0.0, *(pair[1].number for pair in pairs))  # type: ignore[union-attr]
    is_signed = any(part.type.dtype == I8 for part in parts)
    operands = {f"xs.{i}": part for i, part in enumerate(parts)}
    attrs = {"axis": call.axis("dim", parts[0].type.rank, 1)}
    element = quantized_type(I8 if is_signed else U8, low, high)
    if count == 1:
        return results_with_range(parts[0])
    shapes = [p.type.shape for p in parts]
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise Unsupported("its operands have different numbers of axes")
    return results_with_range(add_quantized(call, "concat", operands, attrs, element))


def _binary(op: str) -> Callable[[SymbolCall], Result | list[Result]]:
    def read(call: SymbolCall) -> Result | list[Result]:
        a, b = quantized_operand(call, 0, 2, 3), quantized_operand(call, 1, 4, 5)
        gives_float = op == "mul" and call.attrs.flag("enable_float_output")
        # The calibrated range has no effect on a float result; it counts as read.
        if gives_float:
            calibrated_range(call)
            return add_quantized(call, op, {"a": a, "b": b}, {}, None)
        is_signed = I8 in (a.type.dtype, b.type.dtype)
        element = quantized_type(I8 if is_signed else U8, *_calibrated_range(call))
        return results_with_range(add_quantized(call, op, {"a": a, "b": b}, {}, element))

    return read


def _batch_norm(call: SymbolCall) -> list[Result]:
    x = quantized_operand(call, 0, 5, 6)
    # The quantized kernel, QuantizedBatchNormForward, ignores fix_gamma.
    call.ignore("momentum", "use_global_stats", "output_mean_var", "fix_gamma", "cudnn_off")
    operands = {
        "x": x,
        "gamma": call.value(1),
        "beta": call.value(2),
        "mean": call.value(3),
        "var": call.value(4),
    }
    attrs = {"eps": call.attrs.number("eps", 1e-3), "axis": call.axis("axis", x.type.rank, 1)}
    return results_with_range(
        add_quantized(
            call, "batch_norm", operands, attrs, quantized_type(I8, *_calibrated_range(call))
        )
    )


def _embedding(call: SymbolCall) -> list[Result]:
    call.ignore("input_dim", "output_dim", "dtype", "sparse_grad")
    call.ignore("min_calib_range", "max_calib_range")
    w = quantized_operand(call, 1, 2, 3)
    # Rows of the table keep their integers and their range.
    operands = {"w": w, "indices": call.indices_as_i64(call.value(0))}
    return results_with_range(add_quantized(call, "embedding", operands, {}, w.type.quant))


OPS: dict[str, Callable[[SymbolCall], Result | list[Result]]] = {
    "_contrib_quantize_v2": _quantize,
    "_contrib_dequantize": _dequantize,
    "_contrib_requantize": uncalibrated.requantize,
    "_contrib_quantized_pooling": _pooling,
    "_contrib_quantized_flatten": _flatten,
    "_contrib_quantized_act": _activation,
    "_contrib_quantized_concat": _concat,
    "_contrib_quantized_elemwise_add": _binary("add"),
    "_contrib_quantized_elemwise_mul": _binary("mul"),
    "_contrib_quantized_batch_norm": _batch_norm,
    "_contrib_quantized_embedding": _embedding,
}
