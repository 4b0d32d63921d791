"""TensorFlow's int8 kernels: QuantizeV2, Dequantize, and fused convolutions and matmuls.

A fused kernel becomes a group under the profile of oneDNN. Its operands are quantized values, each
with the two ends of its range, which must be constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32, dtype
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, Granularity, QuantType, TensorType

from . import intel
from .call import NodeCall
from .quantize_v2 import dequantize, quantize
from .ranges import (
    LEVELS,
    PROFILE,
    F,
    RangeEnds,
    as_quantized,
    as_scaled,
    range_of,
    range_results,
    storage_of,
)
from .reader import KeepNode
from .windows import explicit_pads, image_layout

_MIN_FIRST_PROFILE = "tf-2.21.onednn.min_first"
_STOCK_STAGES = frozenset(
    tuple(f"{stages} {end}".split())
    for stages in ("", "BiasAdd", "Relu", "BiasAdd Relu", "BiasAdd Sum Relu")
    for end in ("", "Requantize")
)
"""Fused stages of convolutions for which stock TensorFlow has kernels."""


def _pool(op: str) -> Callable[[NodeCall], Sequence[Value]]:
    def read(call: NodeCall) -> Sequence[Value]:
        call.reader.graph.profile = PROFILE
        range_ends, layout = range_of(call, 1), image_layout(call)
        x = as_scaled(call, call[0], range_ends)
        kernel, stride = layout.sides(call, "ksize"), layout.sides(call, "strides")
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": explicit_pads(call, layout, x.type.shape[1:3], kernel, stride),
            "layout": "NHWC",
        }
        # A pool keeps quantized values, so that the result has the type of its data.
        (float_type,) = infer_result_types(op, {"x": x}, spec(op).complete_attrs(attrs), {})
        pooled = call.add_typed(op, {"x": x}, attrs, float_type.with_element(x.type.element))
        return [pooled, *range_results(call, range_ends)]

    return read


def _concat(call: NodeCall) -> Sequence[Value]:
    call.reader.graph.profile = PROFILE
    count = call.integer("N")
    # Operands: N tensors, the axis, N minima, N maxima.
    limits = [
        call.constant_elements(i).astype(F).reshape(-1) for i in range(count + 1, 3 * count + 1)
    ]
    ranges = [RangeEnds(limits[i], limits[i + count]) for i in range(count)]
    parts = [as_scaled(call, call[i], ranges[i]) for i in range(count)]
    # The axis is the operand after the tensors.
    axis = call.axis(count, parts[0].type.rank)
    # The result's range is the union of the ranges of its parts.
    low = np.min([r.low for r in ranges], axis=0)
    union = RangeEnds(low, np.max([r.high for r in ranges], axis=0))
    operands = {f"xs.{i}": part for i, part in enumerate(parts)}
    attrs: dict[str, Attr] = {"axis": axis}
    (float_type,) = infer_result_types("concat", operands, spec("concat").complete_attrs(attrs), {})
    result_quant = union.scaled_type(storage_of(call, "T"))
    # A type of the first part that means the same is kept as it is.
    first_quant = parts[0].type.quant
    if first_quant is not None and first_quant.has_same_mapping(result_quant):
        result_quant = first_quant
    return [
        call.add_typed("concat", operands, attrs, float_type.with_element(result_quant)),
        *range_results(call, union),
    ]


@dataclass(frozen=True)
class _FusedForm:
    """The stages of a fused op, which determine its operands."""

    stages: tuple[str, ...]
    legacy: bool = False

    def places(self) -> dict[str, int]:
        """Returns the index of each operand; for a range, that of its minimum.

        Legacy ops (`QuantizedConv2DWithBias...`) have another order than `_FusedQuantizedConv2D`.
        """
        tensors = ["x", "w", *(["bias"] if "BiasAdd" in self.stages else [])]
        summed = next((s for s in ("Sum", "Add") if s in self.stages), "")
        ranges = ["x.range", "w.range"]
        result_range = ["result.range"] if "Requantize" in self.stages else []
        # Legacy ops have the summand after all ranges, newer ones before them.
        if self.legacy:
            order = [
                *tensors,
                *ranges,
                *result_range,
                *(["summand", "summand.range"] if summed else []),
            ]
        else:
            summand = ["summand"] if summed else []
            summand_range = ["summand.range"] if summed == "Sum" else []
            order = [*tensors, *summand, *ranges, *summand_range, *result_range]
        places_by_name, index = {}, 0
        for name in order:
            places_by_name[name] = index
            index += 2 if name.endswith(".range") else 1
        return places_by_name


def _quantized_weights(
    call: NodeCall, index: int, range_ends: RangeEnds, perm: tuple[int, ...]
) -> Value:
    """Returns constant weights, transposed to have output channels first."""
    filter_ = call[index].constant
    if filter_ is None or filter_.type.dtype != dtype("i8") or filter_.type.quant:
        raise KeepNode("its filter is no constant of qint8")
    # Filters are HWIO, [height, width, in, out]; matmul weights are [in, out].
    data = np.ascontiguousarray(filter_.data.transpose(perm))
    # A depthwise filter is [height, width, channel, multiplier]; the op has one input channel a
    # group.
    if "Depthwise" in call.node.op:
        data = data.reshape(-1, 1, *data.shape[2:])
    weights_type = TensorType(data.shape, range_ends.scaled_type("i8", 0))
    array = Array(data, weights_type, call.reader.names(call.node, "weights"))
    return call.reader.graph.constant(array)


def _bias(call: NodeCall, index: int, x: RangeEnds, w: RangeEnds, level: float) -> Value:
    """Returns the bias; one of qint32 has the scale of the accumulator."""
    bias = call[index]
    if bias.type.dtype == F32:
        return bias
    if bias.constant is None or bias.type.dtype != dtype("i32"):
        raise KeepNode("its bias is neither float32 nor a constant of qint32")
    # The scale of the accumulator, in float32 and in this order of operations.
    scales = F(1) / (F(level * 127) / (x.absmax * w.absmax)).astype(F)
    scale: tuple[float, ...] | Array = (float(scales[0]),)
    if scales.size > 1:
        scale = Array(scales, TensorType(scales.shape, F32))
    granularity = Granularity(((0, 1),)) if scales.size > 1 else None
    bias_type = TensorType(bias.type.shape, QuantType(dtype("i32"), F32, scale, (), granularity))
    array = Array(bias.constant.data, bias_type, call.reader.names(call.node, "bias"))
    return call.reader.graph.constant(array)


def _stages(
    call: NodeCall, form: _FusedForm, places: Mapping[str, int]
) -> Iterator[tuple[Stage, Value | None]]:
    """Yields the stages after the product, each with its tensor operand or None."""
    for name in form.stages:
        # BiasAdd is an operand of the product; Requantize and Dequantize are in the result's type.
        if name in ("BiasAdd", "Requantize", "Dequantize"):
            continue
        # Sum adds a quantized tensor with a range of its own, Add a float one.
        if name in ("Sum", "Add"):
            summand = call[places["summand"]]
            if name == "Sum":
                summand = as_scaled(call, summand, range_of(call, places["summand.range"]))
            yield Stage("add", spec("add").complete_attrs({}), ("b",), flow="a"), summand
        elif name == "LeakyRelu":
            alpha = call.number("leakyrelu_alpha", 0.2)
            attrs = spec("leaky_relu").complete_attrs({"alpha": alpha})
            yield Stage("leaky_relu", attrs, (), flow="x"), None
        elif name in intel.ACTIVATIONS:
            op, attrs_of_activation = intel.ACTIVATIONS[name]
            yield Stage(op, spec(op).complete_attrs(dict(attrs_of_activation)), (), flow="x"), None
        else:
            raise KeepNode(f"its stage {name} is not read")


def _add_kernel(
    call: NodeCall,
    form: _FusedForm,
    op: str,
    slots: tuple[str, str, str],
    attrs: dict[str, Attr],
    perm: tuple[int, ...],
    min_first: tuple[bool, bool] = (False, False),
) -> Sequence[Value]:
    """Adds a fused kernel; returns its result and the result's range.

    `min_first` says whether data and result are of the mode MIN_FIRST.
    """
    graph, places = call.reader.graph, form.places()
    graph.profile = PROFILE
    data = call[places["x"]].type.quant
    if data is None or str(data.storage) not in ("u8", "i8"):
        raise KeepNode("its data are not quantized by constant ranges")
    x_range = range_of(call, places["x.range"])
    # MIN_FIRST counts u8 values from the minimum; oneDNN kernels otherwise see symmetric types.
    data_type = (
        x_range.min_first_type("u8", first=True)
        if min_first[0]
        else x_range.scaled_type(str(data.storage))
    )
    x, w_range = as_quantized(call[places["x"]], data_type, call), range_of(call, places["w.range"])
    w = _quantized_weights(call, places["w"], w_range, perm)
    # The scale of a range is its largest magnitude divided by the level.
    level = LEVELS[str(data.storage)]
    operands = {slots[0]: x, slots[1]: w}
    if "bias" in places:
        operands[slots[2]] = _bias(call, places["bias"], x_range, w_range, level)
    if op == "conv2d":
        attrs["groups"] = _groups(x.type.shape[3], w)
        # Stock TensorFlow has kernels for these combinations of stages only.
        if not form.legacy and form.stages not in _STOCK_STAGES:
            return _add_intel_convolution(call, form, {"x": x, "w": w}, attrs, (x_range, w_range))
    all_attrs = spec(op).complete_attrs(attrs)
    (float_type,) = infer_result_types(op, operands, all_attrs, {})
    result = _result_range(call, form, places, x_range, w_range, level)
    if result is not None and min_first[1]:
        result = result[0], result[0].min_first_type("u8", first=True)
    result_type = float_type if result is None else float_type.with_element(result[1])
    stages, operands_by_slot = [Stage(op, all_attrs, tuple(operands))], dict(operands)
    for i, (stage, operand) in enumerate(_stages(call, form, places), 1):
        stages.append(stage)
        if operand is not None:
            operands_by_slot[f"{i}.b"] = operand
    group = call.add_group(stages, operands_by_slot, result_type)
    # Kernels with operands of MIN_FIRST have a profile of their own.
    if any(min_first):
        graph.set_profile(group.node, _MIN_FIRST_PROFILE)
    return [group] if result is None else [group, *range_results(call, result[0])]


def _add_intel_convolution(
    call: NodeCall,
    form: _FusedForm,
    data: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    ranges: tuple[RangeEnds, RangeEnds],
) -> Sequence[Value]:
    """Adds a convolution with stages that only Intel's TensorFlow has, as float ops."""
    dequantized = {slot: call.add("dequantize", {"x": value}) for slot, value in data.items()}
    y = call.add("conv2d", dequantized, attrs)
    places = intel.operand_places(form.stages, ("x", "w"), ("x.range", "w.range"))
    return intel.add_stages(call, form.stages, places, y, (*ranges, call[0]), "out_type")


