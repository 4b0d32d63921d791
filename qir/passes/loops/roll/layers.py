"""Rewrites scans and loops whose body is the cell of a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType
from qir.passes.loops.roll.cells import CellReader, RecurrentCell, Rows


@dataclass(frozen=True)
class _Walk:
    """A scan or a loop that walks along one sequence."""

    body: Graph
    sequence: Value
    x: Value
    """An entry of the sequence, in the body."""
    axis: int
    reverse: bool
    initial: tuple[Value, ...]
    body_states: tuple[Value, ...]
    """What the body is given of the states."""
    ends: tuple[Value, ...]
    states: tuple[Value, ...]
    """What the states are after the last step."""
    parts: tuple[tuple[Value, Value], ...]
    """What a step makes, and all steps stacked."""
    outside: Mapping[Value, Value]


# -- what a scan or a loop walks along -------------------------------------------------------------


def _walk_of_scan(graph: Graph, node: Node) -> _Walk | None:
    body, state_count = graph.body(node), len(node.variadic("vs"))
    axes, reverse = _int_attribute(node, "axes", 1), _int_attribute(node, "reverse", 1)
    sequence = node.operands["ss.0"]
    if len(node.variadic("ss")) != 1 or sequence.type.rank != 3:
        return None
    axis, part_count = axes[0] % 3, len(node.results) - state_count
    out_axes = [a % 3 for a in _int_attribute(node, "out_axes", part_count)]
    # Recurrent layers read and stack along time first or batch first.
    if axis > 1 or any(a != axis for a in out_axes):
        return None
    if any(
        is_reverse != reverse[0] for is_reverse in _int_attribute(node, "out_reverse", part_count)
    ):
        return None
    outputs = list(body.outputs.values())
    return _Walk(
        body,
        sequence,
        body.inputs[state_count],
        axis,
        bool(reverse[0]),
        tuple(node.variadic("vs")),
        tuple(body.inputs[:state_count]),
        tuple(outputs[:state_count]),
        tuple(node.results[:state_count]),
        tuple(zip(outputs[state_count:], node.results[state_count:], strict=True)),
        dict(zip(body.inputs[state_count + 1 :], node.variadic("xs"), strict=True)),
    )


def _int_attribute(node: Node, name: str, count: int) -> list[int]:
    listed = node.attrs[name]
    numbers = [n for n in listed if isinstance(n, int)] if isinstance(listed, tuple) else []
    return numbers or [0] * count


def _walk_of_loop(graph: Graph, node: Node) -> _Walk | None:
    """Returns what a loop walks along that reads one entry of a sequence in every round."""
    body, initial = graph.body(node), node.variadic("vs")
    go, *outputs = body.outputs.values()
    # The condition must be handed on as it is: the number of rounds is then the count.
    if go is not body.inputs[1] or "count" not in node.operands or "cond" in node.operands:
        return None
    body_states, state_count = body.inputs[2 : 2 + len(initial)], len(initial)
    outside = dict(zip(body.inputs[2 + state_count :], node.variadic("xs"), strict=True))
    counters = {
        i for i in range(state_count) if _is_round_counter(initial[i], body_states[i], outputs[i])
    }
    # A layer gives no count of its rounds.
    if any(node.results[i].uses for i in counters):
        return None
    round_numbers = {body.inputs[0], *(body_states[i] for i in counters)}
    gathers = [
        inner for inner in body if inner.op == "gather" and _index_source(inner) in round_numbers
    ]
    if len(gathers) != 1 or gathers[0].attrs["axis"] != 0:
        return None
    sequence = outside.get(gathers[0].operands["x"])
    if sequence is None or sequence.type.rank != 3:
        return None
    # Fewer rounds than entries would leave some unread; a layer reads all.
    if not _is_size(node.operands["count"], sequence.type.shape[0]):
        return None
    states = [i for i in range(state_count) if i not in counters]
    return _Walk(
        body,
        sequence,
        gathers[0].result,
        0,
        False,
        tuple(initial[i] for i in states),
        tuple(body_states[i] for i in states),
        tuple(outputs[i] for i in states),
        tuple(node.results[i] for i in states),
        tuple(zip(outputs[state_count:], node.results[state_count:], strict=True)),
        outside,
    )


def _index_source(node: Node) -> Value:
    value = node.operands["indices"]
    while value.node.op in ("cast", "identity"):
        value = value.node.operands["x"]
    return value


def _is_round_counter(start: Value, body_value: Value, end: Value) -> bool:
    """Reports whether a carried value is the number of the round."""
    node, constant = end.node, start.constant
    if node.op != "add" or body_value.type.rank or constant is None or constant.data.any():
        return False
    others = [operand for operand in node.operands.values() if operand is not body_value]
    increment = others[0].constant if len(others) == 1 else None
    return (
        increment is not None
        and increment.contents.size == 1
        and bool(increment.data.reshape(()) == 1)
    )


def _is_size(value: Value, size: Dim) -> bool:
    """Reports whether a value is a size of a type: a constant, or read from a shape."""
    if (constant := value.constant) is not None:
        return isinstance(size, int) and int(constant.data.reshape(())) == size
    start = 0
    while value.node.op in ("cast", "identity", "squeeze", "slice", "gather"):
        node = value.node
        if node.op == "slice":
            starts = node.attrs["starts"]
            start = starts[0] if isinstance(starts, tuple) and isinstance(starts[0], int) else 0
        elif node.op == "gather":
            index = node.operands["indices"].constant
            if index is None or index.contents.size != 1:
                return False
            start = int(index.data.reshape(()))
        value = node.operands["x"]
    return value.node.op == "shape" and value.node.operands["x"].type.shape[start] == size


# -- from the walk to the layers ------------------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """A scan or a loop that is one layer, or several one on another."""

    node: Node
    walk: _Walk
    cells: tuple[tuple[RecurrentCell, dict[str, Rows]], ...]
    """With the weights of each."""

    @property
    def description(self) -> str:
        """The ops of the layers."""
        return " and ".join(cell.op for cell, _ in self.cells)

    def add_layers(self, graph: Graph) -> dict[Value, Value]:
        """Adds the layers; gives what stands for each result that is used."""
        walk, sequence = self.walk, self.walk.sequence
        axis, direction_axis = (1, 2) if walk.axis else (0, 1)
        replacements: dict[Value, Value] = {}
        for cell, weights in self.cells:
            layer = self._add_layer(graph, cell, weights, sequence)

            def squeezed(value: Value, axis: int) -> Value:
                attrs = {"axes": (axis,)}
                return graph.add("squeeze", {"x": value}, attrs, before=self.node).result

            sequence = squeezed(layer.results[0], direction_axis)
            for part, result in walk.parts:
                if part is cell.outputs[0] and result.uses:
                    replacements[result] = sequence
            for i, end in enumerate(cell.states):
                result = walk.states[walk.body_states.index(end)]
                if result.uses:
                    replacements[result] = squeezed(layer.results[1 + i], axis)
        return replacements

    def _add_layer(
        self, graph: Graph, cell: RecurrentCell, weights: Mapping[str, Rows], sequence: Value
    ) -> Node:
        node, walk = self.node, self.walk
        operands = {"x": sequence}
        for slot, rows in weights.items():
            fresh_name = graph.fresh(f"{node.name}.{slot}")
            tensor_type = TensorType(rows.shape, sequence.type.dtype)
            data = np.ascontiguousarray(rows).astype(tensor_type.dtype.carrier)
            operands[slot] = graph.constant(
                Array(data, tensor_type, fresh_name), name=fresh_name, before=node
            )
        initial = [walk.initial[walk.body_states.index(state)] for state in cell.states]
        batch = sequence.type.shape[1 - walk.axis]
        axis = 1 if walk.axis else 0
        # Without initial states a layer begins with zeros: they are left out where that is so.
        if not all(_is_zero_state(start, batch) for start in initial):
            for slot, value in zip(("h0", "c0"), initial, strict=False):
                expanded = graph.add("unsqueeze", {"x": value}, {"axes": (axis,)}, before=node)
                operands[slot] = expanded.result
        attrs: dict[str, Attr] = {
            **cell.attrs,
            "direction": "reverse" if walk.reverse else "forward",
            "batch_first": walk.axis == 1,
        }
        return graph.add(
            cell.op, operands, attrs, before=node, origins=node.origins, profile=node.profile
        )


def find_layers(graph: Graph, node: Node) -> Layers | None:
    """Returns the layers that a scan or a loop is; None where it is none, or more than layers.

    Weights have to be constants.
    """
    walk = (_walk_of_scan if node.op == "scan" else _walk_of_loop)(graph, node)
    if walk is None or node.schemes or not walk.body_states:
        return None
    reader = CellReader(walk.body, walk.outside)
    cells: list[tuple[RecurrentCell, dict[str, Rows]]] = []
    x, remaining = walk.x, list(range(len(walk.body_states)))
    while remaining:
        next_cell = _next_cell(reader, walk, x, remaining)
        weights = None if next_cell is None else next_cell[0].weights()
        if next_cell is None or weights is None:
            return None
        cells.append((next_cell[0], weights))
        # The next layer reads what this one gives in the same step.
        x, remaining = next_cell[0].outputs[0], [i for i in remaining if i not in next_cell[1]]
    outputs = {cell.outputs[0] for cell, _ in cells}
    # Layers stack their outputs alone: a gate or an inner state that is read keeps the scan.
    if any(part not in outputs and result.uses for part, result in walk.parts):
        return None
    return Layers(node, walk, tuple(cells))


def _next_cell(
    reader: CellReader, walk: _Walk, x: Value, remaining: Sequence[int]
) -> tuple[RecurrentCell, tuple[int, ...]] | None:
    """Returns the cell that reads an entry, and which of the carried values are its states."""
    for order in _state_orders(remaining):
        begins, ends = ([values[i] for i in order] for values in (walk.body_states, walk.ends))
        cell = reader.find(x, begins, ends)
        if cell is not None:
            return cell, order
    return None


def _state_orders(remaining: Sequence[int]) -> Iterator[tuple[int, ...]]:
    # Pairs first, for the two states of an lstm.
    yield from permutations(remaining, 2)
    yield from permutations(remaining, 1)


def _is_zero_state(start: Value, batch: Dim) -> bool:
    """Reports whether a state is zeros, for as many samples as the sequence has."""
    constant = start.constant
    return constant is not None and not constant.data.any() and start.type.shape[0] == batch
