"""Writes quantized ops as MXNet's quantized operators.

A quantized tensor of MXNet is three results: the integers, and both ends of their range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.node import Node, Value
from qir.ir.types import QuantType
from qir.ledger import Change

from . import pooling
from .kernel_stages import KernelStage, fused_stages, int_attr_tuple, pads, range_of
from .symbol import Entry, SymbolBuilder
from .weights import Floats, float_bias, float_weights
from .writer import STEP, SymbolWriter, int_attr

# -- ranges ---------------------------------------------------------------------------------------


def calibration_attrs(kind: QuantType) -> dict[str, object]:
    """Returns the attributes that state a range; their text reads back as the same float32."""
    low, high = range_of(kind)
    return {f"{n}_calib_range": str(np.float32(v)) for n, v in (("min", low), ("max", high))}


class Ranges:
    """The ends of the range of each quantized value that is written."""

    def __init__(self, writer: SymbolWriter) -> None:
        self.writer = writer
        self.ends: dict[Value, tuple[Entry, Entry]] = {}

    def set_results(self, value: Value, entry: Entry) -> None:
        """Records the three results of a quantized operator."""
        index, _ = entry
        self.writer.entries[value] = entry
        self.ends[value] = (index, 1), (index, 2)

    def ends_of(self, value: Value) -> tuple[Entry, Entry]:
        """Returns the ends of a value's range; those of constants become parameters."""
        if value not in self.ends:
            kind = value.type.quant
            assert kind is not None
            low, high = (
                self.writer.constant(f"{value.name}_{n}", np.asarray([end], np.float32), value.node)
                for n, end in zip(("min", "max"), range_of(kind), strict=True)
            )
            self.ends[value] = low, high
        return self.ends[value]


# -- operators ------------------------------------------------------------------------------------


def write(ranges: Ranges, node: Node) -> None:
    """Writes a kernel that MXNet has."""
    anchor, *epilogue = fused_stages(node)
    if node.op == "dequantize":
        x = node.operands["x"]
        operands = [ranges.writer.entry(x), *ranges.ends_of(x)]
        ranges.writer.entries[node.result] = ranges.writer.add_result(
            node, "_contrib_dequantize", operands
        )
        return
    if node.op == "recode":  # the same integers, with another range beside them
        ranges.writer.entries[node.result] = ranges.writer.entry(node.operands["x"])
        return
    entry = _WRITERS[anchor.op](ranges, node, anchor, epilogue)
    if node.result.type.quant is None:
        ranges.writer.entries[node.result] = entry
    else:
        ranges.set_results(node.result, entry)


def _result_type(node: Node) -> QuantType:
    kind = node.result.type.quant
    assert kind is not None
    return kind


