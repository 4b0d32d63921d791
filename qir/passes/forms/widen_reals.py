"""Computes in float32 what a model computes in float16 or bfloat16.

    graph main as native {
      %x = input() : 2xf16
      %a = relu(%x) : 2xf16
      %y = neg(%a) : 2xf16
      output(y=%y)
    }

By `widen-reals` it becomes:

    graph main as native {
      %x = input() : 2xf16
      %x.f32 = cast(%x) {to = f32} : 2xf32
      %a = relu(%x.f32) : 2xf32
      %y = neg(%a) : 2xf32
      %y.f16 = cast(%y) {to = f16} : 2xf16
      output(y=%y.f16)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from qir.analysis.bodies import bodies
from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import infer
from qir.ir.dtype import BF16, F16, F32, DType
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import Held, later, part
from qir.ir.node import Node, Value
from qir.ir.quantized_ops import TYPED
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.filter import may

NARROW = (F16, BF16)
"""The types that become float32."""


def narrow(graph: Graph) -> bool:
    """Whether an op of a graph, its branches or loops computes with floats of 16 bits."""
    return any(map(_computing, bodies(graph)))


def _computing(graph: Graph) -> bool:
    return any(map(_computes, graph))


def _computes(node: Node) -> bool:
    """Whether a plain op of floats takes or gives some of 16 bits; casts alone compute nothing."""
    values = (*node.operands.values(), *node.results)
    return node.op != "cast" and not _kept(node) and any(map(_narrow, values))


def _kept(node: Node) -> bool:
    """Whether an op is none of floats alone, which keeps the types that it has."""
    coded = any(v.type.quant for v in (*node.operands.values(), *node.results))
    return node.op in TYPED or bool(node.bodies or node.inner or node.stages) or coded


@dataclass(frozen=True)
class WidenReals(Pass):
    """Computes in float32 what a model computes in float16 or bfloat16, in branches and loops too.

    Constants are what they were. Inputs and results, those of bodies too, and what is no plain op
    of floats keep their types: casts stand between. Numbers are no longer rounded to 16 bits after
    each op.
    """

    name = "widen-reals"
    nested = False
    tolerance = Tolerance(inf, inf, "floats are no longer rounded to 16 bits")

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """A product of halves."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf16\n"
            "  %y = mul(%x, %x) : 2x3xf16\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = [part for part in bodies(graph) if _computing(part)]
        first = next((node for part in found for node in part if _computes(node)), None)
        if first is None or not may(self.name, "widen", first):
            return 0
        count = sum(_Widening(part).run() for part in found)
        said = f"16-bit floats are float32: {count} values, rounded less often"
        ledger.add(Change.REGROUPED, self.name, graph.name, said)
        return 1


def _narrow(value: Value) -> bool:
    return value.type.element in NARROW


class _Widening:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.count = 0
        self.was: dict[Value, DType] = {}
        """What values were that are float32 now."""
        self.made: dict[tuple[Value, DType], Value] = {}
        """Constants and casts that stand for a value in a type."""
        self.casts: list[Node] = []

    def run(self) -> int:
        """Makes the ops of a graph those of float32; says how many values became so."""
        for node in list(self.graph):
            self.take(node)
        self.clean()
        self.graph.prune()
        return self.count

    def take(self, node: Node) -> None:
        """Makes an op one of float32, or gives it its old operands."""
        if not _kept(node) and self._widened(node):
            return
        for slot, value in node.operands.items():
            if value in self.was:
                self.graph.set_operand(node, slot, self._cast(value, self.was[value], node))

    def _widened(self, node: Node) -> bool:
        """Makes an op one of float32, unless it has no such form."""
        values = (*node.operands.values(), *node.results)
        if not any(v in self.was or _narrow(v) for v in values):
            return True
        operands = {slot: self._wide(v) for slot, v in node.operands.items()}
        attrs = {name: _attr(held) for name, held in node.attrs.items()}
        kinds = [v.type.with_element(F32) if _narrow(v) else v.type for v in node.results]
        try:
            found = infer(node.op, operands, attrs)
        except TypeRuleError:
            return False
        if [t.element for t in found] != [t.element for t in kinds]:
            return False
        for slot, value in operands.items():
            if node.operands[slot] is not value:
                self.graph.set_operand(node, slot, value)
        if attrs != dict(node.attrs):
            self.graph.set_attrs(node, **attrs)
        for value, kind in zip(node.results, kinds, strict=True):
            if _narrow(value):
                self.was[value] = value.type.dtype
                self.graph.set_type(value, kind)
                self.count += 1
        if node.op == "cast":
            self.casts.append(node)
        return True

    def _wide(self, value: Value) -> Value:
        held = value.constant
        if not _narrow(value):
            return value
        if held is None:
            return self._cast(value, F32, None)
        if (value, F32) not in self.made:
            data = _wider(held.held)
            kind = TensorType(value.type.shape, F32)
            array = Array(data, kind, f"{held.name}.f32" if held.name else "")
            name = self.graph.fresh(f"{value.name}.f32")
            made = self.graph.constant(array, name=name, before=value.node)
            self.graph.set_origins(made.node, value.node.origins)
            self.graph.set_lineage(made, value.lineage)
            self.made[value, F32] = made
        return self.made[value, F32]

    def _cast(self, value: Value, to: DType, before: Node | None) -> Value:
        if (value, to) not in self.made:
            name = self.graph.fresh(f"{value.name}.{to}")
            before = before or _first(value)
            made = self.graph.add("cast", {"x": value}, {"to": to}, name=name, before=before).result
            self.graph.set_lineage(made, value.lineage)
            self.made[value, to] = made
        return self.made[value, to]

    def clean(self) -> None:
        """Takes out the casts that cast nothing any more."""
        for node in self.casts:
            x = node.operands["x"]
            if x.type == node.result.type:
                self.graph.replace(node.result, x)
                self.graph.remove(node)


def _first(value: Value) -> Node | None:
    """The first reader of a value."""
    return min((u.node for u in value.uses), key=lambda n: n._rank, default=None)


def _attr(held: Attr) -> Attr:
    if isinstance(held, DType) and held in NARROW:
        return F32
    if isinstance(held, Array) and held.type.element in NARROW:
        return Array.of(held.data.astype(np.float32))
    return held


def _wider(held: Held) -> Held:
    """The elements as float32; of a large array when they are asked for."""
    return later(held.shape, np.dtype(np.float32), lambda box: part(held, box).astype(np.float32))
