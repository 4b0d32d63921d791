"""Changes the type in which float ops compute, with casts where a graph keeps the old one."""

from __future__ import annotations

from collections.abc import Callable, Collection

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import DType
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, lazy_array, read_box
from qir.ir.node import Node, Value
from qir.ir.quantized_ops import NON_COMPUTE_OPS
from qir.ir.types import Array, TensorType


def not_plain(node: Node) -> bool:
    """Returns whether an op is not a plain float op; such an op keeps its types."""
    quantized = any(v.type.quant for v in (*node.operands.values(), *node.results))
    return node.op in NON_COMPUTE_OPS or bool(node.bodies or node.inner or node.stages) or quantized


class Retyping:
    """Makes the float ops of one graph compute in another type.

    `old` are the types that change, `to` is the new one. Ops for which `kept` holds get their old
    operands by casts, as do ops that have no form in the new type.
    """

    def __init__(
        self, graph: Graph, old: Collection[DType], to: DType, kept: Callable[[Node], bool]
    ) -> None:
        self.graph, self._old, self._to, self._keeps_type = graph, old, to, kept
        self.count = 0
        self.was: dict[Value, DType] = {}
        """What values were that have the new type now."""
        self._replacements: dict[tuple[Value, DType], Value] = {}
        """Constants and casts that stand for a value in a type."""
        self._casts: list[Node] = []

    def run(self) -> int:
        """Changes the ops of the graph; returns how many values have the new type."""
        for node in list(self.graph):
            self._take(node)
        self._clean()
        self.graph.prune()
        return self.count

    def _take(self, node: Node) -> None:
        """Makes an op one of the new type, or gives it its old operands."""
        if not self._keeps_type(node) and self._retyped(node):
            return
        for slot, value in node.operands.items():
            if value in self.was:
                self.graph.set_operand(node, slot, self._cast(value, self.was[value], node))

    def _retyped(self, node: Node) -> bool:
        """Makes an op one of the new type, unless it has no such form."""
        values = (*node.operands.values(), *node.results)
        if not any(v in self.was or self._changes(v) for v in values):
            return True
        operands = {slot: self._converted(v) for slot, v in node.operands.items()}
        attrs = {name: self._attr(held) for name, held in node.attrs.items()}
        kinds = [
            v.type.with_element(self._to) if self._changes(v) else v.type for v in node.results
        ]
        try:
            found = infer_result_types(node.op, operands, attrs)
        except TypeRuleError:
            return False
        # The op's type rule gives another type, as for ops whose result is always float32.
        if [t.element for t in found] != [t.element for t in kinds]:
            return False
        for slot, value in operands.items():
            if node.operands[slot] is not value:
                self.graph.set_operand(node, slot, value)
        if attrs != dict(node.attrs):
            self.graph.set_attrs(node, **attrs)
        for value, kind in zip(node.results, kinds, strict=True):
            if self._changes(value):
                self.was[value] = value.type.dtype
                self.graph.set_type(value, kind)
                self.count += 1
        if node.op == "cast":
            self._casts.append(node)
        return True

    def _converted(self, value: Value) -> Value:
        constant = value.constant
        if not self._changes(value):
            return value
        if constant is None:
            return self._cast(value, self._to, None)
        if (value, self._to) not in self._replacements:
            data = self._elements(constant.contents)
            kind = TensorType(value.type.shape, self._to)
            # The old constant stays for ops that keep the old type; `prune` removes it where there
            # are none.
            array = Array(data, kind, f"{constant.name}.{self._to}" if constant.name else "")
            name = self.graph.fresh(f"{value.name}.{self._to}")
            converted = self.graph.constant(array, name=name, before=value.node)
            self.graph.set_origins(converted.node, value.node.origins)
            self.graph.set_lineage(converted, value.lineage)
            self._replacements[value, self._to] = converted
        return self._replacements[value, self._to]

    def _cast(self, value: Value, to: DType, before: Node | None) -> Value:
        if (value, to) not in self._replacements:
            name = self.graph.fresh(f"{value.name}.{to}")
            # Before the first reader in graph order, so that every later reader can share the cast.
            before = before or _first(value)
            cast = self.graph.add("cast", {"x": value}, {"to": to}, name=name, before=before).result
            self.graph.set_lineage(cast, value.lineage)
            self._replacements[value, to] = cast
        return self._replacements[value, to]

    def _changes(self, value: Value) -> bool:
        return value.type.element in self._old

    def _attr(self, attr: Attr) -> Attr:
        if isinstance(attr, DType) and attr in self._old:
            return self._to
        if isinstance(attr, Array) and attr.type.element in self._old:
            return Array.of(attr.data.astype(self._to.carrier))
        return attr

    def _elements(self, elements: ArrayData) -> ArrayData:
        """Returns the elements in the new type; of a large array when they are asked for."""
        kind = self._to.carrier
        return lazy_array(elements.shape, kind, lambda box: read_box(elements, box).astype(kind))

    def _clean(self) -> None:
        """Takes out the casts that cast nothing any more."""
        for node in self._casts:
            x = node.operands["x"]
            if x.type == node.result.type:
                self.graph.replace(node.result, x)
                self.graph.remove(node)


def _first(value: Value) -> Node | None:
    """Returns the first reader of a value."""
    return min((u.node for u in value.uses), key=lambda n: n._rank, default=None)


__all__ = ["Retyping", "not_plain"]
