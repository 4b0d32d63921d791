"""Writes quantized ops as QLinear operators, or in float between dequantize and quantize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from qir.ir.dtype import I32
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import QuantType, TensorType, uniform
from qir.ledger import Change

from ..optimizer import overhanging_pools
from . import custom, dynamic_ops, float_ops
from .float_ops import conv_attrs
from .pool_ops import pool_attrs
from .writer import MICROSOFT, STEP, AttrValue, OnnxWriter, OpToWrite

TryWrite = Callable[[OnnxWriter, OpToWrite], bool]
"""Writes an op as a quantized operator; returns False where the operator does not fit."""
_SOURCE_PREFIXES = {"x": "xXAa", "a": "aA", "w": "w", "b": "bB", "result": "yYC"}
"""The names that QLinear operators have for a slot, as prefixes of `_scale` and `_zero_point`."""
_KEEPS_ELEMENTS = frozenset(
    "reshape flatten transpose squeeze unsqueeze slice concat pad max_pool1d max_pool2d "
    "max_pool3d gather expand tile depth_to_space resize_nearest split".split()
)
"""Ops whose ONNX operators accept integers. The trait `value_preserving` has more, such as
reverse."""
_BYTES_ONLY = frozenset(
    "pad max_pool1d max_pool2d max_pool3d gather expand tile depth_to_space resize_nearest".split()
)
"""Those that runtimes have for 8-bit integers only."""
_INDEX_SLOTS = ("shape", "indices", "sizes")
"""Operands that are positions or sizes, not elements."""


def write(writer: OnnxWriter, work: OpToWrite) -> None:
    """Writes a quantized op; raises Refused for types that ONNX cannot express."""
    # QLinearConcat of one type would do as Concat, but a source's own operator is kept.
    if _only_moves_integers(work) and not any(o.op == "QLinearConcat" for o in work.origins):
        float_ops.write(writer, work, {s: writer.name(v) for s, v in work.operands.items()})
        return
    try_write = _WRITERS.get(work.op)
    if try_write is not None and try_write(writer, work):
        return
    write_in_float(writer, work)


def write_in_float(writer: OnnxWriter, work: OpToWrite) -> None:
    """Writes dequantize, the op in float, quantize."""
    # An averaging window past the padding divides by another count in float AveragePool.
    if overhanging_pools.has_overhang(work.node):
        reason = "windows that exceed the padding count differently in float"
        raise writer.refuse(work.node, f"{reason}; `target='onnxruntime'` has the quantized pool")
    if len(work.node.results) > 1:
        reason = f"ONNX has no {work.op} of {work.kind.quant} quantized values"
        raise writer.refuse(work.node, f"{reason}; `format='qdq'` would do")
    ins = {s: _float_operand(writer, work, s) for s in work.operands}
    quant = work.kind.quant
    if quant is None:
        float_ops.write(writer, work, ins)
        writer.report_float_form(work.op, work.node, work.out)
        return
    float_result = writer.fresh(f"{work.out}_QuantizeLinear_Input")
    float_work = replace(work, kind=work.kind.with_element(quant.express), out=float_result)
    float_ops.write(writer, float_work, ins)
    stem = work.node.result.lineage.tensor
    writer.quantize(
        float_result, work.kind, work.out, work.node, stem, _source_parameter_names(work, "result")
    )
    writer.report_float_form(work.op, work.node, work.out)


def _float_operand(writer: OnnxWriter, work: OpToWrite, slot: str) -> str:
    value = work.operands[slot]
    # An int32 bias of a quantized product counts integer sums; it is no float to be added.
    if value.type.dtype == I32 and value.type.quant is None and slot in ("bias", "c"):
        return _dequantized_bias(writer, work, slot, value)
    return writer.float_tensor(value, work.node)


def _dequantized_bias(writer: OnnxWriter, work: OpToWrite, slot: str, value: Value) -> str:
    """Returns a bias in units of the accumulator, dequantized by the product of both scales."""
    data, weight = ("x", "w") if "x" in work.operands else ("a", "b")
    x, w = work.operands[data].type.quant, work.operands[weight].type.quant
    if x is None or w is None:
        reason = f"its {slot} counts integer sums, and not both sides are quantized"
        raise writer.refuse(work.node, f"{reason}; give it a {slot} of floats")
    alpha = work.float_attr("alpha") if "alpha" in work.attrs else 1.0
    scales = (np.asarray(q.scales(), np.float32) for q in (x, w))
    unit = np.asarray(next(scales) * next(scales) * np.float32(alpha), np.float32)
    # The scale per channel does not match the bias's length: it is multiplied at run time.
    if unit.ndim and (not value.type.shape or value.type.shape[-1] != unit.size):
        return dynamic_ops.dequantized_bias(writer, work, slot)
    axis = value.type.rank - 1 if unit.ndim else None
    quant = uniform(I32, unit, axis=axis, name=value.name)
    scale, _ = writer.parameter_names(quant, value.lineage.tensor, work.node)
    out = writer.fresh(f"{value.name}_DequantizeLinear_Output")
    attrs: dict[str, AttrValue] = {} if axis is None else {"axis": axis}
    writer.emit("DequantizeLinear", [writer.name(value), scale], [out], attrs)
    return out


# -- what onnxruntime's operators accept ---------------------------------------------------------


def _only_moves_integers(work: OpToWrite) -> bool:
    """Returns whether an op only moves integers of one quantized type."""
    quant = work.kind.quant
    if work.op not in _KEEPS_ELEMENTS or quant is None:
        return False
    if work.op in _BYTES_ONLY and quant.storage.name not in ("u8", "i8"):
        return False
    if work.op == "pad" and quant.granularity is not None:
        return False
    if work.op == "split" and (quant.granularity is not None or quant.storage.bits < 8):
        return False
    operand_types = [v.type.quant for s, v in work.operands.items() if s not in _INDEX_SLOTS]
    # A transpose moves the axis of a per-channel type, so the types differ but nothing is rounded.
    permutes = work.op in ("transpose", "squeeze", "unsqueeze")
    return all(g is not None and (permutes or g.has_same_mapping(quant)) for g in operand_types)


def _is_per_tensor(quant: QuantType | None, *storages: str) -> bool:
    return (
        quant is not None
        and quant.granularity is None
        and not custom.needs_function(quant, (), constant=True)
        and quant.express.name == "f32"
        and quant.storage.name in storages
    )


def _have_same_storage(work: OpToWrite, slots: Iterable[str]) -> bool:
    """Returns whether operands and result are all u8 or all i8, each per tensor."""
    quants = [work.operands[s].type.quant for s in slots]
    return any(
        all(_is_per_tensor(q, kind) for q in (*quants, work.kind.quant)) for kind in ("u8", "i8")
    )


def _has_product_kernel(
    work: OpToWrite, data: str, weight: str, axis: int, *, float_result: bool = False
) -> bool:
    """Returns whether onnxruntime has a kernel for a product of these types: U8U8, U8S8 or S8S8."""
    x, w = work.operands[data].type.quant, work.operands[weight].type.quant
    if x is None or w is None or w.express.name != "f32" or w.storage.name not in ("u8", "i8"):
        return False
    if custom.needs_function(w, work.operands[weight].type.shape, constant=True) or (
        w.granularity is not None and w.axis != axis
    ):
        return False
    if _is_per_tensor(x, "u8"):
        return float_result or _is_per_tensor(work.kind.quant, "u8")
    return (
        _is_per_tensor(x, "i8")
        and w.storage.name == "i8"
        and (float_result or _is_per_tensor(work.kind.quant, "i8"))
    )


def _source_parameter_names(work: OpToWrite, slot: str) -> tuple[str | None, str | None]:
    """Returns the source's names of an operand's or result's scale and zero point."""
    # Names of the source keep a rewritten model diffable against the original.
    for origin in (*work.node.slot_origins.get(slot, ()), *work.origins):
        names = dict(origin.operands)
        if origin.op == "QLinearWhere":
            stems = [{"a": "x", "b": "y", "result": "z"}[slot]]
        elif origin.op == "QLinearReduceMean":
            stems = ["data" if slot == "x" else "reduced"]
        elif origin.op.startswith("Q") and origin.op not in ("QuantizeLinear", "QLinearConcat"):
            stems = list(_SOURCE_PREFIXES.get(slot, ""))
        elif origin.op == "QuantizeLinear" and slot == "result":
            stems = ["y"]
        elif origin.op == "DequantizeLinear" and slot != "result":
            stems = ["x"]
        else:
            stems = []
        for stem in stems:
            if f"{stem}_scale" in names:
                zero = names.get(f"{stem}_zero_point") or names.get(f"{stem.lower()}_zero_point")
                return names[f"{stem}_scale"], zero
    return None, None


