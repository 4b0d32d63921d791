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
    starts: tuple[Value, ...]
    begins: tuple[Value, ...]
    """What the body is given of the states."""
    ends: tuple[Value, ...]
    states: tuple[Value, ...]
    """What the states are after the last step."""
    parts: tuple[tuple[Value, Value], ...]
    """What a step makes, and all steps stacked."""
    outside: Mapping[Value, Value]


# -- what a scan or a loop walks along -------------------------------------------------------------


def _of_scan(graph: Graph, node: Node) -> _Walk | None:
    body, count = graph.body(node), len(node.variadic("vs"))
    axes, reverse = _numbers(node, "axes", 1), _numbers(node, "reverse", 1)
    sequence = node.operands["ss.0"]
    if len(node.variadic("ss")) != 1 or sequence.type.rank != 3:
        return None
    axis, parts = axes[0] % 3, len(node.results) - count
    along = [a % 3 for a in _numbers(node, "out_axes", parts)]
    if axis > 1 or any(a != axis for a in along):
        return None
    if any(back != reverse[0] for back in _numbers(node, "out_reverse", parts)):
        return None
    made = list(body.outputs.values())
    return _Walk(
        body,
        sequence,
        body.inputs[count],
        axis,
        bool(reverse[0]),
        tuple(node.variadic("vs")),
        tuple(body.inputs[:count]),
        tuple(made[:count]),
        tuple(node.results[:count]),
        tuple(zip(made[count:], node.results[count:], strict=True)),
        dict(zip(body.inputs[count + 1 :], node.variadic("xs"), strict=True)),
    )


def _numbers(node: Node, name: str, count: int) -> list[int]:
    given = node.attrs[name]
    found = [n for n in given if isinstance(n, int)] if isinstance(given, tuple) else []
    return found or [0] * count


def _of_loop(graph: Graph, node: Node) -> _Walk | None:
    """Returns what a loop walks along that reads one entry of a sequence in every round."""
    body, starts = graph.body(node), node.variadic("vs")
    go, *made = body.outputs.values()
    if go is not body.inputs[1] or "count" not in node.operands or "cond" in node.operands:
        return None
    begins, count = body.inputs[2 : 2 + len(starts)], len(starts)
    outside = dict(zip(body.inputs[2 + count :], node.variadic("xs"), strict=True))
    counters = {i for i in range(count) if _counts(starts[i], begins[i], made[i])}
    if any(node.results[i].uses for i in counters):
        return None
    numbers = {body.inputs[0], *(begins[i] for i in counters)}
    reads = [each for each in body if each.op == "gather" and _index(each) in numbers]
    if len(reads) != 1 or reads[0].attrs["axis"] != 0:
        return None
    sequence = outside.get(reads[0].operands["x"])
    if sequence is None or sequence.type.rank != 3:
        return None
    if not _is_size(node.operands["count"], sequence.type.shape[0]):
        return None
    kept = [i for i in range(count) if i not in counters]
    return _Walk(
        body,
        sequence,
        reads[0].result,
        0,
        False,
        tuple(starts[i] for i in kept),
        tuple(begins[i] for i in kept),
        tuple(made[i] for i in kept),
        tuple(node.results[i] for i in kept),
        tuple(zip(made[count:], node.results[count:], strict=True)),
        outside,
    )


def _index(node: Node) -> Value:
    value = node.operands["indices"]
    while value.node.op in ("cast", "identity"):
        value = value.node.operands["x"]
    return value


def _counts(start: Value, begin: Value, end: Value) -> bool:
    """Reports whether a carried value is the number of the round."""
    node, held = end.node, start.constant
    if node.op != "add" or begin.type.rank or held is None or held.data.any():
        return False
    others = [each for each in node.operands.values() if each is not begin]
    one = others[0].constant if len(others) == 1 else None
    return one is not None and one.contents.size == 1 and bool(one.data.reshape(()) == 1)