def _groups(channels: object, w: Value) -> int:
    channels_per_group = w.type.shape[1]
    if not isinstance(channels, int) or not isinstance(channels_per_group, int):
        raise KeepNode("the number of its channels is not known")
    return channels // channels_per_group


def _result_range(
    call: NodeCall,
    form: _FusedForm,
    places: Mapping[str, int],
    x: RangeEnds,
    w: RangeEnds,
    level: float,
) -> tuple[RangeEnds, QuantType] | None:
    if "Dequantize" in form.stages:
        return None
    if "Requantize" in form.stages:
        range_ends = range_of(call, places["result.range"])
        return range_ends, range_ends.scaled_type(
            storage_of(call, _RESULT_TYPE_ATTRIBUTE[call.node.op])
        )
    # Without Requantize the result is qint32 in units of the accumulator, whose range is 2^31
    # units.
    # One unit of the accumulator is a step of the data times a step of the weights.
    unit_scale = ((x.absmax / F(level)).astype(F) * (w.absmax / F(127)).astype(F)).astype(F)
    reach, largest = (step * F(2.0**31) for step in (unit_scale, unit_scale.max(keepdims=True)))
    return RangeEnds(-reach, reach), RangeEnds(-largest, largest).scaled_type("i32")


def _convolution(form: Callable[[NodeCall], _FusedForm]) -> Callable[[NodeCall], Sequence[Value]]:
    def read(call: NodeCall) -> Sequence[Value]:
        layout = image_layout(call)
        if layout.layout != "NHWC":
            raise KeepNode("its data_format is not NHWC")
        stride = layout.sides(call, "strides")
        dilation = layout.sides(call, "dilations", (1, 1, 1, 1))
        kernel = [size for size in call.shape(1)[:2] if isinstance(size, int)]
        sizes = call.shape(0)[1:3]
        attrs: dict[str, Attr] = {
            "stride": stride,
            "pad": explicit_pads(call, layout, sizes, kernel, stride, dilation),
            "dilation": dilation,
            "layout": "NHWC",
        }
        # TensorFlow's filters are HWIO; the op's are OIHW.
        perm = (2, 3, 0, 1) if "Depthwise" in call.node.op else (3, 2, 0, 1)
        return _add_kernel(call, form(call), "conv2d", ("x", "w", "bias"), attrs, perm)

    return read


