"""A node of a symbol, as converters see it: operands, attributes, and adding nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType

from .attributes import Attributes
from .reader import SymbolReader
from .results import Result, ShapelessZeros, Unsupported
from .symbol import SymbolNode, shortened

_MAX_ELEMENTS = 1 << 24
"""Elements along an axis for which converters create constants or results, at most."""
DTYPE_NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint8": "u8",
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}
"""Element types by their name in attributes."""


class SymbolCall:
    """A node that is being converted."""

    def __init__(self, reader: SymbolReader, node: SymbolNode, inputs: Sequence[Result]) -> None:
        self.reader = reader
        self.node = node
        self.inputs = inputs
        self.attrs = Attributes(node.attrs)

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
        return self.add_node(op, present, attrs or {}).results

    def add_node(
        self,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType] | None = None,
    ) -> Node:
        """Adds a node with the origin of this one; types are inferred unless given."""
        graph = self.reader.graph
        name = self.fresh_name(op)
        node = graph.add(
            op, operands, attrs, types=types, name=name, origins=[self.reader.origin(self.node)]
        )
        self.reader.unnamed.update(node.results)
        return node

    def fresh_name(self, what: str) -> str:
        """Returns a new name, from the node's name and `what`."""
        return self.reader.graph.fresh(f"{self.node.name}.{what}")

    def constant(self, data: NDArray[np.generic], what: str) -> Value:
        """Adds a constant."""
        return self.reader.graph.constant(np.asarray(data), name=self.fresh_name(what))

    def number(self, number: float, dtype: DType) -> Value:
        """Adds a scalar constant of an element type."""
        if not dtype.is_float and number != int(number):
            raise Unsupported(f"it computes with {number} in {dtype}; cast its operand to float32")
        with np.errstate(all="ignore"):
            data = np.asarray(number).astype(dtype.carrier)
        return self.reader.graph.constant(
            Array(data, TensorType((), dtype)), name=self.fresh_name("number")
        )

    def cast(self, x: Value, dtype: DType) -> Value:
        """Returns a value cast to an element type."""
        return x if x.type.dtype == dtype else self.add("cast", {"x": x}, {"to": dtype})

    # -- operands -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.inputs)

    def value(self, index: int) -> Value:
        """Returns an operand; raises Unsupported if it is missing or not a tensor."""
        if index >= len(self.inputs):
            raise Unsupported(f"it has {len(self.inputs)} operands, one more is needed")
        operand = self.inputs[index]
        if isinstance(operand, ShapelessZeros):
            raise Unsupported(f"operand {index} is zeros of a shape that the file does not say")
        if not isinstance(operand, Value):
            raise Unsupported(f"operand {index} is a result that is not computed in inference")
        return operand

    def broadcast_operand(self, index: int) -> Value:
        """Returns an operand of a broadcasting op.

        Of zeros with an unknown batch size, it has one row.
        """
        operand = self.inputs[index] if index < len(self.inputs) else None
        if (
            not isinstance(operand, ShapelessZeros)
            or len(operand.shape) < 2
            or min(operand.shape[1:]) < 1
        ):
            return self.value(index)
        return self.constant(np.zeros((1, *operand.shape[1:]), np.float32), "zeros")

    def values(self) -> list[Value]:
        """Returns all operands."""
        return [self.value(index) for index in range(len(self.inputs))]

    def parameter_data(self, index: int, what: str) -> NDArray[np.generic]:
        """Returns the elements of a parameter; raises Unsupported for a computed operand."""
        node = self.value(index).node
        data = node.attrs.get("data") if node.op == "constant" else None
        if not isinstance(data, Array):
            raise Unsupported(f"its {what} is computed; only parameters are read there")
        return data.data

    def limited_size(self, x: Value, axis: int) -> int:
        """Returns a known size that is small enough to create something for each element."""
        size = self.size(x, axis)
        if size > _MAX_ELEMENTS:
            raise Unsupported(
                f"axis {axis} has {size} elements; up to {_MAX_ELEMENTS} are read here"
            )
        return size

    def size(self, x: Value, axis: int) -> int:
        """Returns a known size; raises Unsupported for an open one."""
        known_size = x.type.shape[axis]
        if not isinstance(known_size, int):
            raise Unsupported(
                f"it needs the size of axis {axis}; give inputs= with the shapes to qir.load"
            )
        return known_size

    def stored_state(self, index: int, name: str) -> Value:
        """Returns an operand that symbols before MXNet 0.9 leave out.

        It is the parameter of that name.
        """
        stored = f"{self.node.name}_{name}"
        if index >= len(self.inputs) and stored in self.reader.parameters:
            return self.reader.parameter(stored)
        return self.value(index)

    # -- attributes -----------------------------------------------------------------------------

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """Returns an axis attribute; negative ones count from the end."""
        index = self.attrs.integer(name, default)
        if not -rank <= index < rank:
            raise Unsupported(f"{name} is {index}, the operand has {rank} axes")
        return index + rank if index < 0 else index

    def dtype(self, name: str = "dtype", default: str = "float32") -> DType:
        """Returns an element type attribute."""
        type_name = self.attrs.text(name, default)
        if type_name not in DTYPE_NAMES:
            raise Unsupported(
                f"{name} is {shortened(type_name)!r}, which the language does not have"
            )
        return dtype(DTYPE_NAMES[type_name])

    def indices_as_i64(self, x: Value) -> Value:
        """Returns indices as i64; MXNet stores them as floats."""
        return self.cast(x, dtype("i64"))

    def ignore(self, *names: str) -> None:
        """Marks attributes that have no effect in inference as read."""
        self.attrs.read.update(names)

    def choice(self, name: str, default: str, *supported: str) -> str:
        """Returns a text attribute; raises Unsupported unless it is among the supported choices."""
        text = self.attrs.text(name, default)
        # Without choices, only the default is supported.
        if text not in (supported or (default,)):
            listed = ", ".join(supported or (default,))
            raise Unsupported(f"{name} is {shortened(text)!r}; read are {listed}")
        return text


def int64_array(values: Sequence[int]) -> NDArray[np.int64]:
    """Returns integers as a one-dimensional array of i64."""
    return np.asarray(values, np.int64)