def _quantized_operand(writer: OnnxWriter, work: OpToWrite, slot: str) -> list[str]:
    """Returns the names of an operand, its scale and its zero point."""
    value = work.operands[slot]
    quant = value.type.quant
    assert quant is not None
    if quant.dynamic:
        return [writer.name(value), *_computed_parameters(writer, work, slot, value.type)]
    writer.check(work.node, quant, constant=value.constant is not None)
    return [
        writer.name(value),
        *writer.parameters_of(value, work.node, _source_parameter_names(work, slot)),
    ]


def _computed_parameters(
    writer: OnnxWriter, work: OpToWrite, slot: str, kind: TensorType
) -> list[str]:
    """Returns the operands that carry scale and zero point; a zero point of 0 where there is
    none."""
    quant = kind.quant
    assert quant is not None
    parameters = dynamic_ops.parameter_tensors(writer, work.node, slot, kind, False)
    if len(parameters) > 1:
        # QLinear operators need a zero point operand, unlike QuantizeLinear.
        return parameters
    zero = np.zeros((), quant.storage.carrier)
    name = f"{work.node.name}_{slot or 'result'}_zero_point"
    return [*parameters, writer.parameter(zero, name, None, quant.storage)]


def _result_parameters(writer: OnnxWriter, work: OpToWrite) -> list[str]:
    """Returns the names of the result's scale and zero point."""
    quant = work.kind.quant
    assert quant is not None
    if quant.dynamic:
        return _computed_parameters(writer, work, "", work.kind)
    writer.check(work.node, quant, constant=False)
    stem = work.node.result.lineage.tensor
    return list(
        writer.parameter_names(quant, stem, work.node, _source_parameter_names(work, "result"))
    )