def _is_size(value: Value, size: Dim) -> bool:
    """Reports whether a value is a size of a type: a constant, or read from a shape."""
    if (held := value.constant) is not None:
        return isinstance(size, int) and int(held.data.reshape(())) == size
    first = 0
    while value.node.op in ("cast", "identity", "squeeze", "slice", "gather"):
        node = value.node
        if node.op == "slice":
            starts = node.attrs["starts"]
            first = starts[0] if isinstance(starts, tuple) and isinstance(starts[0], int) else 0
        elif node.op == "gather":
            index = node.operands["indices"].constant
            if index is None or index.contents.size != 1:
                return False
            first = int(index.data.reshape(()))
        value = node.operands["x"]
    return value.node.op == "shape" and value.node.operands["x"].type.shape[first] == size


# -- from the walk to the layers ------------------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """A scan or a loop that is one layer, or several one on another."""

    node: Node
    walk: _Walk
    cells: tuple[tuple[RecurrentCell, dict[str, Rows]], ...]
    """With the weights of each."""

    @property
    def said(self) -> str:
        """The ops of the layers."""
        return " and ".join(cell.op for cell, _ in self.cells)

    def put(self, graph: Graph) -> dict[Value, Value]:
        """Adds the layers; gives what stands for each result that is used."""
        walk, sequence = self.walk, self.walk.sequence
        axis, way = (1, 2) if walk.axis else (0, 1)
        stands: dict[Value, Value] = {}
        for cell, weights in self.cells:
            made = self._layer(graph, cell, weights, sequence)

            def squeezed(value: Value, along: int) -> Value:
                attrs = {"axes": (along,)}
                return graph.add("squeeze", {"x": value}, attrs, before=self.node).result

            sequence = squeezed(made.results[0], way)
            for part, result in walk.parts:
                if part is cell.made[0] and result.uses:
                    stands[result] = sequence
            for i, end in enumerate(cell.states):
                result = walk.states[walk.begins.index(end)]
                if result.uses:
                    stands[result] = squeezed(made.results[1 + i], axis)
        return stands

    def _layer(
        self, graph: Graph, cell: RecurrentCell, weights: Mapping[str, Rows], sequence: Value
    ) -> Node:
        node, walk = self.node, self.walk
        operands = {"x": sequence}
        for slot, rows in weights.items():
            free = graph.fresh(f"{node.name}.{slot}")
            kind = TensorType(rows.shape, sequence.type.dtype)
            data = np.ascontiguousarray(rows).astype(kind.dtype.carrier)
            operands[slot] = graph.constant(Array(data, kind, free), name=free, before=node)
        starts = [walk.starts[walk.begins.index(state)] for state in cell.states]
        batch = sequence.type.shape[1 - walk.axis]
        axis = 1 if walk.axis else 0
        if not all(_zeros(start, batch) for start in starts):
            for slot, value in zip(("h0", "c0"), starts, strict=False):
                wide = graph.add("unsqueeze", {"x": value}, {"axes": (axis,)}, before=node)
                operands[slot] = wide.result
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
    walk = (_of_scan if node.op == "scan" else _of_loop)(graph, node)
    if walk is None or node.schemes or not walk.begins:
        return None
    reader = CellReader(walk.body, walk.outside)
    cells: list[tuple[RecurrentCell, dict[str, Rows]]] = []
    x, left = walk.x, list(range(len(walk.begins)))
    while left:
        found = _next(reader, walk, x, left)
        weights = None if found is None else found[0].weights()
        if found is None or weights is None:
            return None
        cells.append((found[0], weights))
        x, left = found[0].made[0], [i for i in left if i not in found[1]]
    outputs = {cell.made[0] for cell, _ in cells}
    if any(part not in outputs and result.uses for part, result in walk.parts):
        return None
    return Layers(node, walk, tuple(cells))


def _next(
    reader: CellReader, walk: _Walk, x: Value, left: Sequence[int]
) -> tuple[RecurrentCell, tuple[int, ...]] | None:
    """Returns the cell that reads an entry, and which of the carried values are its states."""
    for order in _orders(left):
        begins, ends = ([each[i] for i in order] for each in (walk.begins, walk.ends))
        cell = reader.find(x, begins, ends)
        if cell is not None:
            return cell, order
    return None


def _orders(left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    yield from permutations(left, 2)
    yield from permutations(left, 1)


def _zeros(start: Value, batch: Dim) -> bool:
    """Reports whether a state is zeros, for as many samples as the sequence has."""
    held = start.constant
    return held is not None and not held.data.any() and start.type.shape[0] == batch
