"""Quantized operators with calibrated ranges: integers of the file's ranges, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType

from . import pooling, uncalibrated
from .call import Made, SymbolCall, Unsupported
from .ranges import (
    CALIBRATE,
    I8,
    U8,
    calibrated,
    integers,
    is_of_nothing,
    note_nothing,
    note_refusal,
    quantized,
    with_range,
)

PROFILE = "mxnet-1.9"
UNCALIBRATED = f"the file has no calibrated range for it; {CALIBRATE}"


def typed(
    call: SymbolCall,
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    element: QuantType | None,
) -> Value:
    """Adds an op whose result is quantized; its shape follows from the operands."""
    call.reader.graph.profile = PROFILE
    full = spec(op).complete_attrs(attrs)
    (kind,) = infer_result_types(op, operands, full)
    return call.place(op, operands, attrs, [TensorType(kind.shape, element or F32)]).result


def _range(call: SymbolCall) -> tuple[float, float]:
    found = calibrated(call)
    if found is None:
        raise Unsupported(UNCALIBRATED)
    return found


def _quantize(call: SymbolCall) -> list[Made]:
    kind = call.only("out_type", "int8", "int8", "uint8", "auto")
    found = calibrated(call)
    if found is None:
        return uncalibrated.quantize(call, signed=kind != "uint8")
    low, high = found
    note_nothing(call, low, high)
    signed = kind == "int8" or (kind == "auto" and low < 0)
    if not signed:
        note_refusal(call, low)
    element = quantized(I8 if signed else U8, low, high)
    return with_range(typed(call, "quantize", {"x": call.value(0)}, {}, element))


def _dequantize(call: SymbolCall) -> Value:
    call.only("out_type", "float32")
    call.skip("min_calib_range", "max_calib_range")
    if uncalibrated.is_plain(call, 0):
        return uncalibrated.dequantize(call)
    x = integers(call, 0, 1, 2)
    made = typed(call, "dequantize", {"x": x}, {}, None)
    if not is_of_nothing(x):
        return made
    # unlike layers, this operator multiplies by the range as it stands
    return call.add("mul", {"a": made, "b": call.number(0.0, F32)})


def _pooling(call: SymbolCall) -> list[Made]:
    if uncalibrated.is_plain(call, 0):
        return uncalibrated.pool(call)
    x = integers(call, 0, 1, 2)
    kind = call.only("pool_type", "max", "max", "avg")
    call.skip("p_value")
    call.only("layout", "", "", "NCHW")
    if x.type.rank != 4:
        raise Unsupported(f"its data have {x.type.rank} axes; 4 are read")
    if call.attrs.flag("global_pool"):
        call.skip("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
        if kind == "avg":
            return with_range(typed(call, "global_avg_pool", {"x": x}, {}, x.type.quant))
        sides = (call.size(x, 2), call.size(x, 3))
        attrs: dict[str, Attr] = {"kernel": sides}
    else:
        attrs = pooling.windows(call)
        counted = call.attrs.flag("count_include_pad", True)
        attrs = attrs if kind == "max" else attrs | {"count_pad": counted}
    return with_range(typed(call, f"{kind}_pool2d", {"x": x}, attrs, x.type.quant))


def _flatten(call: SymbolCall) -> list[Made]:
    if uncalibrated.is_plain(call, 0):
        return uncalibrated.moved(call, "flatten", {"axis": 1})
    x = integers(call, 0, 1, 2)
    return with_range(typed(call, "flatten", {"x": x}, {"axis": 1}, x.type.quant))


def _activation(call: SymbolCall) -> list[Made]:
    if uncalibrated.is_plain(call, 0):
        return uncalibrated.activation(call)
    x = integers(call, 0, 1, 2)
    call.only("act_type", "relu")
    return with_range(typed(call, "relu", {"x": x}, {}, x.type.quant))


def _concat(call: SymbolCall) -> list[Made]:
    call.skip("num_args")
    count, rest = divmod(len(call), 3)
    if rest or not count:
        raise Unsupported(f"it has {len(call)} operands, three for each tensor are needed")
    parts = [integers(call, i, count + 2 * i, count + 2 * i + 1) for i in range(count)]
    pairs = [with_range(part)[1:] for part in parts]
    low = min(0.0, *(pair[0].number for pair in pairs))  # type: ignore[union-attr]
    high = max(0.0, *(pair[1].number for pair in pairs))  # type: ignore[union-attr]
    signed = any(part.type.dtype == I8 for part in parts)
    operands = {f"xs.{i}": part for i, part in enumerate(parts)}
    attrs = {"axis": call.axis("dim", parts[0].type.rank, 1)}
    element = quantized(I8 if signed else U8, low, high)
    if count == 1:
        return with_range(parts[0])
    plain = [p.type.shape for p in parts]
    if any(len(shape) != len(plain[0]) for shape in plain):
        raise Unsupported("its operands have different numbers of axes")
    return with_range(typed(call, "concat", operands, attrs, element))


def _pair(op: str) -> Callable[[SymbolCall], Made | list[Made]]:
    def read(call: SymbolCall) -> Made | list[Made]:
        a, b = integers(call, 0, 2, 3), integers(call, 1, 4, 5)
        real = op == "mul" and call.attrs.flag("enable_float_output")
        if real:
            calibrated(call)
            return typed(call, op, {"a": a, "b": b}, {}, None)
        signed = I8 in (a.type.dtype, b.type.dtype)
        element = quantized(I8 if signed else U8, *_range(call))
        return with_range(typed(call, op, {"a": a, "b": b}, {}, element))

    return read


def _batch_norm(call: SymbolCall) -> list[Made]:
    x = integers(call, 0, 5, 6)
    # fix_gamma is not looked at by the quantized kernel, QuantizedBatchNormForward
    call.skip("momentum", "use_global_stats", "output_mean_var", "fix_gamma", "cudnn_off")
    operands = {
        "x": x,
        "gamma": call.value(1),
        "beta": call.value(2),
        "mean": call.value(3),
        "var": call.value(4),
    }
    attrs = {"eps": call.attrs.real("eps", 1e-3), "axis": call.axis("axis", x.type.rank, 1)}
    return with_range(typed(call, "batch_norm", operands, attrs, quantized(I8, *_range(call))))


def _embedding(call: SymbolCall) -> list[Made]:
    call.skip("input_dim", "output_dim", "dtype", "sparse_grad")
    call.skip("min_calib_range", "max_calib_range")
    w = integers(call, 1, 2, 3)
    operands = {"w": w, "indices": call.whole_numbers(call.value(0))}
    return with_range(typed(call, "embedding", operands, {}, w.type.quant))


OPS: dict[str, Callable[[SymbolCall], Made | list[Made]]] = {
    "_contrib_quantize_v2": _quantize,
    "_contrib_dequantize": _dequantize,
    "_contrib_requantize": uncalibrated.requantize,
    "_contrib_quantized_pooling": _pooling,
    "_contrib_quantized_flatten": _flatten,
    "_contrib_quantized_act": _activation,
    "_contrib_quantized_concat": _concat,
    "_contrib_quantized_elemwise_add": _pair("add"),
    "_contrib_quantized_elemwise_mul": _pair("mul"),
    "_contrib_quantized_batch_norm": _batch_norm,
    "_contrib_quantized_embedding": _embedding,
}