def _int32_bias(writer: OnnxWriter, work: OpToWrite, slot: str) -> list[str] | None:
    """Returns the bias as a list of names; empty without one, None where it is not int32."""
    value = work.operands.get(slot)
    if value is None:
        return []
    return [writer.name(value)] if value.type.element == I32 else None


def _emit(
    writer: OnnxWriter,
    work: OpToWrite,
    op: str,
    operands: Iterable[str],
    attrs: dict[str, AttrValue] | None = None,
    domain: str = MICROSOFT,
) -> bool:
    if domain and writer.standard:
        return False
    writer.emit(op, operands, [work.out], attrs, domain=domain, origins=work.origins)
    return True


# -- the operators -------------------------------------------------------------------------------


def _conv(writer: OnnxWriter, work: OpToWrite) -> bool:
    # QLinearConv takes its bias as int32 in units of scale(x) * scale(w).
    bias = _int32_bias(writer, work, "bias")
    if bias is None or not _has_product_kernel(work, "x", "w", 0):
        return False
    operands = [
        *_quantized_operand(writer, work, "x"),
        *_quantized_operand(writer, work, "w"),
        *_result_parameters(writer, work),
    ]
    attrs = {**conv_attrs(work), **_channels_last(work)}
    # Only onnxruntime's own QLinearConv has the attribute `channels_last`.
    domain = MICROSOFT if work.is_nhwc else ""
    return _emit(writer, work, "QLinearConv", [*operands, *bias], attrs, domain)