def _quantized_matmul(call: NodeCall) -> Sequence[Value]:
    modes = [call.text(name, "SCALED") for name in ("input_quant_mode", "output_quant_mode")]
    if call.flag("transpose_a"):
        raise KeepNode("its data are transposed")
    form = _FusedForm(call.texts("fused_ops"))
    # The result has a mode of its own only if it is requantized.
    is_min_first = modes[0] == "MIN_FIRST", modes[1] == "MIN_FIRST" and "Requantize" in form.stages
    result_number = call.attr("Tout").type if "Requantize" in form.stages else _QUINT8
    if (is_min_first[0] and call.attr("T1").type != _QUINT8) or (
        is_min_first[1] and result_number != _QUINT8
    ):
        # Combinations in which TensorFlow's kernel is wrong are refused rather than reproduced.
        raise KeepNode("TensorFlow takes qint8 of MIN_FIRST as if it were quint8")
    if "BiasAdd" not in form.stages or not {"Requantize", "Dequantize"} & set(form.stages):
        raise KeepNode(
            "TensorFlow computes it right with BiasAdd and Requantize or Dequantize alone"
        )
    # Operands are data, weights, bias, and then the ranges.
    if call[2].type.dtype != F32:
        raise KeepNode("TensorFlow takes its qint32 bias as if the scale were 1; use a float bias")
    perm = (0, 1) if call.flag("transpose_b") else (1, 0)
    return _add_kernel(call, form, "linear", ("x", "w", "bias"), {}, perm, is_min_first)


