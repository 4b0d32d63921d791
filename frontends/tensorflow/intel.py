"""Fused kernels of Intel's TensorFlow that stock TensorFlow lacks, as Neural Compressor writes
them.

No public build runs them, so their rounding is unknown. Each is read as float ops between
dequantize
and quantize, and the ledger marks it as unverified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change

from .call import KeepNode, NodeCall
from .convolution import OPS as CONVOLUTIONS
from .graphdef import GraphDefNode
from .products import OPS as PRODUCTS
from .ranges import LEVELS, PROFILE, F, RangeEnds, as_scaled, range_of, range_results, storage_of

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
    beside = [stage for stage in stages if stage in _STAGES_WITH_OPERAND]
    more = ["Sum.range"] if "Sum" in stages else []
    made = ["result.range"] if "Requantize" in stages else []
    found, at = {}, 0
    for name in (*first, *beside, *ends, *more, *made):
        found[name] = at
        at += 2 if name.endswith(".range") else 1
    return found


def fused_layer(call: NodeCall) -> Sequence[Value]:
    """Reads a fused Conv3D or transposed convolution."""
    op, axis = _LAYERS[call.node.op]
    stages, is_transposed = call.texts("fused_ops"), op.endswith("BackpropInput")
    first = ("sizes", "w", "x") if is_transposed else ("x", "w")
    ends = ("w.range", "x.range") if is_transposed else ("x.range", "w.range")
    at = operand_places(stages, first, ends)
    x_range, w_range = (range_of(call, at[name]) for name in ("x.range", "w.range"))
    x, w = (
        _dequantized(call, call[at["x"]], x_range),
        _dequantized_weights(call, at["w"], w_range, axis),
    )
    given = [call[at["sizes"]], w, x] if is_transposed else [x, w]
    y = CONVOLUTIONS[op](_as_float_op(call, op, given))
    return add_stages(call, stages, at, y, (x_range, w_range, call[at["x"]]), "out_type")


def fused_batch_matmul(call: NodeCall) -> Sequence[Value]:
    """Reads a fused BatchMatMul, whose operands may both be computed."""
    stages = call.texts("fused_ops")
    at = operand_places(stages, ("x", "y"), ("x.range", "y.range"))
    for mode in ("input_quant_mode", "output_quant_mode"):
        if call.text(mode, "SCALED") != "SCALED":
            raise KeepNode("only SCALED modes are read")
    ranges = range_of(call, at["x.range"]), range_of(call, at["y.range"])
    given = []
    for name, found in zip(("x", "y"), ranges, strict=True):
        value = call[at[name]]
        plain = value.constant is not None and value.type.quant is None
        given.append(
            _dequantized_weights(call, at[name], found)
            if plain
            else _dequantized(call, value, found)
        )
    y = PRODUCTS["BatchMatMulV2"](_as_float_op(call, "BatchMatMulV2", given))
    return add_stages(call, stages, at, y, (*ranges, call[at["x"]]), "Tout")


def add_stages(
    call: NodeCall,
    stages: Sequence[str],
    at: Mapping[str, int],
    y: Value,
    data: tuple[RangeEnds, RangeEnds, Value],
    kind: str,
) -> Sequence[Value]:
    """Adds the stages after the product; returns the result, and its range if it is quantized."""
    graph = call.reader.graph
    graph.profile = PROFILE
    for stage in stages:
        if stage in _STAGES_WITH_OPERAND:
            y = _add_binary_stage(call, stage, y, at, data)
        elif stage in ("LeakyRelu", "_FusedLeakyRelu"):
            name = "leakyrelu_alpha" if call.has("leakyrelu_alpha") else "alpha"
            y = call.add("leaky_relu", {"x": y}, {"alpha": call.number(name, 0.2)})
        elif stage in ACTIVATIONS:
            op, attrs = ACTIVATIONS[stage]
            y = call.add(op, {"x": y}, attrs)
        elif stage not in ("Requantize", "Dequantize"):
            raise KeepNode(f"its stage {stage} is not read")
    said = f"Intel's {call.node.op} is read as float ops: no public build was compared"
    call.reader.ledger.add(Change.UNVERIFIED, "read tensorflow", call.node.name, said)
    if "Requantize" not in stages:
        if "Dequantize" not in stages:
            raise KeepNode("it gives 32-bit sums")
        return [y]
    made = range_of(call, at["result.range"])
    quant = made.scaled_type(storage_of(call, kind))
    result = call.add_typed("quantize", {"x": y}, {}, y.type.with_element(quant))
    # Fused kernels divide by the scale, which the profile's QuantizeV2 does not.
    graph.set_profile(result.node, "native")
    return [result, *range_results(call, made)]


def _add_binary_stage(
    call: NodeCall,
    stage: str,
    y: Value,
    at: Mapping[str, int],
    data: tuple[RangeEnds, RangeEnds, Value],
) -> Value:
    other = call[at[stage]]
    if stage == "Sum" and other.type.quant is not None:
        other = _dequantized(call, other, range_of(call, at["Sum.range"]))
    if stage == "BiasAdd" and other.type.dtype == dtype("i32"):
        x, w, quantized = data
        if other.constant is None or quantized.type.quant is None:
            raise KeepNode("its bias is neither float32 nor a constant of qint32")
        level = LEVELS[str(quantized.type.quant.storage)]
        step = F(1) / (F(level * 127) / (x.absmax * w.absmax)).astype(F)
        other = call.constant((other.constant.data.astype(F) * step).astype(F), "bias")
    if other.type.dtype != F32:
        raise KeepNode(f"its stage {stage} reads no float32")
    return call.add("mul" if stage == "Mul" else "add", {"a": y, "b": other})


def _dequantized(call: NodeCall, x: Value, found: RangeEnds) -> Value:
    return call.add("dequantize", {"x": as_scaled(call, x, found)})


def _dequantized_weights(
    call: NodeCall, at: int, found: RangeEnds, axis: int | None = None
) -> Value:
    """Returns a constant integer filter, dequantized."""
    held = call[at].constant
    if held is None or held.type.dtype != dtype("i8") or held.type.quant:
        raise KeepNode("its filter is no constant of qint8")
    kind = TensorType(held.data.shape, found.scaled_type("i8", axis))
    array = Array(held.data, kind, call.reader.names(call.node, "weights"))
    return call.add("dequantize", {"x": call.reader.graph.constant(array)})


def _as_float_op(call: NodeCall, op: str, operands: Sequence[Value]) -> NodeCall:
    """Returns a call of the float op with the attributes of the fused one."""
    node = GraphDefNode(call.node.name, op, call.node.inputs, call.node.attrs)
    return NodeCall(call.reader, node, operands)
