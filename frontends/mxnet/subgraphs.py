"""Fused layers: `_sg_mkldnn_conv` and `_sg_mkldnn_fully_connected`, float and quantized.

The fused ops are in a subgraph, whose variables are the operands of the outer node, in order. The
ranges of quantized operands are further operands of the outer node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change

from . import convolution
from .call import SymbolCall
from .grouped_weights import grouped_weights
from .quantized import PROFILE, UNCALIBRATED
from .ranges import (
    HOW_TO_CALIBRATE,
    I8,
    U8,
    calibrated_range,
    note_refused_range,
    quantized_operand,
    quantized_type,
    results_with_range,
)
from .results import Result, Unsupported
from .symbol import Symbol, SymbolNode, shortened
from .uncalibrated import LayerSums, absmax_of, relu

_FLAGS = (
    "quantized with_bn with_act with_sum with_postsum_act with_eltwise enable_float_output"
    " channel_wise_quantize in_sum_at_begin __subgraph__"
).split()


def _subgraph(call: SymbolCall) -> Symbol:
    if len(call.node.subgraphs) != 1:
        raise Unsupported(f"it has {len(call.node.subgraphs)} subgraphs, one is needed")
    return call.node.subgraphs[0]


def _add_float_subgraph(call: SymbolCall) -> Result:
    """Adds the ops of a float subgraph."""
    call.ignore(*_FLAGS, "min_calib_range", "max_calib_range")
    subgraph, next_operand = _subgraph(call), 0
    results: list[list[Result]] = []
    for node in subgraph.nodes:
        if node.is_variable:
            results.append([call.value(next_operand)])
            next_operand += 1
            continue
        handler = call.reader.converter(node.op)
        if handler is None:
            raise Unsupported(f"its {node.description} is not read")
        inner_call = SymbolCall(
            call.reader, node, [_result_of(results, entry) for entry in node.inputs]
        )
        outcome = handler(inner_call)
        if unread := inner_call.attrs.unread_names():
            raise Unsupported(f"attribute {shortened(unread[0])} of its {node.label} is not read")
        results.append(outcome if isinstance(outcome, list) else [outcome])
    return _result_of(results, subgraph.heads[0])


def _result_of(results: list[list[Result]], entry: tuple[int, int]) -> Result:
    index, result_index = entry
    if result_index >= len(results[index]):
        raise Unsupported("a node of its subgraph reads a result that is not computed")
    return results[index][result_index]


@dataclass(frozen=True)
class _EpilogueStep:
    """An op after the layer in a fused kernel: a function, or an addition of another operand."""

    op: str
    attrs: dict[str, Attr] = field(default_factory=dict)
    summand: tuple[int, int, int] | None = None
    """Operand indices of the other tensor and of its range."""


class _FusedSubgraph:
    """A quantized subgraph, with its variables matched to operands of the outer node."""

    def __init__(self, call: SymbolCall) -> None:
        self.call, self.inner = call, _subgraph(call)
        count = sum(node.is_variable for node in self.inner.nodes)
        if count > len(call):
            raise Unsupported(f"its subgraph has {count} variables, it has {len(call)} operands")
        self.count = count
        operand_indices = iter(range(count))
        self.outer = {
            i: next(operand_indices) for i, node in enumerate(self.inner.nodes) if node.is_variable
        }
        """By variable of the subgraph: the operand index of the outer node."""

    def operators(self) -> list[tuple[int, SymbolNode]]:
        indexed = [(i, n) for i, n in enumerate(self.inner.nodes) if not n.is_variable]
        # A fused kernel is a chain, so each operator has to read the one before it.
        for (before, _), (_, node) in pairwise(indexed):
            if before not in [index for index, _ in node.inputs]:
                raise Unsupported(f"its {node.label} does not follow the node before it")
        return indexed

    def operand(self, node: SymbolNode, slot: int) -> int:
        """Returns the operand index of the outer node for an operand of an inner operator."""
        if slot >= len(node.inputs) or node.inputs[slot][0] not in self.outer:
            raise Unsupported(f"operand {slot} of its {node.label} is no operand of the layer")
        return self.outer[node.inputs[slot][0]]

    def inside(self, node: SymbolNode, *values: Value) -> SymbolCall:
        """Returns a call of an inner operator, to read its attributes."""
        return SymbolCall(self.call.reader, node, values)

    def done(self, inner_call: SymbolCall) -> None:
        if unread := inner_call.attrs.unread_names():
            raise Unsupported(
                f"attribute {shortened(unread[0])} of its {inner_call.node.label} is not read"
            )


def _conv(call: SymbolCall) -> Result | list[Result]:
    if not call.attrs.flag("quantized"):
        return _add_float_subgraph(call)
    call.ignore(*_FLAGS)
    fusion = _FusedSubgraph(call)
    (_, first), *later = fusion.operators()
    if first.op != "Convolution":
        raise Unsupported(f"its subgraph begins with {first.op}")
    inner_call = fusion.inside(
        first, *(call.value(fusion.operand(first, s)) for s in range(len(first.inputs)))
    )
    axes, attrs = convolution.layer_attrs(inner_call)
    if axes != 2:
        message = f"it is a convolution along {axes} axes; 2 are read quantized"
        raise Unsupported(f"{message}; quantize the float model with qir quantize")
    layer_operands = convolution.layer_operands(inner_call, no_bias=False)
    w, bias = layer_operands["w"], layer_operands["bias"]
    assert w is not None
    convolution.check_channels(inner_call, "num_filter", w.type.shape[0])
    fusion.done(inner_call)
    # After the operands come the range of the data, then that of each tensor that is added.
    range_index = fusion.count
    data = fusion.operand(first, 0), range_index, range_index + 1
    steps: list[_EpilogueStep] = []
    for _, node in later:
        # A batch norm later in the chain cannot be folded into the weights.
        if node.op == "BatchNorm" and not steps:
            w, bias = _fold_batch_norm(fusion, node, w, bias)
        elif node.op == "elemwise_add":
            range_index += 2
            # The sums of the layer may be either operand; the one from outside is added to them.
            outer = [s for s in range(len(node.inputs)) if node.inputs[s][0] in fusion.outer]
            index = fusion.operand(node, outer[0] if outer else 0)
            steps.append(_EpilogueStep("add", {}, (index, range_index, range_index + 1)))
        else:
            steps.append(_epilogue_function(fusion, node))
    calibrated = calibrated_range(call)
    if calibrated is None:
        # MXNet then returns the 32-bit sums, and a range that it computes.
        sums = LayerSums(call, *data)
        layer_sums, gain = sums.convolution(
            _constant_data(w), None if bias is None else _constant_data(bias), attrs
        )
        return _add_epilogue_to_sums(sums, layer_sums, steps, gain)
    operands = {"x": quantized_operand(call, *data)}
    operands["w"] = grouped_weights(call, operands["x"], w, bias, attrs["groups"])
    if bias is not None:
        operands["bias"] = bias
    return _add_calibrated(call, "conv2d", operands, attrs, steps, calibrated)


def _add_epilogue_to_sums(
    sums: LayerSums, result: Value, steps: list[_EpilogueStep], gain: Value | None = None
) -> list[Result]:
    """Adds the epilogue of a layer whose sums have no calibrated range."""
    for step in steps:
        if step.op == "relu":
            result = relu(sums.call, result)
        elif step.summand and gain is not None:
            result = sums.add_summand(result, gain, step.summand)
        else:
            raise Unsupported(
                f"{step.op} follows sums without a calibrated range; {HOW_TO_CALIBRATE}"
            )
    return sums.results_with_range(result)


def _epilogue_function(fusion: _FusedSubgraph, node: SymbolNode) -> _EpilogueStep:
    """Returns the function of an inner operator as a step of the epilogue."""
    inner_call = fusion.inside(node)
    if node.op == "Activation":
        inner_call.choice("act_type", "relu")
        step = _EpilogueStep("relu")
    elif node.op == "clip":
        low, high = inner_call.attrs.number("a_min"), inner_call.attrs.number("a_max")
        if low != 0:
            raise Unsupported(f"it clips to {low}; only 0 is fused")
        step = _EpilogueStep("clip", {"min": 0.0, "max": high})
    elif node.op == "LeakyReLU":
        step = _leaky_step(inner_call)
    elif node.op == "abs":
        step = _EpilogueStep("abs")
    else:
        raise Unsupported(f"its subgraph holds {node.op}, which is not read in a quantized layer")
    fusion.done(inner_call)
    return step


def _leaky_step(inner_call: SymbolCall) -> _EpilogueStep:
    """Returns the variant of LeakyReLU in `act_type`, of those that MXNet fuses."""
    variant = inner_call.choice("act_type", "leaky", "leaky", "elu", "gelu")
    inner_call.ignore("lower_bound", "upper_bound")
    slope = inner_call.attrs.number("slope", 0.25)
    if variant == "gelu":
        return _EpilogueStep("gelu")
    return _EpilogueStep("elu" if variant == "elu" else "leaky_relu", {"alpha": slope})


def _fold_batch_norm(
    fusion: _FusedSubgraph, node: SymbolNode, w: Value, bias: Value | None
) -> tuple[Value, Value]:
    """Returns weights and bias with a batch norm folded in, rounded as in MXNet's kernel."""
    call = fusion.call
    inner_call = fusion.inside(node, *(call.value(fusion.operand(node, s)) for s in range(1, 5)))
    inner_call.ignore("momentum", "use_global_stats", "output_mean_var", "axis", "cudnn_off")
    inner_call.ignore("min_calib_range", "max_calib_range")
    eps, has_fixed_gamma = (
        inner_call.attrs.number("eps", float(np.float32(1e-3))),
        inner_call.attrs.flag("fix_gamma", True),
    )
    gamma, beta, mean, var = (
        np.asarray(inner_call.parameter_data(i, "batch norm"), np.float32) for i in range(4)
    )
    fusion.done(inner_call)
    # MXNet computes alpha in double, because eps is a double there, and everything else in float.
    numerator = np.ones(gamma.shape, np.float64) if has_fixed_gamma else gamma.astype(np.float64)
    alpha = (numerator / np.sqrt(var.astype(np.float64) + eps)).astype(np.float32)
    weights = _constant_data(w).astype(np.float32)
    scaled = weights * alpha.reshape(-1, *(1,) * (weights.ndim - 1))
    # gamma / std * (x + bias - mean) + beta, without the x.
    folded_bias = (
        beta - alpha * mean if bias is None else beta + alpha * (_constant_data(bias) - mean)
    )
    return call.constant(scaled, "w"), call.constant(folded_bias.astype(np.float32), "bias")


