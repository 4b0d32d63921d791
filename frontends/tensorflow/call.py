"""One node of a TensorFlow graph: its operands and attributes, and what converters add for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.dtype import DType
from qir.ir.node import Stage, Value
from qir.ir.types import TensorType

from .elements import element, name_of, shape_of
from .graphdef import GraphDefNode

if TYPE_CHECKING:
    from .reader import GraphDefReader

Numbers = NDArray[np.generic]


class KeepNode(Exception):
    """The node has no exact form in the language; the text says why."""


class NodeCall:
    """A node that is read, with the operands that were read before it."""

    def __init__(
        self, reader: GraphDefReader, node: GraphDefNode, operands: Sequence[Value]
    ) -> None:
        self.reader = reader
        self.node = node
        self.operands = operands

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
        held = {slot: value for slot, value in operands.items() if value is not None}
        return self.reader.add(self.node, op, held, attrs or {}).results

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
        """Adds a constant that the file does not have as such."""
        name = self.reader.names(self.node, what)
        return self.reader.graph.constant(np.ascontiguousarray(data).reshape(data.shape), name=name)

    def row(self, sizes: Sequence[int], what: str = "sizes") -> Value:
        """Adds a row of integers."""
        return self.constant(np.asarray(sizes, np.int64), what)

    def number(self, value: float, like: Value) -> Value:
        """Adds one number in the element type of another value."""
        return self.constant(np.asarray(value, like.type.dtype.carrier), "number")

    # -- operands -------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Value:
        """Returns an operand."""
        if index >= len(self.operands):
            raise KeepNode(f"it has {len(self.operands)} inputs")
        return self.operands[index]

    def exactly(self, count: int) -> Sequence[Value]:
        """Returns all operands; Keep where there are more or fewer of them."""
        if len(self.operands) != count:
            raise KeepNode(f"it has {len(self.operands)} inputs, and takes {count}")
        return self.operands

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Returns the sizes of an operand."""
        return self[index].type.shape

    def rank(self, index: int) -> int:
        """Returns how many axes an operand has."""
        return self[index].type.rank

    def known(self, index: int) -> Numbers:
        """Returns the elements of an operand; Keep where they are computed from the inputs."""
        found = self.reader.known.elements(self[index])
        if found is None:
            raise KeepNode(f"its input {index} is computed while the network runs")
        return found

    def sizes(self, index: int) -> tuple[int, ...]:
        """Returns an operand of integers, one or a row."""
        return tuple(int(size) for size in self.known(index).reshape(-1))

    def axis(self, index: int, rank: int) -> int:
        """Returns an operand that is an axis, counted from the front."""
        (axis,) = self.sizes(index)
        return axis + rank if axis < 0 else axis

    def axes(self, index: int, rank: int) -> tuple[int, ...]:
        """Returns an operand that lists axes, counted from the front."""
        return tuple(axis + rank if axis < 0 else axis for axis in self.sizes(index))

    # -- attributes -----------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Returns whether the node states an attribute."""
        return name in self.node.attrs

    def attr(self, name: str) -> Any:
        """Returns an attribute's message; Keep where the node lacks it."""
        if name not in self.node.attrs:
            raise KeepNode(f"it has no attribute {name}")
        return self.node.attrs[name]

    def whole(self, name: str, default: int = 0) -> int:
        """Returns an integer attribute."""
        return int(self.node.attrs[name].i) if self.has(name) else default

    def real(self, name: str, default: float = 0.0) -> float:
        """Returns a number."""
        return float(self.node.attrs[name].f) if self.has(name) else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a truth value."""
        return bool(self.node.attrs[name].b) if self.has(name) else default

    def text(self, name: str, default: str = "") -> str:
        """Returns a text."""
        return str(self.node.attrs[name].s, "utf-8", "replace") if self.has(name) else default

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        held = self.node.attrs[name].list.s if self.has(name) else ()
        return tuple(str(text, "utf-8", "replace") for text in held)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Returns a list of integers; empty where there is none."""
        return tuple(self.node.attrs[name].list.i) if self.has(name) else ()

    def kind(self, name: str) -> DType:
        """Returns an element type; Keep for one that the language lacks."""
        number = self.attr(name).type
        found = element(number)
        if found is None:
            raise KeepNode(f"its {name} is {name_of(number)}")
        return found

    def stated_shape(self, name: str) -> tuple[int, ...] | None:
        """Returns an attribute that is a shape; None where it is not known."""
        return shape_of(self.node.attrs[name].shape) if self.has(name) else None