def _matmul(writer: OnnxWriter, work: OpToWrite) -> bool:
    a, b = work.operands["a"].type, work.operands["b"].type
    # QLinearMatMul has neither bias nor transpose attributes; QGemm has both, for rank 2.
    if "bias" in work.operands or work.attrs["trans_a"] or work.attrs["trans_b"]:
        if a.rank != 2 or b.rank != 2:
            return False
        return _qgemm(writer, work, ("a", "b", "bias"), work.attrs["trans_b"] is True)
    if not _has_product_kernel(work, "a", "b", b.rank - 1):
        return False
    operands = [
        *_quantized_operand(writer, work, "a"),
        *_quantized_operand(writer, work, "b"),
        *_result_parameters(writer, work),
    ]
    return _emit(writer, work, "QLinearMatMul", operands, domain="")


def _linear(writer: OnnxWriter, work: OpToWrite) -> bool:
    if work.operands["x"].type.rank != 2:
        return False
    return _qgemm(writer, work, ("x", "w", "bias"), True)


def _gemm(writer: OnnxWriter, work: OpToWrite) -> bool:
    # QGemm has no beta.
    if "c" in work.operands and work.attrs["beta"] != 1.0:
        return False
    return _qgemm(writer, work, ("a", "b", "c"), work.attrs["trans_b"] is True)


def _qgemm(
    writer: OnnxWriter, work: OpToWrite, slots: tuple[str, str, str], transposed: bool
) -> bool:
    data, weight, bias_slot = slots
    bias = _int32_bias(writer, work, bias_slot)
    float_result = work.kind.element == work.kind.express
    if bias is None or not _has_product_kernel(
        work, data, weight, 0 if transposed else 1, float_result=float_result
    ):
        return False
    attrs: dict[str, AttrValue] = {}
    if "alpha" in work.attrs:
        attrs["alpha"] = work.float_attr("alpha")
    if work.attrs.get("trans_a"):
        attrs["transA"] = 1
    if transposed:
        attrs["transB"] = 1
    operands = [*_quantized_operand(writer, work, data), *_quantized_operand(writer, work, weight)]
    # Without scale and zero point of y, QGemm returns floats.
    if not float_result:
        operands += [*(bias or [""]), *_result_parameters(writer, work)]
    return _emit(writer, work, "QGemm", operands if not float_result else operands + bias, attrs)


def _binary(op: str) -> TryWrite:
    def try_write(writer: OnnxWriter, work: OpToWrite) -> bool:
        if not _have_same_storage(work, ("a", "b")):
            return False
        operands = [*_quantized_operand(writer, work, "a"), *_quantized_operand(writer, work, "b")]
        return _emit(writer, work, op, [*operands, *_result_parameters(writer, work)])

    return try_write


def _unary(op: str, attrs: Callable[[OpToWrite], dict[str, AttrValue]]) -> TryWrite:
    def try_write(writer: OnnxWriter, work: OpToWrite) -> bool:
        if not _have_same_storage(work, ("x",)):
            return False
        operands = [*_quantized_operand(writer, work, "x"), *_result_parameters(writer, work)]
        return _emit(writer, work, op, operands, attrs(work))

    return try_write


def _channels_last(work: OpToWrite) -> dict[str, AttrValue]:
    return {"channels_last": 1} if work.is_nhwc else {}


