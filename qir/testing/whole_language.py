"""Graphs that say whatever the language can: any op, bodies, chains, dynamic types, foreign nodes.

A graph grows step by step on the values that it has; a body is such a graph on its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, F16, F32, I64, U8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import OPS, spec
from qir.ir.types import Array, QuantType, TensorType
from qir.testing.integer_networks import random_map
from qir.testing.op_samples import APART, feed
from qir.testing.quantized_constants import coded_constant
from qir.testing.random_source import Pick

MAX_DEPTH = 2
_N = dims.symbol("N")
_INPUTS: tuple[dims.Shape, ...] = ((2, 3), (_N, 4), (1, 2, 4, 4), (3, 2, 4), (_N, 2, 3), (5,))
_FED = tuple(op for op in OPS if op not in APART)
_CHAINED = ("relu", "sigmoid", "tanh", "neg", "abs", "clip", "add", "mul")


def whole_graph(pick: Pick) -> Graph:
    """Returns a program that uses any part of the language."""
    graph = Graph("main")
    values: list[Value] = []
    for i in range(1 + pick(3)):
        kind = TensorType(_INPUTS[pick(len(_INPUTS))], (F32, F32, random_map(pick, U8))[pick(3)])
        values.append(graph.add("input", types=[kind], name=f"x{i}").result)
    _Growth(pick, graph, values, 0).grow(3 + pick(8))
    return graph


class _Growth:
    """One graph as it grows, so many bodies deep."""

    def __init__(self, pick: Pick, graph: Graph, values: list[Value], depth: int) -> None:
        self.pick = pick
        self.graph = graph
        self.values = values
        self.depth = depth

    def grow(self, steps: int) -> None:
        """Adds so many steps, then the output."""
        self.steps(steps)
        # Unused values become outputs, so that no pass removes what a test wants to see.
        ends = [v for v in self.values if not v.uses] or self.values[-1:]
        self.graph.add("output", {f"y{i}": v for i, v in enumerate(ends)})

    def steps(self, count: int) -> None:
        plain_steps: list[Callable[[], None]] = [self.op] * 8 + [self.codes, self.dynamic] * 2
        # Plain ops outnumber the other steps, or graphs would be all bodies.
        plain_steps.append(self.chain)
        body_steps = [self.branch, self.loop, self.scan, self.group] * 2 + [self.foreign]
        for _ in range(count):
            options = plain_steps + (body_steps if self.depth < MAX_DEPTH else [])
            options[self.pick(len(options))]()

    def add(
        self,
        op: str,
        operands: dict[str, Value],
        attrs: dict[str, Attr] | None = None,
        types: list[TensorType] | None = None,
        bodies: dict[str, Graph] | None = None,
    ) -> None:
        node = self.graph.add(op, operands, attrs, types=types, bodies=bodies)
        self.values += node.results

    def some(self, most: int, kept: Callable[[Value], bool] = lambda value: True) -> list[Value]:
        """Returns a few of the values, any of them more than once."""
        candidates = [v for v in self.values if kept(v)]
        return (
            [candidates[self.pick(len(candidates))] for _ in range(self.pick(most + 1))]
            if candidates
            else []
        )

    def constant(self, data: object, kind: str) -> Value:
        return self.graph.constant(Array.of(np.array(data, dtype(kind).carrier)), name="n")

    # -- steps without bodies -----------------------------------------------------------------

    def op(self) -> None:
        node = feed(self.pick, self.graph, _FED[self.pick(len(_FED))], self.values)
        self.values += node.results if node is not None else ()

    def codes(self) -> None:
        """A quantized constant, and often the float values that it means."""
        value = self.graph.constant(coded_constant(self.pick))
        self.values.append(value)
        if self.pick(3):
            self.add("dequantize", {"x": value})

    def dynamic(self) -> None:
        """Quantized values whose scale and zero are computed, and come along as operands."""
        for x in self.some(1, lambda v: v.type.element is F32):
            attrs: dict[str, Attr] = {"rule": "onnx.dynamic", "storage": U8}
            scale, zero = self.graph.add("choose_qparams", {"x": x}, attrs).results
            kind = x.type.with_element(QuantType(U8, F32, None, None))
            params = {"scale": scale, "zero": zero}
            quantized = self.graph.add("quantize", {"x": x, **params}, types=[kind]).result
            param_operands = {f"x.{name}": value for name, value in params.items()}
            self.add("dequantize", {"x": quantized, **param_operands})

    def chain(self) -> None:
        """A group of ops that work element by element, some of them with a rounding after."""
        for x in self.some(1, lambda v: v.type.element is F32):
            first = _CHAINED[self.pick(6)]
            stages = [
                Stage(first, spec(first).complete_attrs({}), ("x",), None, self.inner(x.type))
            ]
            operands = {"x": x}
            for i in range(1, 2 + self.pick(3)):
                op = _CHAINED[self.pick(len(_CHAINED))]
                slots, flow = (("b",), "a") if op in ("add", "mul") else ((), "x")
                if slots:
                    operands[f"{i}.b"] = x
                stages.append(Stage(op, spec(op).complete_attrs({}), slots, flow, None, f"s{i}"))
            result_type = x.type.with_element((F32, random_map(self.pick, U8))[self.pick(2)])
            self.values.append(self.graph.add_chain(stages, operands, result_type).result)

    def inner(self, kind: TensorType) -> TensorType | None:
        return kind.with_element(random_map(self.pick, U8)) if self.pick(3) == 0 else None

    # -- steps with bodies --------------------------------------------------------------------

    def body(
        self, kinds: Sequence[TensorType], first: int, made: Sequence[int], extra: bool
    ) -> tuple[Graph, list[TensorType]]:
        """Returns a body; it gives those of its inputs that `made` names, changed, and perhaps
        more.

        `first` of the inputs are not grown upon. The types are of what it gives besides.
        """
        graph = Graph("body", "" if self.pick(3) else "ort-1.31")
        values = [graph.add("input", types=[k], name=f"v{i}").result for i, k in enumerate(kinds)]
        grown_upon = values[first:] or [graph.constant(coded_constant(self.pick))]
        inside = _Growth(self.pick, graph, grown_upon, self.depth + 1)
        inside.steps(1 + self.pick(3))
        outputs = {f"o{i}": inside.changed(values[at]) for i, at in enumerate(made)}
        extras = inside.some(2) if extra else []
        outputs |= {f"e{i}": value for i, value in enumerate(extras)}
        graph.add("output", outputs)
        return graph, [value.type for value in extras]

    def changed(self, value: Value) -> Value:
        """Another value of the same type, or the value itself."""
        if value.type.element is F32 and self.pick(3):
            op = ("neg", "relu", "sigmoid")[self.pick(3)]
            return self.graph.add(op, {"x": value}).result
        return value

    def branch(self) -> None:
        xs = self.some(3) or self.values[:1]
        kinds = [x.type for x in xs]
        given_back = [self.pick(len(xs)) for _ in range(1 + self.pick(2))]
        bodies = {n: self.body(kinds, 0, given_back, False)[0] for n in ("then", "else")}
        operands = {"cond": self.constant(self.pick(2) > 0, "bool")}
        self.add("if", operands | _numbered("xs", xs), bodies=bodies)

    def loop(self) -> None:
        carried, captured = self.some(2), self.some(2)
        # Every loop body begins with its step number and its condition.
        scalars = [TensorType((), I64), TensorType((), BOOL)]
        kinds = scalars + [v.type for v in (*carried, *captured)]
        given_back = [1, *range(2, 2 + len(carried))]
        body, _ = self.body(kinds, 2, given_back, _plain(carried + captured))
        operands = {"count": self.constant(self.pick(4), "i64")}
        operands |= _numbered("vs", carried) | _numbered("xs", captured)
        self.add("loop", operands, bodies={"body": body})

    def scan(self) -> None:
        parts = self.some(1, lambda v: v.type.rank > 0 and v.type.quant is None)
        carried = self.some(2)
        for part in parts:
            entry = part.type.with_shape(part.type.shape[1:])
            kinds = [*(v.type for v in carried), entry]
            body, extras = self.body(kinds, 0, list(range(len(carried))), _plain(carried))
            attrs: dict[str, Attr] = {"reverse": (self.pick(2),)} if self.pick(2) else {}
            if extras and self.pick(2):
                attrs["out_reverse"] = tuple(self.pick(2) for _ in extras)
            operands = _numbered("vs", carried) | _numbered("ss", [part])
            self.add("scan", operands, attrs, bodies={"body": body})

    def group(self) -> None:
        """A group with a body; its slots are named as the body's inputs."""
        xs = self.some(3) or self.values[:1]
        body, _ = self.body([x.type for x in xs], 0, [0], True)
        kinds = [value.type for value in body.outputs.values()]
        operands = {f"v{i}": x for i, x in enumerate(xs)}
        self.add("fused", operands, {"kernel": "k"}, kinds, {"body": body})

    def foreign(self) -> None:
        """A node of a framework, with whatever it came with."""
        xs = self.some(3)
        attrs: dict[str, Attr] = {"framework": "elsewhere", "op": "Strange", "domain": "a.b"}
        attrs["attrs"] = (("alpha", 0.5), ("names", ("a", "b", None)), ("raw", b"\x00\xff"))
        attrs["slots"] = ("x", "", "y")
        bodies = {}
        if self.pick(2):
            # A body's name may be any: that of a foreign node is the framework's own.
            bodies["else_branch"], _ = self.body([x.type for x in xs], 0, [], True)
        kinds = [coded_constant(self.pick).type for _ in range(self.pick(2))]
        kinds += [TensorType((2, 3), (F32, F16, random_map(self.pick, U8))[self.pick(3)])]
        node = self.graph.add("foreign", _numbered("xs", xs), attrs, types=kinds, bodies=bodies)
        self.values.append(node.results[-1])


def _numbered(prefix: str, values: Sequence[Value]) -> dict[str, Value]:
    return {f"{prefix}.{i}": value for i, value in enumerate(values)}


def _plain(values: Sequence[Value]) -> bool:
    return all(value.type.quant is None for value in values)
