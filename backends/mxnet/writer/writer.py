"""The symbol under construction: the entry of each value, parameters, and helpers of op writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, F32, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger

from .files import FLAGS
from .symbol import Entry, SymbolBuilder

STEP = "write mxnet"
TYPE_NAMES: Mapping[str, str] = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "u8": "uint8",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "bool": "float32",
}
"""MXNet's name of each element type; its comparison operators return floats for bool."""
OpWriter: TypeAlias = Callable[["SymbolWriter", Node], Entry | Sequence[Entry]]
"""Writes a node and returns its results."""
REMEDY = "write it as ops that MXNet has, or cut the model before it"


class SymbolWriter:
    """A symbol under construction, with the entry (node and result index) of each value."""

    def __init__(self, graph: Graph, ledger: Ledger) -> None:
        self.graph, self.ledger = graph, ledger
        self.symbol = SymbolBuilder()
        self.parameters: dict[str, NDArray[np.generic]] = {}
        """Parameters by their names in the file, with `arg:` or `aux:`."""
        self.entries: dict[Value, Entry] = {}
        self._names: set[str] = {v.name for v in graph.values.values()}
        self._states: dict[Value, Entry] = {}

    # -- values ---------------------------------------------------------------------------------

    def entry(self, value: Value) -> Entry:
        """Returns the entry of a value; a constant becomes a parameter."""
        if value not in self.entries:
            assert value.constant is not None, value
            name = self.fresh(value.name) if value in self._states else value.name
            self.entries[value] = self.parameter(name, value.constant.data, value.node)
        return self.entries[value]

    def input(self, value: Value) -> None:
        """Adds an input, with shape and element type as far as they are known."""
        shape = value.type.shape
        attrs: dict[str, object] = {}
        if shape:
            # MXNet reads 0 as an unknown size.
            attrs["__shape__"] = tuple(size if isinstance(size, int) else 0 for size in shape)
        kind = self.carrier(value.type.dtype, value.node)
        if kind != np.float32:
            attrs["__dtype__"] = FLAGS[kind]
        self.entries[value] = self.symbol.variable(value.name, attrs)

    def state(self, value: Value) -> Entry:
        """Returns a constant as an auxiliary state, as batch norms need it."""
        if value not in self._states:
            assert value.constant is not None, value
            name = value.name if value not in self.entries else self.fresh(value.name)
            data = value.constant.data
            self._states[value] = self.parameter(name, data, value.node, group="aux")
        return self._states[value]

    def parameter(
        self, name: str, data: NDArray[np.generic], node: Node, *, group: str = "arg"
    ) -> Entry:
        """Adds a variable with its array; a scalar becomes an array of one element."""
        kind = np.dtype(np.float32) if data.dtype == np.bool_ else data.dtype
        if kind not in FLAGS:
            raise self.refuse(node, f"MXNet has no operators on {kind}")
        self.parameters[f"{group}:{name}"] = data.astype(kind, copy=False).reshape(
            data.shape or (1,)
        )
        attrs = {} if kind == np.float32 else {"__dtype__": FLAGS[kind]}
        return self.symbol.variable(name, attrs)

    def constant(self, name: str, data: NDArray[np.generic], node: Node) -> Entry:
        """Adds a parameter that is no constant of the graph."""
        return self.parameter(self.fresh(name), data, node)

    def carrier(self, kind: DType, node: Node) -> np.dtype[np.generic]:
        """Returns the NumPy type of elements in the file; raises Refused for one that MXNet
        lacks."""
        if str(kind) not in TYPE_NAMES:
            raise self.refuse(node, f"MXNet has no operators on {kind}")
        return np.dtype(np.float32) if kind == BOOL else np.dtype(kind.carrier)

    # -- nodes ----------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        inputs: Sequence[Entry],
        attrs: Mapping[str, object] | None = None,
        *,
        name: str,
        results: int = 1,
        subgraph: SymbolBuilder | None = None,
    ) -> Entry:
        """Adds an operator, and returns its first result."""
        return self.symbol.add(op, name, inputs, attrs, results=results, subgraph=subgraph)

    def add_result(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Entry],
        attrs: Mapping[str, object] | None = None,
        *,
        results: int = 1,
    ) -> Entry:
        """Adds the operator that computes a node's result, under the result's name."""
        return self.emit(op, inputs, attrs, name=node.results[0].name, results=results)

    def add_intermediate(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Entry],
        attrs: Mapping[str, object] | None = None,
        *,
        results: int = 1,
    ) -> Entry:
        """Adds an operator for an intermediate result of a node."""
        name = self.fresh(f"{node.results[0].name}_{op.strip('_').lower()}")
        return self.emit(op, inputs, attrs, name=name, results=results)

    def fresh(self, name: str) -> str:
        """Returns an unused name."""
        unique, suffix = name, 0
        while unique in self._names:
            suffix += 1
            unique = f"{name}{suffix}"
        self._names.add(unique)
        return unique

    # -- operands and sizes ----------------------------------------------------------------------

    def operand(self, node: Node, slot: str = "x") -> Entry:
        """Returns the entry of an operand."""
        return self.entry(node.operands[slot])

    def size(self, node: Node, value: Value, axis: int) -> int:
        """Returns a size; raises Refused where it is unknown."""
        size = value.type.shape[axis]
        if not isinstance(size, int):
            raise self.refuse(
                node, f"it needs the size of axis {axis} of {value.name}; {FIXED_SIZES}"
            )
        return size

    def sizes(self, node: Node, value: Value) -> tuple[int, ...]:
        """Returns a shape; raises Refused where a size is unknown."""
        return tuple(self.size(node, value, axis) for axis in range(value.type.rank))

    def constant_operand(self, node: Node, slot: str) -> NDArray[np.generic]:
        """Returns the array of a constant operand; raises Refused for a computed one."""
        data = node.operands[slot].constant
        if data is None:
            raise self.refuse(node, f"its {slot} is computed; MXNet takes a constant there")
        return data.data

    def refuse(self, node: Node, why: str) -> Refused:
        """Returns the error for a node that MXNet has no operator for, and records it."""
        name = node.results[0].name if node.results else node.op
        self.ledger.add(Change.REFUSED, STEP, name, f"{node.op}: {why}")
        where = f" ({node.origins[0]})" if node.origins else ""
        return Refused(f"{name}{where}: {node.op} cannot be written for MXNet: {why}"[:239])


FIXED_SIZES = "give inputs of fixed sizes"


def int_attr(attrs: Mapping[str, Attr], name: str) -> int:
    """Returns an attribute that is an integer."""
    value = attrs[name]
    assert isinstance(value, int)
    return value


def float_attr(attrs: Mapping[str, Attr], name: str) -> float:
    """Returns an attribute that is a number."""
    value = attrs[name]
    assert isinstance(value, (int, float))
    return float(value)


def int_tuple(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    """Returns an attribute that is a list of integers."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


def scalar_constant(value: Value) -> float | None:
    """Returns the value of a constant of one element, if a float holds it exactly."""
    data = value.constant
    if data is None or data.type.quant is not None or data.data.size != 1:
        return None
    if value.type.dtype not in (F32,) and not value.type.dtype.is_integer:
        return None
    # Integers up to 2^53 are exact in a double, which is how attributes are stored as text.
    element = data.data.reshape(-1)[0]
    return float(element) if abs(float(element)) < 2**53 else None