def _constant_data(value: Value) -> Any:
    data = value.node.attrs.get("data") if value.node.op == "constant" else None
    if data is None:
        raise Unsupported("its weights are computed; only parameters are read there")
    return data.data  # type: ignore[union-attr]


def _linear(call: SymbolCall) -> Result | list[Result]:
    if not call.attrs.flag("quantized"):
        return _add_float_subgraph(call)
    call.ignore(*_FLAGS)
    gives_float = call.attrs.flag("enable_float_output")
    fusion = _FusedSubgraph(call)
    (_, first), *later = fusion.operators()
    if first.op != "FullyConnected":
        raise Unsupported(f"its subgraph begins with {first.op}")
    inner_call = fusion.inside(first)
    convolution.check_channels(
        inner_call, "num_hidden", call.value(fusion.operand(first, 1)).type.shape[0]
    )
    is_flattened, has_bias = (
        inner_call.attrs.flag("flatten", True),
        not inner_call.attrs.flag("no_bias"),
    )
    fusion.done(inner_call)
    range_index = fusion.count
    data = fusion.operand(first, 0), range_index, range_index + 1
    w, bias = fusion.operand(first, 1), fusion.operand(first, 2) if has_bias else None
    steps = [_epilogue_function(fusion, node) for _, node in later]
    per_channel = call.attrs.flag("channel_wise_quantize")
    calibrated = calibrated_range(call)
    # A layer that returns floats needs no range.
    if calibrated is None and not gives_float:
        return _linear_sums(call, data, w, bias, is_flattened, steps, per_channel)
    operands = {"x": quantized_operand(call, *data)}
    # Per channel, MXNet quantizes float weights itself; per tensor they come with a range.
    # The ranges of weights and bias come after that of the data.
    operands["w"] = (
        call.value(w)
        if per_channel
        else quantized_operand(call, w, range_index + 2, range_index + 3)
    )
    if bias is not None:
        operands["bias"] = (
            call.value(bias)
            if per_channel
            else quantized_operand(call, bias, range_index + 4, range_index + 5)
        )
    if is_flattened and operands["x"].type.rank != 2:
        operands["x"] = call.add_node("flatten", {"x": operands["x"]}, {"axis": 1}).result
    if gives_float:
        return _add_group(call, "linear", operands, {}, steps, None)
    return _add_calibrated(call, "linear", operands, {}, steps, calibrated)


