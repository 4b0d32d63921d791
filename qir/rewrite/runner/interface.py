"""Inputs and outputs of a graph by name and type: passes keep them, but may refine sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.types import QuantType, TensorType


@dataclass(frozen=True, slots=True)
class GraphInterface:
    """The inputs and outputs of a graph as they were."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]

    @classmethod
    def of(cls, graph: Graph) -> GraphInterface:
        """Returns the interface of a graph as it is now."""
        return cls(
            {value.name: value.type for value in graph.inputs},
            {name: value.type for name, value in graph.outputs.items()},
        )

    def renamed(self, graph: Graph) -> str:
        """Returns what is wrong with the names that a changed graph takes and gives; empty:
        nothing."""
        current = GraphInterface.of(graph)
        for kind, old_names, new_names in (
            ("inputs", list(self.inputs), list(current.inputs)),
            ("outputs", list(self.outputs), list(current.outputs)),
        ):
            if old_names != new_names:
                old_text, new_text = (
                    ", ".join(names) or "none" for names in (old_names, new_names)
                )
                return f"changes the {kind} of the graph: {old_text} -> {new_text}"
        return ""

    def retyped(self, graph: Graph) -> tuple[str, str] | None:
        """Returns the first input or output of another type, in words, and the node that makes
        it."""
        for value in graph.inputs:
            if not refines(self.inputs[value.name], value.type):
                was = self.inputs[value.name]
                return f"changes the type of input {value.name}: {was} -> {value.type}", value.name
        for name, value in graph.outputs.items():
            if not refines(self.outputs[name], value.type):
                was = self.outputs[name]
                return f"changes the type of output {name}: {was} -> {value.type}", value.node.name
        return None


def refines(old: TensorType, new: TensorType) -> bool:
    """Returns whether a type is what another was, with sizes and maps that were open known now."""
    if old == new:
        return True
    if old.rank != new.rank or not _element(old, new):
        return False
    return all(_size(a, b) for a, b in zip(old.shape, new.shape, strict=True))


def _size(old: Dim, new: Dim) -> bool:
    # A named size may become another name or a number; an unknown one anything.
    return old == new or old is None or (not isinstance(old, int) and new is not None)


def _element(old: TensorType, new: TensorType) -> bool:
    if old.element == new.element:
        return True
    if not (isinstance(old.element, QuantType) and isinstance(new.element, QuantType)):
        return False
    # Two quantized types fit if one leaves its parameters open and both store and express the same.
    opened = old.element.dynamic or new.element.dynamic
    return opened and (old.dtype, old.express) == (new.dtype, new.express)
