"""Fused kernels of Intel's TensorFlow that stock TensorFlow lacks, as Neural Compressor writes
them.

No public build runs them, so their rounding is unknown. Each is read as float ops between
dequantize and quantize, and the ledger marks it as unverified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change

from .call import NodeCall
from .convolution import OPS as CONVOLUTIONS
from .graphdef import GraphDefNode
from .products import OPS as PRODUCTS
from .ranges import LEVELS, PROFILE, F, RangeEnds, as_scaled, range_of, range_results, storage_of
from .reader import KeepNode

ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "Relu": ("relu", {}),
    "Relu6": ("clip", {"min": 0.0, "max": 6.0}),
    "Elu": ("elu", {}),
    "Tanh": ("tanh", {}),
    "Sigmoid": ("sigmoid", {}),
    "GeluExact": ("gelu", {}),
    "GeluApproximate": ("gelu", {"approximate": "tanh"}),
    "_FusedSwish": ("silu", {}),
    "_FusedHardSwish": ("hard_swish", {}),
    "_MklFusedMish": ("mish", {}),
    "_FusedMish": ("mish", {}),
}
"""Activations without parameters, by stage name."""
_STAGES_WITH_OPERAND = ("BiasAdd", "Sum", "Add", "Mul")
"""Stages with a tensor operand."""
_LAYERS = {
    "_FusedQuantizedConv3D": ("Conv3D", 4),
    "_FusedQuantizedDeconv2D": ("Conv2DBackpropInput", 2),
}
"""The float op of a fused layer, and the axis of output channels in its filter."""


def operand_places(
    stages: Sequence[str], first: Sequence[str], ends: Sequence[str]
) -> dict[str, int]:
    """Returns the index of each operand; for a range, that of its minimum."""
    stage_operands = [stage for stage in stages if stage in _STAGES_WITH_OPERAND]
    summand_range = ["Sum.range"] if "Sum" in stages else []
    result_range = ["result.range"] if "Requantize" in stages else []
    places, index = {}, 0
    # Order: tensors, operands of stages, ranges of the tensors, range of the summand and of the
    # result.
    for name in (*first, *stage_operands, *ends, *summand_range, *result_range):
        places[name] = index
        index += 2 if name.endswith(".range") else 1
    return places


def fused_layer(call: NodeCall) -> Sequence[Value]:
    """Reads a fused Conv3D or transposed convolution."""
    op, axis = _LAYERS[call.node.op]
    stages, is_transposed = call.texts("fused_ops"), op.endswith("BackpropInput")
    first = ("sizes", "w", "x") if is_transposed else ("x", "w")
    ends = ("w.range", "x.range") if is_transposed else ("x.range", "w.range")
    places = operand_places(stages, first, ends)
    x_range, w_range = (range_of(call, places[name]) for name in ("x.range", "w.range"))
    x, w = (
        _dequantized(call, call[places["x"]], x_range),
        _dequantized_weights(call, places["w"], w_range, axis),
    )
    operands = [call[places["sizes"]], w, x] if is_transposed else [x, w]
    y = CONVOLUTIONS[op](_as_float_op(call, op, operands))
    return add_stages(call, stages, places, y, (x_range, w_range, call[places["x"]]), "out_type")


def fused_batch_matmul(call: NodeCall) -> Sequence[Value]:
    """Reads a fused BatchMatMul, whose operands may both be computed."""
    stages = call.texts("fused_ops")
    places = operand_places(stages, ("x", "y"), ("x.range", "y.range"))
    for mode in ("input_quant_mode", "output_quant_mode"):
        if call.text(mode, "SCALED") != "SCALED":
            raise KeepNode("only SCALED modes are read")
    ranges = range_of(call, places["x.range"]), range_of(call, places["y.range"])
    operands = []
    for name, range_ends in zip(("x", "y"), ranges, strict=True):
        value = call[places[name]]
        is_constant = value.constant is not None and value.type.quant is None
        operands.append(
            _dequantized_weights(call, places[name], range_ends)
            if is_constant
            else _dequantized(call, value, range_ends)
        )
    y = PRODUCTS["BatchMatMulV2"](_as_float_op(call, "BatchMatMulV2", operands))
    return add_stages(call, stages, places, y, (*ranges, call[places["x"]]), "Tout")


def add_stages(
    call: NodeCall,
    stages: Sequence[str],
    places: Mapping[str, int],
    y: Value,
    data: tuple[RangeEnds, RangeEnds, Value],
    type_attribute: str,
) -> Sequence[Value]:
    """Adds the stages after the product; returns the result, and its range if it is quantized."""
    graph = call.reader.graph
    graph.profile = PROFILE
    for stage in stages:
        if stage in _STAGES_WITH_OPERAND:
            y = _add_binary_stage(call, stage, y, places, data)
        elif stage in ("LeakyRelu", "_FusedLeakyRelu"):
            name = "leakyrelu_alpha" if call.has("leakyrelu_alpha") else "alpha"
            y = call.add("leaky_relu", {"x": y}, {"alpha": call.number(name, 0.2)})
        elif stage in ACTIVATIONS:
            op, attrs = ACTIVATIONS[stage]
            y = call.add(op, {"x": y}, attrs)
        elif stage not in ("Requantize", "Dequantize"):
            raise KeepNode(f"its stage {stage} is not read")
    message = f"Intel's {call.node.op} is read as float ops: no public build was compared"
    call.reader.ledger.add(Change.UNVERIFIED, "read tensorflow", call.node.name, message)
    if "Requantize" not in stages:
        if "Dequantize" not in stages:
            raise KeepNode("it gives 32-bit sums")
        return [y]
    result_range = range_of(call, places["result.range"])
    quant = result_range.scaled_type(storage_of(call, type_attribute))
    result = call.add_typed("quantize", {"x": y}, {}, y.type.with_element(quant))
    # Fused kernels divide by the scale, which the profile's QuantizeV2 does not.
    graph.set_profile(result.node, "native")
    return [result, *range_results(call, result_range)]


def _add_binary_stage(
    call: NodeCall,
    stage: str,
    y: Value,
    places: Mapping[str, int],
    data: tuple[RangeEnds, RangeEnds, Value],
) -> Value:
    operand = call[places[stage]]
    if stage == "Sum" and operand.type.quant is not None:
        operand = _dequantized(call, operand, range_of(call, places["Sum.range"]))
    # An int32 bias has the scale of the accumulator.
    if stage == "BiasAdd" and operand.type.dtype == dtype("i32"):
        x, w, quantized = data
        if operand.constant is None or quantized.type.quant is None:
            raise KeepNode("its bias is neither float32 nor a constant of qint32")
        level = LEVELS[str(quantized.type.quant.storage)]
        step = F(1) / (F(level * 127) / (x.absmax * w.absmax)).astype(F)
        operand = call.constant((operand.constant.data.astype(F) * step).astype(F), "bias")
    if operand.type.dtype != F32:
        raise KeepNode(f"its stage {stage} reads no float32")
    return call.add("mul" if stage == "Mul" else "add", {"a": y, "b": operand})


def _dequantized(call: NodeCall, x: Value, range_ends: RangeEnds) -> Value:
    return call.add("dequantize", {"x": as_scaled(call, x, range_ends)})


def _dequantized_weights(
    call: NodeCall, index: int, range_ends: RangeEnds, axis: int | None = None
) -> Value:
    """Returns a constant integer filter, dequantized."""
    filter_constant = call[index].constant
    if (
        filter_constant is None
        or filter_constant.type.dtype != dtype("i8")
        or filter_constant.type.quant
    ):
        raise KeepNode("its filter is no constant of qint8")
    weights_type = TensorType(filter_constant.data.shape, range_ends.scaled_type("i8", axis))
    array = Array(filter_constant.data, weights_type, call.reader.names(call.node, "weights"))
    return call.add("dequantize", {"x": call.reader.graph.constant(array)})


def _as_float_op(call: NodeCall, op: str, operands: Sequence[Value]) -> NodeCall:
    """Returns a call of the float op with the attributes of the fused one."""
    node = GraphDefNode(call.node.name, op, call.node.inputs, call.node.attrs)
    return NodeCall(call.reader, node, operands)
