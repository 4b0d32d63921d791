"""A node of a TensorFlow graph, as converters see it: operands, attributes, and adding nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.dtype import DType
from qir.ir.node import Stage, Value
from qir.ir.types import TensorType

from .elements import dtype_of_number, shape_of, type_name
from .graphdef import GraphDefNode
from .reader import GraphDefReader, KeepNode

Numbers = NDArray[np.generic]


class NodeCall:
    """A node that is being read, with its operands, which were read before it."""

    def __init__(
        self, reader: GraphDefReader, node: GraphDefNode, operands: Sequence[Value]
    ) -> None:
        self.reader = reader
        self.node = node
        self._operands = operands
        self.used = 0
        """How many operands were asked for, in their order; more of them are none of the op's."""

    # -- results --------------------------------------------------------------------------------

    def add(
        self, op: str, operands: Mapping[str, Value | None], attrs: Mapping[str, Attr] | None = None
    ) -> Value:
        """Adds an op with one result; operands that are None are left out."""
        return self.add_many(op, operands, attrs)[0]

    def add_many(
        self, op: str, operands: Mapping[str, Value | None], attrs: Mapping[str, Attr] | None = None
    ) -> tuple[Value, ...]:
        """Adds an op and returns its results."""
        present = {slot: value for slot, value in operands.items() if value is not None}
        return self.reader.add(self.node, op, present, attrs or {}).results

    def add_typed(
        self,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        kind: TensorType,
    ) -> Value:
        """Adds an op whose result type does not follow from its operands."""
        return self.reader.add(self.node, op, operands, attrs, types=[kind]).result

    def add_group(
        self, stages: Sequence[Stage], operands: Mapping[str, Value], kind: TensorType
    ) -> Value:
        """Adds a group of ops that one kernel computes."""
        return self.reader.add_group(self.node, stages, operands, kind)

    def constant(self, data: Numbers, what: str = "constant") -> Value:
        """Adds a constant, named after the node and `what`."""
        name = self.reader.names(self.node, what)
        # `ascontiguousarray` turns rank 0 into rank 1, which the reshape undoes.
        return self.reader.graph.constant(np.ascontiguousarray(data).reshape(data.shape), name=name)

    def int64_constant(self, sizes: Sequence[int], what: str = "sizes") -> Value:
        """Adds a constant vector of i64."""
        return self.constant(np.asarray(sizes, np.int64), what)

    def scalar_like(self, value: float, like: Value) -> Value:
        """Adds a scalar constant in the element type of another value."""
        return self.constant(np.asarray(value, like.type.dtype.carrier), "number")

    # -- operands -------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of operands."""
        return len(self._operands)

    @property
    def operands(self) -> Sequence[Value]:
        """All operands, of an op with any number of them."""
        self.used = self.count
        return self._operands

    def __getitem__(self, index: int) -> Value:
        """Returns an operand."""
        if index >= self.count:
            raise KeepNode(f"it has {self.count} inputs")
        self.used = max(self.used, index + 1)
        return self._operands[index]

    def all_operands(self, count: int) -> Sequence[Value]:
        """Returns all operands; raises KeepNode unless there are `count` of them."""
        if self.count != count:
            raise KeepNode(f"it has {self.count} inputs, and takes {count}")
        return self.operands

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Returns the shape of an operand."""
        return self[index].type.shape

    def rank(self, index: int) -> int:
        """Returns the rank of an operand."""
        return self[index].type.rank

    def constant_elements(self, index: int) -> Numbers:
        """Returns the elements of an operand that no input changes; raises KeepNode for others."""
        elements = self.reader.known.elements(self[index])
        if elements is None:
            raise KeepNode(f"its input {index} is computed while the network runs")
        return elements

    def integers(self, index: int) -> tuple[int, ...]:
        """Returns a constant operand of integers, a scalar or a vector, as a tuple."""
        return tuple(int(size) for size in self.constant_elements(index).reshape(-1))

    def axis(self, index: int, rank: int) -> int:
        """Returns a constant operand that is an axis; negative ones count from the end."""
        (axis,) = self.integers(index)
        return axis + rank if axis < 0 else axis

    def axes(self, index: int, rank: int) -> tuple[int, ...]:
        """Returns a constant operand that lists axes; negative ones count from the end."""
        return tuple(axis + rank if axis < 0 else axis for axis in self.integers(index))

    # -- attributes -----------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Returns whether the node has an attribute."""
        return name in self.node.attrs

    def attr(self, name: str) -> Any:
        """Returns an attribute's AttrValue; raises KeepNode if the node lacks it."""
        if name not in self.node.attrs:
            raise KeepNode(f"it has no attribute {name}")
        return self.node.attrs[name]

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an integer attribute."""
        return int(self.node.attrs[name].i) if self.has(name) else default

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns a float attribute."""
        return float(self.node.attrs[name].f) if self.has(name) else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a boolean attribute."""
        return bool(self.node.attrs[name].b) if self.has(name) else default

    def text(self, name: str, default: str = "") -> str:
        """Returns a string attribute."""
        return str(self.node.attrs[name].s, "utf-8", "replace") if self.has(name) else default

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns an attribute that is a list of strings."""
        encoded = self.node.attrs[name].list.s if self.has(name) else ()
        return tuple(str(text, "utf-8", "replace") for text in encoded)

    def integer_list(self, name: str) -> tuple[int, ...]:
        """Returns an attribute that is a list of integers; empty without it."""
        return tuple(self.node.attrs[name].list.i) if self.has(name) else ()

    def dtype(self, name: str) -> DType:
        """Returns a type attribute; raises KeepNode for a type that the language lacks."""
        number = self.attr(name).type
        element_type = dtype_of_number(number)
        if element_type is None:
            raise KeepNode(f"its {name} is {type_name(number)}")
        return element_type

    def shape_attribute(self, name: str) -> tuple[int, ...] | None:
        """Returns a shape attribute; None if it is missing or of unknown rank."""
        return shape_of(self.node.attrs[name].shape) if self.has(name) else None