def _concat(writer: OnnxWriter, work: OpToWrite) -> bool:
    slots = work.variadic("xs")
    if not _have_same_storage(work, slots):
        return False
    parts = [name for s in slots for name in _concat_operand(writer, work, s)]
    scale_name, zero_name = (
        _concat_source_name(work, "Y_scale"),
        _concat_source_name(work, "Y_zero_point"),
    )
    stem = work.node.result.lineage.tensor
    if work.kind.quant is not None and work.kind.quant.dynamic:
        pair = _result_parameters(writer, work)
    else:
        pair = [*writer.parameter_names(work.kind.quant, stem, work.node, (scale_name, zero_name))]
    axis: dict[str, AttrValue] = {"axis": work.int_attr("axis")}
    return _emit(writer, work, "QLinearConcat", [*pair, *parts], axis)


def _concat_operand(writer: OnnxWriter, work: OpToWrite, slot: str) -> list[str]:
    position = slot.rpartition(".")[2]
    value = work.operands[slot]
    if value.type.quant is not None and value.type.quant.dynamic:
        return _quantized_operand(writer, work, slot)
    names = (
        _concat_source_name(work, f"X_scale.{position}"),
        _concat_source_name(work, f"X_zero_point.{position}"),
    )
    return [writer.name(value), *writer.parameters_of(value, work.node, names)]


def _concat_source_name(work: OpToWrite, slot: str) -> str | None:
    concats: list[Origin] = [o for o in work.origins if o.op == "QLinearConcat"]
    return dict(concats[0].operands).get(slot) if concats else None


def _where(writer: OnnxWriter, work: OpToWrite) -> bool:
    if not _have_same_storage(work, ("a", "b")):
        return False
    operands = [
        *_quantized_operand(writer, work, "a"),
        *_quantized_operand(writer, work, "b"),
        *_result_parameters(writer, work),
    ]
    condition = writer.name(work.operands["condition"])
    return _emit(writer, work, "QLinearWhere", [condition, *operands])


def _reduce_mean(writer: OnnxWriter, work: OpToWrite) -> bool:
    """Writes QLinearReduceMean if the source had it: onnxruntime has no kernel for it."""
    if not any(o.op == "QLinearReduceMean" for o in work.origins) or not _have_same_storage(
        work, ("x",)
    ):
        return False
    attrs: dict[str, AttrValue] = {
        "axes": work.int_tuple("axes"),
        "keepdims": int(work.attrs["keep"] is True),
    }
    operands = [*_quantized_operand(writer, work, "x"), *_result_parameters(writer, work)]
    return _emit(writer, work, "QLinearReduceMean", operands, attrs)


def write_computed_parameters(writer: OnnxWriter, node: Node) -> bool:
    """Writes an op with computed parameters as a quantized operator; returns False if none fits."""
    try_write = _WRITERS.get(node.op)
    types = (node.results[0].type, *(v.type for v in node.operands.values()))
    if try_write is None or len(node.results) != 1:
        return False
    if node.results[0].type.quant is None and node.op != "gemm":
        return False
    if any(k.quant is not None and k.quant.has_float_zero for k in types):
        return False
    parameters = dynamic_ops.parameter_operands(node)
    operands = {s: v for s, v in node.operands.items() if s not in parameters}
    value = node.result
    out = writer.name(value)
    work = OpToWrite.of(node.op, node.attrs, operands, value.type, out, node, node.origins)
    return try_write(writer, work)


