"""Cases of graphs: calls of the interface in any order, with arguments that are typed and odd."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir import pipeline
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, F32, I64, U8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import OPS, spec
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import Scheme
from qir.ir.types import Array, Element, Granularity, Param, QuantType, TensorType
from qir.testing import (
    DTYPES,
    EVERY,
    odd_name,
    odd_number,
    odd_quant,
    odd_type,
    random_graph,
    sample_inputs,
)
from tests.fuzzing.judging import LONGEST, Try, refused
from tests.fuzzing.texts import sound

CALLS = 25
WHOLES = (0, 1, 2, 3, -1, -2, 7, 64, 2**31, 2**63 - 1, -(2**63), 10**18, 10**30)
REALS = (0.0, -0.0, 1.0, -1.5, 1e-320, 1e300, float("inf"), float("nan"))


def graph_case(attempt: Try) -> None:
    """Whatever is called on a graph is done or refused in one line, and leaves it sound."""
    rng = attempt.rng
    graph = random_graph(rng.randrange(2**32), rng.choice(EVERY))
    caller = Caller(rng, graph)
    for _ in range(CALLS):
        call = rng.choice(caller.calls())
        refused(call, 3 * LONGEST)
    sound(graph)
    if rng.random() < 0.5:
        _run(graph, rng)


def _run(graph: Graph, rng: random.Random) -> None:
    """What is no program is told as that; a graph without an output has nothing to run for."""
    sizes = [dims.known_shape(value.type.shape) for value in graph.inputs]
    if any(node.op == "output" for node in graph) and all(map(_small, sizes)):
        refused(lambda: _made(graph, rng.randrange(2**32)), 3 * LONGEST)


def _small(sizes: tuple[int, ...] | None) -> bool:
    return sizes is not None and math.prod(max(1, size) for size in sizes) < 9999


def _made(graph: Graph, seed: int) -> Mapping[str, object]:
    return pipeline.run(graph, sample_inputs(graph, seed))


class Caller:
    """Calls a graph with what it has, and with what it should not take."""

    def __init__(self, rng: random.Random, graph: Graph) -> None:
        self.rng = rng
        self.graph = graph
        self.nodes = list(graph)  # some will be removed: they are odd arguments then
        other = random_graph(rng.randrange(1000))
        self.others = list(other.values.values())

    def calls(self) -> Sequence[Callable[[], object]]:
        """Every call, with new arguments each time."""
        graph = self.graph
        return (
            self.add,
            self.add,
            self.chain,
            self.stated,
            lambda: graph.set_operand(self.node(), self.slot(), self.value()),
            lambda: graph.set_operand(self.node(), self.slot(), None),
            lambda: graph.replace(self.value(), self.value()),
            lambda: graph.remove(self.node()),
            self.substitute,
            lambda: graph.constant(np.zeros(2), name=self.rng.choice(list(graph.values) or ["c"])),
            lambda: graph.rename(self.value(), odd_name(self.pick)),
            lambda: graph.set_type(self.value(), self.kind()),
            self.attrs,
            lambda: graph.set_inner(
                self.node(), self.rng.choice(("h", "code", "")), self.element()
            ),
            lambda: graph.set_scheme(self.node(), self.slot(), Scheme(dtype(self.word()))),
            lambda: graph.set_profile(self.node(), odd_name(self.pick)),
            lambda: graph.set_origins(self.node(), [Origin(odd_name(self.pick))]),
            lambda: graph.set_slot_origins(self.node(), self.slot(), [Origin("a")]),
            lambda: graph.set_lineage(self.value(), Lineage(odd_name(self.pick), ("",))),
            lambda: graph.body(self.node(), odd_name(self.pick)),
            lambda: graph[odd_name(self.pick)],
            lambda: graph.copy(),
            lambda: graph.prune() if self.rng.random() < 0.1 else 0,
            lambda: list(graph.walk()),
            lambda: self.map(),
            lambda: self.array(),
        )

    # -- arguments ----------------------------------------------------------------------------

    def pick(self, count: int) -> int:
        return self.rng.randrange(count)

    def node(self) -> Node:
        return self.rng.choice(self.nodes)

    def value(self) -> Value:
        found = [v for node in self.nodes for v in node.results]
        return self.rng.choice(self.others if self.rng.random() < 0.05 or not found else found)

    def slot(self) -> str:
        held = list(self.node().operands)
        return self.rng.choice([*held, "x", "a", "xs.0", "xs.999999", "scale", "x.zero", "", "é"])

    def word(self) -> str:
        return self.rng.choice([*DTYPES, "f33", ""])

    def kind(self) -> TensorType:
        if self.rng.random() < 0.5:
            return odd_type(self.pick)
        shape = tuple(self.rng.choice((*WHOLES, None)) for _ in range(self.pick(4)))
        return TensorType(shape, self.element())

    def element(self) -> Element:
        if self.rng.random() < 0.3:
            return odd_quant(self.pick, (2, 3), nested=True)
        return self.rng.choice((F32, U8, I64, BOOL, dtype("string"), dtype("f4e2m1fn")))

    def map(self) -> QuantType:
        """A type made by hand, of numbers that may not go together."""
        rng = self.rng
        numbers: tuple[Param, ...] = ((), (0.5,), (1.0, 2.0), (0,), (2**70,), None, (float("nan"),))
        blocks = tuple((rng.choice(WHOLES), rng.choice(WHOLES)) for _ in range(rng.randrange(3)))
        return QuantType(
            dtype(self.word()),
            self.rng.choice((F32, U8)),
            rng.choice(numbers),
            rng.choice(numbers),
            Granularity(blocks) if rng.random() < 0.5 else None,
            (rng.choice(WHOLES), rng.choice(WHOLES)) if rng.random() < 0.5 else None,
        )

    def array(self) -> Array:
        shape = self.rng.choice(((), (0,), (3,), (2, 3)))
        return Array(np.zeros(shape, self.rng.choice(("f4", "u1", "i8"))), self.kind())

    def attr(self, depth: int = 0) -> Attr:
        rng = self.rng
        options: list[Callable[[], Attr]] = [
            lambda: rng.choice(WHOLES),
            lambda: rng.choice(WHOLES[:5]),
            lambda: rng.choice(REALS),
            lambda: odd_number(self.pick),
            lambda: rng.random() < 0.5,
            lambda: odd_name(self.pick),
            lambda: b"\xff",
            lambda: dtype(rng.choice(DTYPES)),
            lambda: Array.of(np.zeros(rng.randrange(3), np.float32)),
            lambda: None,
        ]
        if depth < 2:
            options += [
                lambda: tuple(rng.choice(WHOLES) for _ in range(rng.randrange(5))),
                lambda: tuple(rng.choice(WHOLES[:5]) for _ in range(rng.randrange(5))),
                lambda: tuple(rng.choice(REALS) for _ in range(rng.randrange(4))),
                lambda: tuple(self.attr(depth + 1) for _ in range(rng.randrange(4))),
            ]
        return rng.choice(options)()

    def fitting(self, kind: str) -> Attr:
        """A value of the kind that an attribute has; now and then of another."""
        for _ in range(20 if self.rng.random() < 0.95 else 1):
            found = self.attr()
            wanted = {
                "int": type(found) is int,
                "float": isinstance(found, float),
                "bool": isinstance(found, bool),
                "text": isinstance(found, str),
                "ints": isinstance(found, tuple) and all(type(v) is int for v in found),
                "floats": isinstance(found, tuple) and all(isinstance(v, float) for v in found),
            }
            if wanted.get(kind, True):
                break
        return found

    # -- calls --------------------------------------------------------------------------------

    def add(self) -> Node:
        """Any op on any operands, with any attributes."""
        rng = self.rng
        row = spec(rng.choice(list(OPS)))
        operands: dict[str, Value] = {}
        for slot in row.operands:
            if slot.variadic:
                operands |= {f"{slot.name}.{i}": self.value() for i in range(rng.randrange(3))}
            elif rng.random() < (0.3 if slot.optional else 0.97):
                operands[slot.name] = self.value()
        if rng.random() < 0.1:
            operands[self.slot()] = self.value()
        attrs = {
            a.name: self.fitting(a.kind) for a in row.attrs if a.required or rng.random() < 0.4
        }
        if rng.random() < 0.03:
            attrs[odd_name(self.pick)] = self.attr()
        stated = rng.random() < 0.2 or row.name in ("input", "fused", "foreign", "quantize")
        types = [self.kind() for _ in range(rng.randrange(3))] if stated else None
        bodies = {}
        for name in row.bodies:
            if rng.random() < 0.9:
                bodies[name] = random_graph(rng.randrange(100))
        before = self.node() if rng.random() < 0.3 else None
        node = self.graph.add(
            row.name,
            operands,
            attrs,
            types=types,
            name=odd_name(self.pick) if rng.random() < 0.5 else None,
            before=before,
            bodies=bodies or None,
        )
        self.nodes.append(node)
        return node

    def substitute(self) -> None:
        """A node replaced by any values, now and then with others that are to go."""
        node = self.node()
        count = len(node.results) + (self.rng.random() < 0.1)
        gone = [self.node() for _ in range(self.rng.choice((0, 0, 0, 1, 2)))]
        self.graph.substitute(node, *(self.value() for _ in range(count)), gone=gone)

    def stated(self) -> Node:
        """An input of an odd type."""
        node = self.graph.add("input", types=[self.kind()], name=odd_name(self.pick))
        self.nodes.append(node)
        return node

    def chain(self) -> Node:
        stages: list[Stage] = []
        operands: dict[str, Value] = {}
        for i in range(self.rng.randrange(4)):
            op = self.rng.choice(("relu", "add", "clip", "conv2d", self.rng.choice(list(OPS))))
            names = [slot.name for slot in spec(op).operands]
            flow = names[0] if names and self.rng.random() < 0.95 and i else None
            slots = tuple(name for name in names if name != flow)[:2]
            operands |= {name if i == 0 else f"{i}.{name}": self.value() for name in slots}
            attrs = {a.name: self.fitting(a.kind) for a in spec(op).attrs if a.required}
            stages.append(Stage(op, spec(op).complete_attrs(attrs), slots, flow))
        node = self.graph.add_chain(stages, operands, self.kind())
        self.nodes.append(node)
        return node

    def attrs(self) -> None:
        node = self.node()
        if node.attrs:
            name = self.rng.choice(list(node.attrs))
            kind = next(a.kind for a in spec(node.op).attrs if a.name == name)
            self.graph.set_attrs(node, **{name: self.fitting(kind)})