def _linear_sums(
    call: SymbolCall,
    data: tuple[int, int, int],
    w: int,
    bias: int | None,
    is_flattened: bool,
    steps: list[_EpilogueStep],
    per_channel: bool,
) -> list[Result]:
    """Adds a fully connected layer whose sums have no calibrated range."""
    sums, range_index = LayerSums(call, *data), data[1]
    if sums.x.type.rank != 2:
        if not is_flattened:
            raise Unsupported(f"its data have {sums.x.type.rank} axes, and are not flattened")
        sums.x = call.add("flatten", {"x": sums.x}, {"axis": 1})
    if per_channel:
        if steps:
            raise Unsupported(
                f"{steps[0].op} follows sums without a calibrated range; {HOW_TO_CALIBRATE}"
            )
        message = "MXNet 1.9.1 refuses weights by channel without calibrated ranges"
        call.reader.ledger.add(Change.UNVERIFIED, "read mxnet", call.node.name, message)
        bias_value = None if bias is None else call.value(bias)
        bias_data = None if bias_value is None else _constant_data(bias_value)
        return sums.fully_connected_by_channel(_constant_data(call.value(w)), bias_data)
    weights = quantized_operand(call, w, range_index + 2, range_index + 3)
    bias_value = (
        None if bias is None else quantized_operand(call, bias, range_index + 4, range_index + 5)
    )
    result = sums.fully_connected(
        _constant_data(weights),
        absmax_of(weights),
        None if bias_value is None else _constant_data(bias_value),
        0.0 if bias_value is None else absmax_of(bias_value),
    )
    return _add_epilogue_to_sums(sums, result, steps)


