"""Layers that read or make 16-bit data: all their data get 16 bits, by QUANTIZE next to them.

Kernels have one element type for data and results. Where 8 and 16 bits meet, the layer between
them computes in 16 bits. Its 8-bit results are requantized after it; its 8-bit data become 16-bit
ones before it, as floats between, since QUANTIZE makes no 16 bits of 8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.dtype import I8, I16, I64
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.passes.forms.group.pairs import put_pair

from . import transposed
from .kernels import FIXED_RESULTS, KEEPING, ON_16_BITS, is_fused_clip
from .network import clip_bounds

_FINER = 128
"""Steps of 16 bits in one of 8: the differences of 8-bit values from their zero point fit."""
_FAR = 2.0**30
"""Bounds of so many steps are dropped."""
_REACH = 32767
"""The largest 16-bit value that scales are chosen by."""


def compute_in_16_bits(graph: Graph, ledger: Ledger, step: str) -> None:
    """Gives layers that read or make 16-bit data no other data, and a bias of 64 bits."""
    widened: dict[Value, Value] = {}
    for node in list(graph):
        if node.op not in ON_16_BITS or node.stages:
            continue
        data, made = _data(node), _quantize_of(node)
        if data is None or made is None:
            continue
        kinds = {value.type.quant: value for value in (*data.values(), made.result)}
        if {kind.storage for kind in kinds if kind is not None} not in ({I16}, {I8, I16}):
            continue
        if node.op not in KEEPING:
            narrow = [slot for slot, value in data.items() if _storage(value) == I8]
            for slot in narrow:
                graph.set_operand(node, slot, _wide_operand(graph, node, slot, widened))
            if _storage(made.result) == I8:
                made = _narrow_result(graph, node, made)
                narrow.append("result")
            if narrow:
                reason = f"{node.op} in 16 bits: its {', '.join(narrow)} of 8 bits is requantized"
                ledger.add(Change.REGROUPED, step, node.results[0].name, reason)
        _store_wide_bias(graph, node)
        _drop_far_bounds(graph, made)


def _drop_far_bounds(graph: Graph, quantize: Node) -> None:
    """Drops bounds of an activation that no 16-bit value reaches and 32 bits may not hold.

    Kernels that would quantize such a bound refuse the whole model.
    """
    clip, quant = quantize.operands["x"].node, quantize.result.type.quant
    if clip.op != "clip" or quant is None:
        return
    low, high = clip_bounds(clip.attrs)
    if high is None or high / float(quant.scales()) < _FAR:
        return
    x = clip.operands["x"]
    if low == 0.0:
        x = graph.add("relu", {"x": x}, before=clip, origins=clip.origins).result
    graph.substitute(clip, x)


def _storage(value: Value) -> object:
    return value.type.quant.storage if value.type.quant is not None else None


def _data(node: Node) -> Mapping[str, Value] | None:
    """Returns the quantized values that an op's data are; None where some are floats."""
    traits = spec(node.op).traits
    weight, bias = (
        transposed.PARAMETERS if node.op == transposed.OP else (traits.weight, traits.bias)
    )
    data: dict[str, Value] = {}
    for slot, value in node.operands.items():
        if slot == bias or not value.type.dtype.is_float:
            continue
        if value.node.op != "dequantize":
            return None
        source = value.node.operands["x"]
        if slot == weight and source.constant is not None:
            continue
        if source.type.quant is None or source.type.quant.granularity is not None:
            return None
        data[slot] = source
    return data


def _quantize_of(node: Node) -> Node | None:
    """Returns what quantizes the result of an op, or of the activation after it."""
    value = node.results[0]
    while (use := value.only_use) is not None:
        if use.node.op == "quantize" and "scale" not in use.node.operands:
            return use.node
        if use.node.op != "relu" and not (use.node.op == "clip" and is_fused_clip(use.node)):
            return None
        value = use.node.result
    return None


def _wide_operand(graph: Graph, node: Node, slot: str, widened: dict[Value, Value]) -> Value:
    """Returns 8-bit data in 16 bits, exactly, and dequantized: floats are between."""
    floats = node.operands[slot]
    value = floats.node.operands["x"]
    if value not in widened:
        quant = value.type.quant
        assert quant is not None
        before = min((use.node for use in floats.uses), key=lambda node: node._rank)
        widened[value] = put_pair(
            graph, floats, _sixteen(quant.scales() / np.float32(_FINER)), before
        )
    return widened[value]


def _narrow_result(graph: Graph, node: Node, quantize: Node) -> Node:
    """Quantizes a result to 16 bits, and requantizes these to the 8 bits that it had.

    Returns what quantizes it to 16 bits.
    """
    value, narrow = quantize.operands["x"], quantize.result
    quant = narrow.type.quant
    assert quant is not None
    scale = quant.scales().astype(np.float64)
    zero, (low, high) = int(np.asarray(quant.zeros())), quant.storage.bounds
    chosen = np.float32(scale * max(zero - low, high - zero) / _REACH)
    if node.op in FIXED_RESULTS:
        chosen = np.float32(FIXED_RESULTS[node.op]["i16"][0])
    kind = narrow.type.with_element(_sixteen(chosen))
    name = graph.fresh(f"{narrow.name}.wide")
    wide = graph.add("quantize", {"x": value}, types=[kind], name=name, before=quantize).result
    made = graph.add("requantize", {"x": wide}, types=[narrow.type], before=quantize)
    graph.substitute(quantize, made.result)
    return wide.node


def _sixteen(scale: object) -> QuantType:
    return uniform(I16, np.asarray(scale, np.float32), 0)


def _store_wide_bias(graph: Graph, node: Node) -> None:
    """Stores the bias of a layer on 16-bit data in 64 bits, in the unit of its sums.

    A linear layer without one gets zeros: its kernel without a bias is another one.
    """
    traits = spec(node.op).traits
    if traits.bias is None or traits.weight is None:  # `transposed.store_biases` has the others
        return
    weights = node.operands[traits.weight]
    if weights.node.op != "dequantize" or weights.node.operands["x"].constant is None:
        return
    data = node.operands[traits.data].node.operands["x"].type.quant
    quant = weights.node.operands["x"].type.quant
    assert data is not None
    assert quant is not None
    bias = node.operands.get(traits.bias)
    unit = np.asarray(data.scales() * np.asarray(quant.scales(), np.float32), np.float32)
    if bias is None:
        if node.op != "linear":
            return
        channels = weights.type.shape[0]
        assert isinstance(channels, int)
        sums = np.zeros(channels, np.int64)
    elif bias.node.op == "dequantize" and (held := bias.node.operands["x"]).constant is not None:
        old = held.type.quant
        assert old is not None
        if old.storage == I64 and np.array_equal(old.scales(), unit):
            return
        # Exact where only the data became finer: the unit is smaller by a power of two then.
        ratio = np.asarray(old.scales(), np.float64) / unit.astype(np.float64)
        sums = np.rint(held.constant.data.astype(np.float64) * ratio).astype(np.int64)
    else:
        return
    axis = 0 if unit.ndim else None
    element = uniform(I64, unit, 0, axis=axis, name=f"{node.name}.bias")
    kind = node.results[0].type.with_shape(sums.shape).with_element(element)
    name = graph.fresh(f"{node.name}.bias.wide")
    stored = graph.constant(Array(sums, kind, name), name=name, before=node)
    if bias is not None:
        graph.set_origins(stored.node, bias.node.origins)
    made = graph.add("dequantize", {"x": stored}, name=graph.fresh(f"{name}.dq"), before=node)
    graph.set_operand(node, traits.bias, made.result)