_WRITERS: dict[str, TryWrite] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "matmul": _matmul,
    "linear": _linear,
    "gemm": _gemm,
    "add": _binary("QLinearAdd"),
    "mul": _binary("QLinearMul"),
    "sigmoid": _unary("QLinearSigmoid", lambda work: {}),
    "leaky_relu": _unary("QLinearLeakyRelu", lambda work: {"alpha": work.float_attr("alpha")}),
    # Below opset 13, Softmax flattens all axes from `axis` on; QLinearSoftmax follows its
    # attribute.
    "softmax": _unary("QLinearSoftmax", lambda work: {"axis": work.int_attr("axis"), "opset": 13}),
    "where": _where,
    "reduce_mean": _reduce_mean,
    "avg_pool1d": _unary("QLinearAveragePool", pool_attrs),
    "avg_pool2d": _unary(
        "QLinearAveragePool", lambda work: {**pool_attrs(work), **_channels_last(work)}
    ),
    "avg_pool3d": _unary("QLinearAveragePool", pool_attrs),
    "global_avg_pool": _unary("QLinearGlobalAveragePool", _channels_last),
    "concat": _concat,
}


# -- chains --------------------------------------------------------------------------------------


def clamps_as_storage(op: str, attrs: OpToWrite, kind: QuantType) -> bool:
    """Returns whether rounding into the storage clamps all that the activation would."""
    low, high = _clamp_bounds(op, attrs)
    scale, zero = np.float32(kind.scales()), int(kind.zeros())
    # The activation is redundant where its bounds, quantized, reach the ends of the storage.
    low_is_clamped = low is None or np.rint(np.float32(low) / scale) + zero <= kind.low
    return bool(
        low_is_clamped and (high is None or np.rint(np.float32(high) / scale) + zero >= kind.high)
    )


def _clamp_bounds(op: str, work: OpToWrite) -> tuple[float | None, float | None]:
    if op == "relu":
        return 0.0, None
    low, high = work.attrs["min"], work.attrs["max"]
    return (low if isinstance(low, float) else None, high if isinstance(high, float) else None)


def write_chain(writer: OnnxWriter, works: list[OpToWrite]) -> None:
    """Writes a chain: a quantized op and its fused activations.

    Raises Refused for any other chain: onnxruntime has no operator for it.
    """
    anchor, *activations = works
    quant = anchor.kind.quant
    text = " |> ".join(w.op for w in works)
    is_fusible = quant is not None and quant.granularity is None and anchor.op in _WRITERS
    rounds_between = any(s.type is not None for s in anchor.node.stages[:-1])
    if not is_fusible or rounds_between or any(t.op not in ("relu", "clip") for t in activations):
        raise writer.refuse(
            anchor.node, f"onnxruntime has no operator for {text}; `format='qdq'` would do"
        )
    assert quant is not None
    # What the saturation of the anchor does already is not written again.
    remaining = [t for t in activations if not clamps_as_storage(t.op, t, quant)]
    out = anchor.out if not remaining else writer.fresh(f"{anchor.out}_before_{remaining[0].op}")
    write(writer, replace(anchor, out=out))
    for i, work in enumerate(remaining):
        target = (
            work.out if i == len(remaining) - 1 else writer.fresh(f"{work.out}_before_{work.op}")
        )
        _write_activation(writer, replace(work, out=target), out, anchor.kind)
        out = target
    if remaining:
        ops = ", ".join(w.op for w in remaining)
        writer.ledger.add(
            Change.EXACT,
            STEP,
            anchor.out,
            f"{ops} is written after the rounding, on the quantized values: rounding keeps order",
        )


def _write_activation(
    writer: OnnxWriter, work: OpToWrite, quantized: str, kind: TensorType
) -> None:
    """Writes dequantize, the activation, quantize, all with one quantized type."""
    quant, node = kind.quant, work.node
    assert quant is not None
    scale, zero = writer.parameter_names(
        quant, node.result.lineage.tensor, node, _source_parameter_names(work, "result")
    )
    floats, activated = writer.fresh(f"{work.out}_real"), writer.fresh(f"{work.out}_{work.op}")
    writer.emit("DequantizeLinear", [quantized, scale, zero], [floats])
    float_work = replace(work, kind=kind.with_element(quant.express), out=activated)
    float_ops.write(writer, float_work, {"x": floats})
    writer.emit("QuantizeLinear", [activated, scale, zero], [work.out])
