"""The steps of a recurrent layer, written out in ops on matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS, GATE_COUNTS
from qir.ir.types import Array, TensorType

LAYERS = ("rnn", "lstm", "gru")
_PLAIN = frozenset("relu tanh sigmoid softsign softplus".split())
_WITH = {"leaky_relu": ("alpha",), "elu": ("alpha",), "hard_sigmoid": ("alpha", "beta")}
"""Activations that are ops, with the attributes that they take."""
_PER_STEP = {"rnn": 6, "lstm": 20, "gru": 20}
Apply: TypeAlias = "Callable[[Value], Value]"


@dataclass(frozen=True, slots=True)
class RunCount:
    """How often something runs, and about how many nodes that makes."""

    count: int
    nodes: int


def can_be_written(node: Node) -> bool:
    """Reports whether the steps of a layer can be written as ops: no lengths, nothing quantized."""
    if any(v.type.quant for v in (*node.operands.values(), *node.results)) or node.schemes:
        return False
    if "lengths" in node.operands or any(spec(node.op).is_companion(s) for s in node.operands):
        return False
    sizes = (*node.operands["w"].type.shape, *node.operands["r"].type.shape)
    named = all(name in _PLAIN or name in _WITH for name in _names(node))
    return named and all(isinstance(size, int) for size in sizes)


def hidden_of(node: Node) -> int:
    """Returns how many numbers a gate of a layer has; its weights have known sizes."""
    rows = node.operands["w"].type.shape[1]
    assert isinstance(rows, int)
    return rows // len(GATE_COUNTS[node.op])


def layer_size(node: Node) -> RunCount | None:
    """Returns the steps of a layer; None where they are not known, or cannot be written as ops."""
    x = node.operands["x"].type.shape
    batch, steps = (x[0], x[1]) if node.attrs["batch_first"] is True else (x[1], x[0])
    starts = [slot for slot in ("h0", "c0") if spec(node.op).slot(slot)]
    if not isinstance(batch, int) and any(slot not in node.operands for slot in starts):
        return None
    if not can_be_written(node) or not isinstance(steps, int):
        return None
    ways = len(DIRECTIONS[str(node.attrs["direction"])])
    return RunCount(steps, steps * ways * _PER_STEP[node.op])


def _names(node: Node) -> list[str]:
    given = node.attrs["activations"]
    names = [str(name) for name in given] if isinstance(given, tuple) else []
    return names or list(DEFAULT_ACTIVATIONS[node.op]) * len(
        DIRECTIONS[str(node.attrs["direction"])]
    )


def put_step(
    body: Graph,
    node: Node,
    weights: Mapping[str, Value],
    way: int,
    x: Value,
    state: tuple[Value, ...],
) -> tuple[Value, ...]:
    """Writes one step of a direction of a layer into another graph; returns the states after it."""
    return _Layer(body, node, weights).cell(way)(x, state)


def put_layer(graph: Graph, node: Node) -> list[Value | None]:
    """Writes the steps before a layer; gives what stands for each of its results that is used."""
    return _Layer(graph, node).put()


class _Layer:
    """Builds in the place of one layer, or one step at the end of another graph."""

    def __init__(
        self, graph: Graph, node: Node, weights: Mapping[str, Value] | None = None
    ) -> None:
        self.graph = graph
        self.node = node
        self.given = node.operands if weights is None else weights
        self.before = node if weights is None else None
        self.op = node.op
        self.first = node.attrs["batch_first"] is True
        self.ways = DIRECTIONS[str(node.attrs["direction"])]
        shape = node.operands["x"].type.shape
        self.steps = shape[1] if self.first else shape[0]
        self.batch = shape[0] if self.first else shape[1]
        self.gates, self.hidden = len(GATE_COUNTS[self.op]), hidden_of(node)
        self.one: Value | None = None

    def add(self, op: str, attrs: Mapping[str, Attr] | None = None, **operands: Value) -> Value:
        """Returns one op before the layer, with its origins and profile."""
        node = self.node
        return self.graph.add(
            op, operands, attrs, before=self.before, origins=node.origins, profile=node.profile
        ).result

    def join(self, parts: list[Value], axis: int) -> Value:
        """Parts along one axis; a single one is that itself."""
        if len(parts) == 1:
            return parts[0]
        operands = {f"xs.{i}": part for i, part in enumerate(parts)}
        node = self.node
        made = self.graph.add(
            "concat", operands, {"axis": axis}, before=self.before, origins=node.origins
        )
        return made.result

    def held(self, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> Value:
        kind = self.node.operands["x"].type.dtype
        free = self.graph.fresh(f"{self.node.name}.{name}")
        made = Array(data.astype(kind.carrier), TensorType(data.shape, kind), free)
        return self.graph.constant(made, name=free, before=self.before)

    def put(self) -> list[Value | None]:
        entries = self.entries()
        states: list[tuple[Value, ...]] = []
        made: list[list[Value]] = []
        for way, back in enumerate(self.ways):
            step, state = self.cell(way), self.start(way)
            hidden: list[Value] = []
            for x in reversed(entries) if back else entries:
                state = step(x, state)
                hidden.append(state[0])
            made.append(hidden[::-1] if back else hidden)
            states.append(state)
        out: list[Value | None] = []
        for i, result in enumerate(self.node.results):
            if not result.uses:
                out.append(None)
            else:
                out.append(self.outputs(made) if i == 0 else self.last([s[i - 1] for s in states]))
        return out

    def entries(self) -> list[Value]:
        """x step by step."""
        axis = 1 if self.first else 0
        assert isinstance(self.steps, int)
        return [
            self.part(self.node.operands["x"], axis, i, name=f"x.{i}") for i in range(self.steps)
        ]

    def part(self, value: Value, axis: int, index: int, *, name: str = "") -> Value:
        """Returns one entry of an axis."""
        if (held := value.constant) is not None and not name:
            return self.held(np.take(held.data, index, axis), f"{value.name}.{index}")
        attrs = {"starts": (index,), "ends": (index + 1,), "axes": (axis,), "steps": (1,)}
        return self.add("squeeze", {"axes": (axis,)}, x=self.add("slice", attrs, x=value))

    def start(self, way: int) -> tuple[Value, ...]:
        slots = ("h0", "c0") if self.op == "lstm" else ("h0",)
        sizes = (self.node.operands["r"].type.shape[2], self.hidden)
        out: list[Value] = []
        for slot, size in zip(slots, sizes, strict=False):
            given = self.node.operands.get(slot)
            if given is not None:
                out.append(self.part(given, 1 if self.first else 0, way))
            else:
                assert isinstance(self.batch, int)
                assert isinstance(size, int)
                out.append(self.held(np.zeros((self.batch, size)), slot))
        return tuple(out)

    def outputs(self, made: list[list[Value]]) -> Value:
        """Returns the states of all steps and directions."""
        axes, step, way = ((1, 2), 1, 2) if self.first else ((0, 1), 0, 1)
        wide = [[self.add("unsqueeze", {"axes": axes}, x=part) for part in parts] for parts in made]
        return self.join([self.join(parts, step) for parts in wide], way)

    def last(self, parts: list[Value]) -> Value:
        """Returns the last states of the directions."""
        axis = 1 if self.first else 0
        return self.join([self.add("unsqueeze", {"axes": (axis,)}, x=p) for p in parts], axis)

    # -- cells --------------------------------------------------------------------------------

    def cell(self, way: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        cells = {"rnn": self.rnn, "lstm": self.lstm, "gru": self.gru}
        return cells[self.op](way)

    def weights(self, way: int) -> tuple[Value, Value, Value | None, Value | None]:
        """Both matrices and both biases of one direction."""
        w, r = (self.part(self.given[slot], 0, way) for slot in "wr")
        bias = self.given.get("bias")
        if bias is None:
            return w, r, None, None
        rows, size = self.gates * self.hidden, bias.type.shape[1]
        own = self.part(bias, 0, way)
        if size == rows:
            return w, r, own, None
        return w, r, self.rows(own, 0, rows), self.rows(own, rows, 2 * rows)

    def rows(self, value: Value, start: int, end: int) -> Value:
        """Some rows of a weight."""
        if (held := value.constant) is not None:
            return self.held(held.data[start:end], f"{value.name}.{start}")
        attrs = {"starts": (start,), "ends": (end,), "axes": (0,), "steps": (1,)}
        return self.add("slice", attrs, x=value)

    def linear(self, x: Value, w: Value, bias: Value | None) -> Value:
        if bias is None:
            return self.add("linear", x=x, w=w)
        return self.add("linear", x=x, w=w, bias=bias)

    def functions(self, way: int) -> list[Apply]:
        """Returns the activations of one direction."""
        each, names = len(DEFAULT_ACTIVATIONS[self.op]), _names(self.node)
        return [self.function(i, names[i]) for i in range(way * each, (way + 1) * each)]

    def function(self, index: int, name: str) -> Apply:
        attrs: dict[str, Attr] = {}
        for which, usual in zip(("alpha", "beta"), ACTIVATIONS[name], strict=True):
            given = self.node.attrs[which]
            if which in _WITH.get(name, ()):
                attrs[which] = given[index] if isinstance(given, tuple) and given else usual
        return lambda x: self.add(name, attrs, x=x)

    def gated(self, function: Apply, total: Value) -> Value:
        clip = self.node.attrs["clip"]
        if isinstance(clip, float):
            total = self.add("clip", {"min": -clip, "max": clip}, x=total)
        return function(total)

    def split(self, value: Value) -> list[Value]:
        """Returns the sums of the gates."""
        attrs: dict[str, Attr] = {"sizes": (self.hidden,) * self.gates, "axis": 1}
        made = self.graph.add(
            "split",
            {"x": value},
            attrs,
            before=self.before,
            origins=self.node.origins,
            profile=self.node.profile,
        )
        return list(made.results)

    def rnn(self, way: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, to_w, to_r = self.weights(way)
        (f,) = self.functions(way)

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            a, b = self.linear(x, w, to_w), self.linear(state[0], r, to_r)
            return (self.gated(f, self.add("add", a=a, b=b)),)

        return step

    def lstm(self, way: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, to_w, to_r = self.weights(way)
        f, g, last = self.functions(way)
        looks = self.peepholes(way)
        proj = self.given.get("proj")
        turn = None if proj is None else self.part(proj, 0, way)
        coupled = self.node.attrs["input_forget"] is True

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            h, c = state
            total = self.add("add", a=self.linear(x, w, to_w), b=self.linear(h, r, to_r))
            i, o, forget, new = self.split(total)
            if looks:
                i, forget = self.look(i, looks[0], c), self.look(forget, looks[2], c)
            i = self.gated(f, i)
            kept = self.rest(i) if coupled else self.gated(f, forget)
            new = self.add("mul", a=i, b=self.gated(g, new))
            c = self.add("add", a=self.add("mul", a=kept, b=c), b=new)
            o = self.look(o, looks[1], c) if looks else o
            h = self.add("mul", a=self.gated(f, o), b=last(c))
            return (h if turn is None else self.linear(h, turn, None), c)

        return step

    def peepholes(self, way: int) -> list[Value]:
        given = self.given.get("peephole")
        if given is None:
            return []
        row, size = self.part(given, 0, way), self.hidden
        return [self.rows(row, i * size, (i + 1) * size) for i in range(3)]

    def look(self, total: Value, weight: Value, cell: Value) -> Value:
        return self.add("add", a=total, b=self.add("mul", a=cell, b=weight))

    def rest(self, value: Value) -> Value:
        """1 - value."""
        if self.one is None:
            self.one = self.held(np.ones(()), "one")
        return self.add("sub", a=self.one, b=value)

    def gru(self, way: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, to_w, to_r = self.weights(way)
        f, g = self.functions(way)
        before = self.node.attrs["linear_before_reset"] is True
        size = self.hidden
        parts = (0, 2 * size), (2 * size, 3 * size)
        first, second = (r, r) if before else (self.rows(r, *p) for p in parts)
        biases = [to_r if to_r is None else self.rows(to_r, *p) for p in parts]

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            (h,) = state
            z, reset, new = self.split(self.linear(x, w, to_w))
            if before:
                to_z, to_reset, to_new = self.split(self.linear(h, first, to_r))
            else:
                both = self.linear(h, first, biases[0])
                attrs: dict[str, Attr] = {"sizes": (size, size), "axis": 1}
                to_z, to_reset = self.graph.add(
                    "split", {"x": both}, attrs, before=self.before
                ).results
            z = self.gated(f, self.add("add", a=z, b=to_z))
            reset = self.gated(f, self.add("add", a=reset, b=to_reset))
            if before:
                looked = self.add("mul", a=reset, b=to_new)
            else:
                looked = self.linear(self.add("mul", a=reset, b=h), second, biases[1])
            new = self.gated(g, self.add("add", a=new, b=looked))
            fresh = self.add("mul", a=self.rest(z), b=new)
            return (self.add("add", a=fresh, b=self.add("mul", a=z, b=h)),)

        return step