def _quantize(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    kind = _result_type(node)
    attrs = {"out_type": "uint8" if kind.storage == U8 else "int8", **calibration_attrs(kind)}
    x = ranges.writer.entry(anchor.operands["x"])
    return ranges.writer.add_result(node, "_contrib_quantize_v2", [x], attrs, results=3)


class _LayerSubgraph:
    """The subgraph of a fused layer, with variables in operand order, named as MXNet names them."""

    def __init__(self, node: Node) -> None:
        self.symbol, self.name = SymbolBuilder(), node.result.name

    def variable(self, name: str) -> Entry:
        return self.symbol.variable(f"{name}0")

    def function(self, stage: KernelStage, x: Entry) -> Entry:
        """Adds the activation at the end of a layer."""
        if stage.op == "relu":
            return self.symbol.add("Activation", f"{self.name}_act", [x], {"act_type": "relu"})
        attrs = {"a_min": stage.attrs["min"], "a_max": stage.attrs["max"]}
        return self.symbol.add("clip", f"{self.name}_act", [x], attrs)


def _convolution(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    writer, x, w = ranges.writer, anchor.operands["x"], anchor.operands["w"]
    weights = _float_weights(writer, node, anchor)
    weights, pad = _with_even_padding(anchor, weights)
    weights, groups = _as_one_group(weights, int_attr(anchor.attrs, "groups"))
    bias = _bias_entry(writer, node, anchor)
    # The fused operator holds the float layer as a subgraph, of which MXNet reads the attributes.
    subgraph = _LayerSubgraph(node)
    data = subgraph.variable(x.name)
    operands = [writer.entry(x), _parameter(writer, w, weights, node)]
    inner_operands = [data, subgraph.variable(w.name)]
    if bias is not None:
        operands.append(bias)
        inner_operands.append(subgraph.variable(f"{node.result.name}_bias"))
    attrs = {
        "kernel": weights.shape[2:],
        "num_filter": len(weights),
        "stride": int_attr_tuple(anchor, "stride"),
        "pad": pad,
        "dilate": int_attr_tuple(anchor, "dilation"),
        "num_group": groups,
        "no_bias": bias is None,
    }
    inner_result = subgraph.symbol.add(
        "Convolution", f"{node.result.name}_conv", inner_operands, attrs
    )
    fused_attrs: dict[str, object] = {"quantized": "true", **calibration_attrs(_result_type(node))}
    range_operands: list[Entry] = list(ranges.ends_of(x))
    # Ranges follow all tensors: those of the data, then that of the summand.
    for index, stage in enumerate(epilogue):
        if stage.op == "add":
            (other,) = stage.operands.values()
            operands.append(writer.entry(other))
            range_operands += ranges.ends_of(other)
            pair = [inner_result, subgraph.variable(f"{other.name}_sum")]
            inner_result = subgraph.symbol.add("elemwise_add", f"{node.result.name}_sum", pair)
            fused_attrs["with_sum"] = "true"
        else:
            inner_result = subgraph.function(stage, inner_result)
            fused_attrs["with_postsum_act" if index else "with_act"] = "true"
    return writer.emit(
        "_sg_mkldnn_conv",
        [*operands, *range_operands],
        fused_attrs,
        name=node.result.name,
        results=3,
        subgraph=subgraph.symbol,
    )


def _linear(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    writer, x, w = ranges.writer, anchor.operands["x"], anchor.operands["w"]
    # Integer weights and biases need their ranges as operands, after that of the data.
    stored = _integer_parameters(anchor)
    operands, range_operands = [writer.entry(x)], list(ranges.ends_of(x))
    if stored:
        operands += [writer.entry(v) for v in stored]
        range_operands += [end for v in stored for end in ranges.ends_of(v)]
    else:
        bias = _bias_entry(writer, node, anchor)
        operands.append(_parameter(writer, w, _float_weights(writer, node, anchor), node))
        operands += [] if bias is None else [bias]
    subgraph = _LayerSubgraph(node)
    inner_operands = [subgraph.variable(x.name), subgraph.variable(w.name)]
    if "bias" in anchor.operands:
        inner_operands.append(subgraph.variable(f"{node.result.name}_bias"))
    attrs: dict[str, object] = {
        "num_hidden": w.type.shape[int(anchor.transposed)],
        "no_bias": "bias" not in anchor.operands,
    }
    if x.type.rank != 2:
        attrs["flatten"] = False
    inner_result = subgraph.symbol.add(
        "FullyConnected", f"{node.result.name}_fc", inner_operands, attrs
    )
    for stage in epilogue:
        inner_result = subgraph.function(stage, inner_result)
    fused_attrs: dict[str, object] = {"quantized": "True"}
    if not stored:
        fused_attrs["channel_wise_quantize"] = "True"
    if epilogue:
        fused_attrs["with_eltwise"] = "True"
    kind = node.result.type.quant
    fused_attrs |= {"enable_float_output": "True"} if kind is None else calibration_attrs(kind)
    return writer.emit(
        "_sg_mkldnn_fully_connected",
        [*operands, *range_operands],
        fused_attrs,
        name=node.result.name,
        results=1 if kind is None else 3,
        subgraph=subgraph.symbol,
    )


def _integer_parameters(anchor: KernelStage) -> list[Value]:
    """Returns weights and bias that MXNet's file can hold as integers: int8 with one scale each."""
    parameters = [anchor.operands[slot] for slot in ("w", "bias") if slot in anchor.operands]
    types = [value.type.quant for value in parameters]
    are_plain_int8 = all(k is not None and k.granularity is None and k.storage == I8 for k in types)
    return parameters if are_plain_int8 and not anchor.transposed else []


def _parameter(writer: SymbolWriter, w: Value, floats: Floats, node: Node) -> Entry:
    name = w.name.removesuffix(".q")
    return writer.parameter(writer.fresh(name), floats, node)


def _float_weights(writer: SymbolWriter, node: Node, anchor: KernelStage) -> Floats:
    """Returns float weights, and reports how MXNet quantizes them."""
    w = anchor.operands["w"]
    assert w.constant is not None
    integers = np.ascontiguousarray(w.constant.data.T) if anchor.transposed else w.constant.data
    if w.type.quant is None:
        return integers.astype(np.float32)
    recovered = float_weights(integers.astype(np.int8), w.type.quant)
    name = node.result.name
    if recovered.moved or recovered.scales:
        reason = (
            f"MXNet quantizes float weights when it loads them: {recovered.moved} integers move, "
        )
        reason += f"{recovered.scales} channels get another scale"
        writer.ledger.add(Change.NUDGED, STEP, name, reason, codes=float(max(recovered.steps, 1)))
    else:
        reason = "the weights that MXNet quantizes when it loads them become the same integers"
        writer.ledger.add(Change.EXACT, STEP, name, reason, basis="test")
    return recovered.reals


def _bias_entry(writer: SymbolWriter, node: Node, anchor: KernelStage) -> Entry | None:
    value = anchor.operands.get("bias")
    if value is None:
        return None
    data = value.constant
    assert data is not None
    if value.type.quant is None and value.type.dtype.is_float:
        return writer.entry(value)
    x, w = anchor.operands["x"].type.quant, anchor.operands["w"].type.quant
    assert x is not None
    if w is None:
        raise writer.refuse(node, "its bias is integer, its weights are float")
    floats, moved = float_bias(data.data.astype(np.int32), x, w)
    if moved:
        reason = f"{moved} integers of its bias move by the rounding of floats"
        writer.ledger.add(Change.NUDGED, STEP, node.result.name, reason, codes=1.0)
    # The bias has the name again that it had as a float.
    name = value.name.removesuffix(".raw").removesuffix(".q")
    return writer.parameter(writer.fresh(name), floats, node)


def _with_even_padding(anchor: KernelStage, weights: Floats) -> tuple[Floats, tuple[int, ...]]:
    """Returns weights and padding that is the same on both sides.

    Where one side has more, the kernel grows by rows of zeros on the other side, which begin in
    padding.
    """
    before, after = pads(anchor)
    kernel_padding = [(0, 0), (0, 0)]
    # The kernel grows by the difference in units of its dilation, with weights of zero.
    for a, b, d in zip(before, after, int_attr_tuple(anchor, "dilation"), strict=True):
        gap = (b - a) // d
        kernel_padding.append((max(gap, 0), max(-gap, 0)))
    return np.pad(weights, kernel_padding), tuple(
        max(a, b) for a, b in zip(before, after, strict=True)
    )


def _as_one_group(weights: Floats, groups: int) -> tuple[Floats, int]:
    """Returns weights as one group, with zeros between channels of different groups.

    MXNet quantizes grouped weights by the scales of other channels: it passes one scale a channel
    to oneDNN's reorder, with a mask that reads one a group.
    """
    per_group = len(weights) // groups
    if groups == 1 or per_group == 1:
        return weights, groups
    # Zeros between the groups multiply the data of other groups, which adds nothing.
    width = weights.shape[1]
    expanded = np.zeros((len(weights), width * groups, *weights.shape[2:]), weights.dtype)
    for group in range(groups):
        rows = slice(group * per_group, (group + 1) * per_group)
        expanded[rows, group * width : (group + 1) * width] = weights[rows]
    return expanded, 1


def _binary(op: str) -> Callable[[Ranges, Node, KernelStage, Sequence[KernelStage]], Entry]:
    def write(
        ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
    ) -> Entry:
        parts = list(anchor.operands.values())
        range_operands = [end for part in parts for end in ranges.ends_of(part)]
        operands = [*(ranges.writer.entry(p) for p in parts), *range_operands]
        kind = node.result.type.quant
        attrs: dict[str, object] = {"enable_float_output": "True"}
        if kind is not None:
            attrs = calibration_attrs(kind)
        # A concat has no calibrated range: its result has the widest one of its operands.
        if op == "concat":
            attrs = {"dim": anchor.attrs["axis"], "num_args": len(parts)}
        # An operator on integers returns its result and both ends of the range.
        count = 1 if kind is None else 3
        return ranges.writer.add_result(
            node, f"_contrib_quantized_{op}", operands, attrs, results=count
        )

    return write


def _embedding(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    writer, w = ranges.writer, anchor.operands["w"]
    operands = [writer.entry(anchor.operands["indices"]), writer.entry(w), *ranges.ends_of(w)]
    count, width = writer.sizes(node, w)
    attrs = {"input_dim": count, "output_dim": width}
    return writer.add_result(node, "_contrib_quantized_embedding", operands, attrs, results=3)


def _unary(
    ranges: Ranges, node: Node, anchor: KernelStage, op: str, attrs: dict[str, object]
) -> Entry:
    x = anchor.operands["x"]
    operands = [ranges.writer.entry(x), *ranges.ends_of(x)]
    return ranges.writer.add_result(node, f"_contrib_quantized_{op}", operands, attrs, results=3)


def _pool(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    if anchor.op == "global_avg_pool":
        attrs = pooling.global_pool_attributes(node, "avg")
    else:
        attrs = pooling.pool_attributes(ranges.writer, node, anchor.op.partition("_")[0])
    return _unary(ranges, node, anchor, "pooling", attrs)


def _batch_norm(
    ranges: Ranges, node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]
) -> Entry:
    writer = ranges.writer
    operands = [writer.entry(anchor.operands[s]) for s in ("x", "gamma", "beta")]
    operands += [writer.state(anchor.operands[s]) for s in ("mean", "var")]
    operands += ranges.ends_of(anchor.operands["x"])
    attrs = {
        "eps": anchor.attrs["eps"],
        "fix_gamma": False,
        **calibration_attrs(_result_type(node)),
    }
    return writer.add_result(node, "_contrib_quantized_batch_norm", operands, attrs, results=3)


_WRITERS: Mapping[str, Callable[[Ranges, Node, KernelStage, Sequence[KernelStage]], Entry]] = {
    "quantize": _quantize,
    "conv2d": _convolution,
    "linear": _linear,
    "add": _binary("elemwise_add"),
    "concat": _binary("concat"),
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "global_avg_pool": _pool,
    "flatten": lambda ranges, node, first, rest: _unary(ranges, node, first, "flatten", {}),
    "relu": lambda ranges, node, first, rest: _unary(
        ranges, node, first, "act", {"act_type": "relu"}
    ),
    "batch_norm": _batch_norm,
    "mul": _binary("elemwise_mul"),
    "embedding": _embedding,
}
