"""Writes a graph as calls of operators in an `fx.Graph`."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from qir.errors import Refused
from qir.ir.dims import Dim, Sym
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.query.display import op_name

from .elements import fits, kind, quantized, tensor

Handler: TypeAlias = "Callable[[FxProgram, Node], Any]"
"""Writes a node, and returns its result, or a sequence of its results."""
_NOT_IN_NAMES = re.compile(r"\W")
_RESERVED_NAMES = frozenset({"self", "torch", "x", "inf", "nan"})
_NO_ARGUMENT_NAMES = frozenset({"self", "torch", "inf", "nan", "float"})
"""Names that the text of a program reads itself."""


@dataclass
class FxProgram:
    """An fx.Graph under construction. Each value of the source graph has the fx.Node that
    computes it."""

    source: Graph
    plain: bool = False
    """Whether quantized values are plain integer tensors, as in `quantized_decomposed` programs."""
    graph: fx.Graph = field(default_factory=fx.Graph)
    attributes: dict[str, Any] = field(default_factory=dict)
    """What the program has as attributes: tensors, packed weights."""
    values: dict[Value, fx.Node] = field(default_factory=dict)
    _sizes: dict[str, fx.Node] = field(default_factory=dict)
    """The call that gives a symbolic size."""

    # -- calls and attributes -----------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds a call of an operator such as `aten.relu`."""
        space, _, packet = name.partition(".")
        return self.graph.call_function(getattr(getattr(torch.ops, space), packet), args, kwargs)

    def item(self, results: fx.Node, index: int) -> fx.Node:
        """Adds a selection of one of several results."""
        return self.graph.call_function(operator.getitem, (results, index))

    def add_attribute(self, value: Any, name: str) -> fx.Node:
        """Adds an attribute to the program, and a node that reads it."""
        stem = _NOT_IN_NAMES.sub("_", name) or "held"
        stem = f"_{stem}" if stem[0].isdigit() or stem in _RESERVED_NAMES else stem
        unique, suffix = stem, 1
        while unique in self.attributes:
            unique, suffix = f"{stem}_{suffix}", suffix + 1
        self.attributes[unique] = value
        return self.graph.create_node("get_attr", unique)

    # -- values -------------------------------------------------------------------------------

    def node_of(self, value: Value) -> fx.Node:
        """Returns the node that computes a value; a constant becomes an attribute at its first
        use."""
        if value not in self.values:
            self.values[value] = self.add_attribute(self.constant(value), value.name)
        return self.values[value]

    def constant(self, value: Value) -> torch.Tensor:
        """Returns the tensor of a constant; raises Refused for a type that PyTorch lacks."""
        array, quant = value.constant, value.type.quant
        if array is None:
            raise self.refuse(value.node, f"%{value.name} is computed, and must be a constant here")
        if quant is None or self.plain:
            self.require(value)
            return tensor(array.data)
        if not fits(quant):
            raise self.refuse(value.node, f"PyTorch has no quantized tensor of type {quant}")
        return quantized(tensor(array.data), quant)

    def require(self, value: Value) -> None:
        """Raises Refused for a value of a type that PyTorch lacks."""
        quant = value.type.quant
        if quant is not None and not self.plain and not fits(quant):
            raise self.refuse(value.node, f"PyTorch has no quantized tensor of type {quant}")
        if quant is None or self.plain:
            kind(value.type.dtype, value.node.name)

    def operand(self, node: Node, slot: str) -> fx.Node:
        """Returns the node that computes an operand."""
        return self.node_of(node.operands[slot])

    def optional(self, node: Node, slot: str) -> fx.Node | None:
        """Returns the node that computes an operand, or None without one."""
        value = node.operands.get(slot)
        return None if value is None else self.node_of(value)

    def variadic_nodes(self, node: Node) -> list[fx.Node]:
        """Returns the nodes that compute the operands of a variadic op."""
        return [self.node_of(v) for s, v in node.operands.items() if s.startswith("xs.")]

    def size(self, dim: Dim, node: Node) -> Any:
        """Returns a size: a number, or a node that computes it from the sizes of inputs."""
        if isinstance(dim, int):
            return dim
        if not isinstance(dim, Sym):
            raise self.refuse(node, "its shape has a size that nothing says")
        total: Any = None
        # A size is a sum of products of symbols, such as 2*n*m + 3.
        for atoms, count in dim.terms:
            term: Any = count
            for atom in atoms:
                if not isinstance(atom, str):
                    raise self.refuse(node, f"its shape has the size {dim}")
                term = self._product(term, self._named(atom, node))
            summands = (total, term)
            total = term if total is None else self.graph.call_function(operator.add, summands)
        return total

    def _product(self, a: Any, b: fx.Node) -> Any:
        return b if a == 1 else self.graph.call_function(operator.mul, (a, b))

    def _named(self, name: str, node: Node) -> fx.Node:
        if name not in self._sizes:
            for value in self.source.inputs:
                for axis, dim in enumerate(value.type.shape):
                    if isinstance(dim, Sym) and str(dim) == name:
                        # The symbol's value is the size of the first input axis that has it.
                        size_node = self.graph.call_method("size", (self.values[value], axis))
                        self._sizes[name] = size_node
                        return size_node
            raise self.refuse(node, f"its shape has the size {name}, which no input has")
        return self._sizes[name]

    def refuse(self, node: Node, why: str) -> Refused:
        """Returns an error for a node, with its origin in the user's model."""
        origin = f" ({node.origins[0]})" if node.origins else ""
        return Refused(f"{node.name}{origin}: {op_name(node)} cannot be written for PyTorch: {why}")

    # -- the program --------------------------------------------------------------------------

    def write(self, choose: Callable[[Node], Handler | None]) -> None:
        """Writes every node by the handler that is chosen for it; raises Refused without one."""
        placeholders = zip(self.source.inputs, argument_names(self.source.inputs), strict=True)
        for value, name in placeholders:
            self.require(value)
            self.values[value] = self.graph.placeholder(name)
        for node in self.source:
            if node.op in STRUCTURAL_OPS:
                continue
            handler = choose(node)
            if handler is None:
                reason = "QIR knows no operator of PyTorch for it"
                raise self.refuse(node, f"{reason}; cut the model before it")
            outputs = handler(self, node)
            results = (outputs,) if len(node.results) == 1 else outputs
            self.values |= zip(node.results, results, strict=True)
        outputs = [self.node_of(value) for value in self.source.outputs.values()]
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        self.graph.eliminate_dead_code()  # such as sizes that PyTorch's calls take as numbers
        used = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        self.attributes = {name: thing for name, thing in self.attributes.items() if name in used}


def argument_names(inputs: Iterable[Value]) -> list[str]:
    """Returns the names of inputs as unique, valid names of Python arguments."""
    names: list[str] = []
    for value in inputs:
        name = _NOT_IN_NAMES.sub("_", value.name) or "x"
        if name[0].isdigit() or keyword.iskeyword(name) or name in _NO_ARGUMENT_NAMES:
            name = f"_{name}"
        stem, suffix = name, 1
        while name in names:
            name, suffix = f"{stem}_{suffix}", suffix + 1
        names.append(name)
    return names


__all__ = ["FxProgram", "Handler", "argument_names"]
