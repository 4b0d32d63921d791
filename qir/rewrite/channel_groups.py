"""Values whose channels may be scaled together without changing what a float graph computes.

Dividing each channel of a value by a positive factor commutes with relu, leaky relu, pads with
zeros, pools and sums, so that one layer's weights can give the factor back which another's took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data, summed_axis
from qir.ir.node import Node, Value
from qir.ir.ops.layers import CONVOLUTIONS, MATRIX_PRODUCTS
from qir.rewrite.layer_weights import operands, result_axis, slots

SCALED = frozenset({"relu", "leaky_relu", "clip", "pad", "global_avg_pool"}) | {
    f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)
}
"""Ops whose result is scaled as their operand is; a clip scales values that it does not cut."""
CLAMPS = frozenset({"relu", "clip"})
"""Ops that cut their operand's range, so that its own is rarely stored."""
JOINED = frozenset({"add"})
"""Ops whose operands and result are scaled alike."""
FLATTENED = frozenset({"flatten", "reshape", "squeeze"})
"""Ops that scale as well where all axes after the channels have size 1."""


@dataclass
class ChannelGroup:
    """Values that share one factor for each channel, and the layers before and after them."""

    axis: int
    size: int
    values: list[Value] = field(default_factory=list)
    producers: list[Node] = field(default_factory=list)
    """Layers whose output channels these are."""
    consumers: list[Node] = field(default_factory=list)
    """Layers that sum over these channels."""
    clips: list[Node] = field(default_factory=list)


def channel_groups(graph: Graph) -> list[ChannelGroup]:
    """Returns the groups of a float graph that are between layers on every side, in graph order."""
    axes = _axes(graph)
    parent: dict[Value, Value] = {}
    for value in axes:
        node = value.node
        for other in _values_of_same_channels(node) if _commutes(node, axes[value]) else ():
            parent[_root(parent, other)] = _root(parent, value)
    # Union-find over values whose channels must be scaled alike, such as both sides of an add.
    members: dict[Value, list[Value]] = {}
    for value in axes:
        members.setdefault(_root(parent, value), []).append(value)
    found = (_group(values, axes) for values in members.values())
    return [group for group in found if group is not None]


def _root(parent: dict[Value, Value], value: Value) -> Value:
    while (up := parent.get(value, value)) is not value:
        value = up
    return value


def plain_layer(node: Node) -> bool:
    """Returns whether a node is a float layer with constant weights whose channels can be
    scaled."""
    if node.op not in CONVOLUTIONS | MATRIX_PRODUCTS or layer_data(node) is None:
        return False
    data, weight, bias = operands(node)
    flat = node.op not in MATRIX_PRODUCTS or weight.type.rank == 2
    plain = bias is None or (bias.constant is not None and bias.type.rank == 1)
    real = all(v.type.quant is None and v.type.dtype == F32 for v in (data, weight, node.result))
    usual = node.attrs.get("beta", 1.0) == 1.0 and summed_axis(node, data) is not None
    return flat and plain and real and usual and not node.schemes


def _axes(graph: Graph) -> dict[Value, int]:
    """Returns the channel axis of each value that reaches a layer, or is reached by one; in
    order."""
    axes: dict[Value, int] = {}
    for node in graph:
        if plain_layer(node):
            axes[node.result] = result_axis(node)
        elif node.op in SCALED | JOINED | FLATTENED:
            before = [axes[v] for v in node.operands.values() if v in axes]
            if before and _commutes(node, before[0]):
                axes[node.result] = before[0]
    # Forwards, layers name the channel axis of what follows; backwards, that of what they read.
    for node in reversed(list(graph)):
        value = node.result if len(node.results) == 1 else None
        if plain_layer(node):
            data = operands(node)[0]
            axis = summed_axis(node, data)
            assert axis is not None
            axes.setdefault(data, axis)
        elif value in axes and value is not None and _commutes(node, axes[value]):
            for operand in _values_of_same_channels(node):
                axes.setdefault(operand, axes[value])
    order = [v for node in graph for v in node.results if v in axes]
    return {value: axes[value] for value in order}


def _values_of_same_channels(node: Node) -> list[Value]:
    """Returns the operands that are scaled as the result is."""
    if node.op in JOINED:
        return list(node.operands.values())
    return [node.operands["x"]] if node.op in SCALED | FLATTENED else []


def _commutes(node: Node, axis: int) -> bool:
    """Returns whether scaling the channels of its operands scales those of its result."""
    if node.op in JOINED:
        return all(
            v.type == node.result.type and v.constant is None
            for v in _values_of_same_channels(node)
        )
    if node.op == "pad":
        pads, rank = node.attrs["pads"], node.result.type.rank
        assert isinstance(pads, tuple)
        # Scaling leaves zeros alone as they are, and channels that padding adds have no factor.
        return node.attrs["value"] == 0.0 and not pads[axis] and not pads[axis + rank]
    if node.op in FLATTENED:
        shapes = node.operands["x"].type.shape, node.result.type.shape
        return all(len(s) > axis and set(s[axis + 1 :]) <= {1} for s in shapes) and (
            shapes[0][axis] == shapes[1][axis] and shapes[0][:axis] == shapes[1][:axis]
        )
    return node.op in SCALED


def _group(values: list[Value], axes: dict[Value, int]) -> ChannelGroup | None:
    axis = axes[values[0]]
    size = values[0].type.shape[axis] if values[0].type.rank > axis else None
    if not isinstance(size, int):
        return None
    group = ChannelGroup(axis, size, values)
    for value in values:
        if not _fits(value, axis, size) or axes[value] != axis:
            return None
        node = value.node
        if plain_layer(node):
            group.producers.append(node)
        elif not _commutes(node, axis):
            return None
        if node.op == "clip":
            group.clips.append(node)
        if not _is_read_by_group(value, group):
            return None
    return group if group.producers and group.consumers else None


def _fits(value: Value, axis: int, size: int) -> bool:
    real = value.type.quant is None and value.type.dtype == F32
    return real and value.type.rank > axis and value.type.shape[axis] == size


def _is_read_by_group(value: Value, group: ChannelGroup) -> bool:
    """Returns whether all that reads a value can be scaled with it; notes layers that do."""
    for use in value.uses:
        node = use.node
        if plain_layer(node) and use.slot == slots(node)[0]:
            if summed_axis(node, value) != group.axis:
                return False
            if node not in group.consumers:
                group.consumers.append(node)
        elif not _commutes(node, group.axis):
            return False
    return bool(list(value.uses))


def stored_values(group: ChannelGroup) -> Iterator[Value]:
    """Yields the values of a group that quantizing may store: not those that a clamp reads alone,
    which most kernels compute with what is before it."""
    for value in group.values:
        use = value.only_use
        if use is None or use.node.op not in CLAMPS:
            yield value