def _note_inexact_function(call: SymbolCall, op: str, steps: list[_EpilogueStep]) -> None:
    """Reports where MXNet's kernels are inexact for a fused function; refuses gelu after conv2d."""
    last_op = steps[-1].op if steps else ""
    if op == "conv2d" and last_op == "gelu":
        fault = "MXNet gives other numbers than gelu after a convolution"
        raise Unsupported(f"{fault}; quantize the float model with qir quantize")
    reasons = []
    if op == "linear" and last_op == "leaky_relu":
        reasons.append("MXNet gives unsigned integers here, and 0 for what is below 0")
    if op == "conv2d" and last_op == "leaky_relu":
        reasons.append("next to ties MXNet may round its LeakyReLU to the other integer")
    if last_op in ("elu", "gelu"):
        reasons.append(
            f"MXNet's {last_op} may differ in the last bits, and next to ties by an integer"
        )
    for reason in reasons:
        call.reader.ledger.add(Change.UNVERIFIED, "read mxnet", call.node.name, reason)


_UNSIGNED_AFTER = {"conv2d": ("relu", "clip"), "linear": ("relu", "clip", "leaky_relu", "abs")}
"""Fused functions after which a layer's result is unsigned."""


def _add_calibrated(
    call: SymbolCall,
    op: str,
    operands: dict[str, Value],
    attrs: dict[str, Attr],
    steps: list[_EpilogueStep],
    calibrated: tuple[float, float] | None,
) -> list[Result]:
    """Adds a layer with an 8-bit result, unsigned after functions such as relu."""
    if calibrated is None:
        raise Unsupported(UNCALIBRATED)
    is_unsigned = bool(steps) and steps[-1].op in _UNSIGNED_AFTER[op]
    _note_inexact_function(call, op, steps)
    if is_unsigned and steps[-1].op != "leaky_relu":
        note_refused_range(call, calibrated[0])
    element = quantized_type(U8 if is_unsigned else I8, *calibrated)
    return results_with_range(_add_group(call, op, operands, attrs, steps, element))


def _add_group(
    call: SymbolCall,
    op: str,
    operands: dict[str, Value],
    attrs: dict[str, Attr],
    steps: list[_EpilogueStep],
    element: QuantType | None,
) -> Value:
    """Adds a layer as one op, or as a group with its epilogue."""
    reader = call.reader
    reader.graph.profile = PROFILE
    layer_attributes = spec(op).complete_attrs(attrs)
    (float_type,) = infer_result_types(op, operands, layer_attributes)
    result_type = TensorType(float_type.shape, element or F32)
    if not steps:
        return call.add_node(op, operands, attrs, [result_type]).result
    stages = [Stage(op, layer_attributes, tuple(operands))]
    operands_by_slot = dict(operands)
    for number, step in enumerate(steps, 1):
        step_attrs = spec(step.op).complete_attrs(step.attrs)
        # The result of the layer flows into slot x of a function, or a of an addition.
        if step.summand is None:
            stages.append(Stage(step.op, step_attrs, (), flow="x"))
        else:
            stages.append(Stage(step.op, step_attrs, ("b",), flow="a"))
            operands_by_slot[f"{number}.b"] = quantized_operand(call, *step.summand)
    origins = [reader.origin(call.node)]
    group = reader.graph.add_chain(
        stages, operands_by_slot, result_type, name=call.fresh_name("fused"), origins=origins
    )
    reader.unnamed.update(group.results)
    return group.result


OPS: dict[str, Callable[[SymbolCall], Result | list[Result]]] = {
    f"_sg_{library}_{name}": handler
    for library in ("mkldnn", "onednn")
    for name, handler in (("conv", _conv), ("fully_connected", _linear))
}