def _legacy_matmul(call: NodeCall) -> Sequence[Value]:
    if call.text("input_quant_mode", "MIN_FIRST") != "SCALED" or call.flag("transpose_a"):
        raise KeepNode("only SCALED data that are not transposed are read")
    perm = (0, 1) if call.flag("transpose_b") else (1, 0)
    form = LEGACY_MATMULS[call.node.op]
    return _add_kernel(call, form, "linear", ("x", "w", "bias"), {}, perm)


def _form_of_fused_ops(call: NodeCall) -> _FusedForm:
    return _FusedForm(call.texts("fused_ops"))


_LEGACY_STAGES: Mapping[str, tuple[str, ...]] = {
    "": (),
    "PerChannel": (),
    "AndRelu": ("Relu",),
    "AndRequantize": ("Requantize",),
    "AndReluAndRequantize": ("Relu", "Requantize"),
    "WithBias": ("BiasAdd",),
    "WithBiasAndRelu": ("BiasAdd", "Relu"),
    "WithBiasAndRequantize": ("BiasAdd", "Requantize"),
    "WithBiasAndReluAndRequantize": ("BiasAdd", "Relu", "Requantize"),
    "WithBiasSumAndReluAndRequantize": ("BiasAdd", "Sum", "Relu", "Requantize"),
    "WithBiasSignedSumAndReluAndRequantize": ("BiasAdd", "Sum", "Relu", "Requantize"),
}
LEGACY = {
    f"{stem}{suffix}": _FusedForm(stages, legacy=True)
    for stem in ("QuantizedConv2D", "QuantizedDepthwiseConv2D")
    for suffix, stages in _LEGACY_STAGES.items()
    if stem == "QuantizedConv2D"
    or suffix in ("", "WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
}
LEGACY_MATMULS = {
    f"QuantizedMatMulWithBias{suffix}": _FusedForm(("BiasAdd", *stages), legacy=True)
    for suffix, stages in {
        "": (),
        "AndRelu": ("Relu",),
        "AndRequantize": ("Requantize",),
        "AndReluAndRequantize": ("Relu", "Requantize"),
        "AndDequantize": ("Dequantize",),
    }.items()
}
_QUINT8 = 12
_RESULT_TYPE_ATTRIBUTE = {
    **dict.fromkeys(LEGACY, "out_type"),
    **dict.fromkeys(LEGACY_MATMULS, "Toutput"),
    "_FusedQuantizedConv2D": "out_type",
    "_FusedQuantizedDepthwiseConv2D": "out_type",
    "_QuantizedMatMul": "Tout",
}
"""The attribute with the type of the result."""
INTEL: dict[str, Callable[[NodeCall], Sequence[Value]]] = {
    "_FusedQuantizedConv3D": intel.fused_layer,
    "_FusedQuantizedDeconv2D": intel.fused_layer,
    "_QuantizedBatchMatMul": intel.fused_batch_matmul,
}
"""Kernels that no public build of TensorFlow has."""
OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "QuantizeV2": quantize,
    "Dequantize": dequantize,
    "QuantizedMaxPool": _pool("max_pool2d"),
    "QuantizedAvgPool": _pool("avg_pool2d"),
    "QuantizedConcatV2": _concat,
    "_FusedQuantizedConv2D": _convolution(_form_of_fused_ops),
    "_FusedQuantizedDepthwiseConv2D": _convolution(_form_of_fused_ops),
    "_QuantizedMatMul": _quantized_matmul,
    **INTEL,
    **dict.fromkeys(LEGACY_MATMULS, _legacy_matmul),
    **{name: _convolution(lambda call: LEGACY[call.node.op]) for name in LEGACY},
}
