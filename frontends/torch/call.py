"""A call of an aten operator, with its arguments by the names of its schema.

Converters (`elementwise`, `movement`, ...) get an `OverloadCall`, and add nodes by it. They raise
`KeepCall` where the language cannot express the call exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qir.errors import InputError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import Stage, Value
from qir.ir.types import TensorType

from .elements import dtype_of
from .reader import KeepCall, ProgramReader
from .sizes import int64_array
from .symbols import shape_of


class OverloadCall:
    """A call of an overload such as `aten.conv2d.default`."""

    def __init__(self, reader: ProgramReader, node: fx.Node, *, moves: bool = False) -> None:
        self.reader = reader
        self.node = node
        self.keeps_quantized_type = moves
        """Whether the op only moves elements, so that quantized operands stay quantized."""
        target = node.target
        schema = target._schema  # type: ignore[union-attr]
        self.arguments: dict[str, Any] = {}
        for index, formal in enumerate(schema.arguments):
            if index < len(node.args) and not formal.kwarg_only:
                self.arguments[formal.name] = node.args[index]
            elif formal.name in node.kwargs:
                self.arguments[formal.name] = node.kwargs[formal.name]
            else:
                self.arguments[formal.name] = formal.default_value

    def __getitem__(self, name: str) -> Any:
        """Returns an argument as the fx graph has it."""
        return self.arguments[name]

    # -- results --------------------------------------------------------------------------------

    @property
    def result(self) -> torch.Tensor:
        """The fake tensor of the single result: its shape and element type."""
        fake: torch.Tensor = self.node.meta["val"]
        return fake

    def is_result_used(self, place: int) -> bool:
        """Returns whether the result at that index is used."""
        return any(
            user.target is operator.getitem and user.args[1] == place and user.users
            for user in self.node.users
        )

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
        kind: TensorType,
        attrs: Mapping[str, Attr] | None = None,
    ) -> Value:
        """Adds an op whose result type does not follow from its operands."""
        return self.reader.add(self.node, op, operands, attrs or {}, kind).result

    def add_group(
        self, stages: Sequence[Stage], operands: Mapping[str, Value], kind: TensorType
    ) -> Value:
        """Adds a group of ops that one kernel computes; a single op is added as it is."""
        if len(stages) == 1:
            return self.add_typed(stages[0].op, operands, kind, stages[0].attrs)
        return self.reader.add_group(self.node, stages, operands, kind)

    def expand_like(self, x: Value, like: Value) -> Value:
        """Returns a tensor expanded to the shape of another one."""
        shape = like.type.shape
        if x.type.shape == shape:
            return x
        known = [size for size in shape if isinstance(size, int)]
        if len(known) == len(shape):
            return self.add(
                "expand", {"x": x, "shape": self.reader.graph.constant(int64_array(known))}
            )
        expanded = self.add("expand", {"x": x, "shape": self.add("shape", {"x": like})})
        # The type rule of `expand` knows no sizes from a computed shape; PyTorch states them.
        if None not in shape:
            self.reader.graph.set_type(expanded, expanded.type.with_shape(shape))
        return expanded

    # -- operands -------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """Returns a tensor argument."""
        operand = self.optional(name)
        if operand is None:
            raise KeepCall
        return operand

    def optional(self, name: str) -> Value | None:
        """Returns a tensor argument, or None where it is left out."""
        argument = self.arguments[name]
        return None if argument is None else self._operand(argument)

    def quantized_value(self, name: str) -> Value:
        """Returns a tensor argument, of a quantized type if it has one."""
        return self.reader.tensor(self.arguments[name])

    def _operand(self, argument: Any) -> Value:
        """Returns a tensor; quantized values as plain integers, unless the op only moves elements.

        aten operators compute on the integers of PT2E programs, not on the floats they represent.
        """
        value = self.reader.tensor(argument)
        if value.type.quant is None or self.keeps_quantized_type:
            return value
        return self.add("recode", {"x": value})

    def values(self, name: str) -> list[Value]:
        """Returns the tensors of a list argument."""
        return [self._operand(argument) for argument in self.arguments[name]]

    def scalar(self, value: Value) -> Value:
        """Returns a tensor of one element reshaped to rank 0."""
        shape = self.reader.graph.constant(np.zeros(0, np.int64))
        return self.add("reshape", {"x": value, "shape": shape})

    def fake_tensor(self, name: str) -> torch.Tensor:
        """Returns the fake tensor of an argument: its shape and element type."""
        fake: torch.Tensor = self.arguments[name].meta["val"]
        return fake

    def rank(self, name: str) -> int:
        """Returns the rank of a tensor argument."""
        return self.fake_tensor(name).dim()

    def promote(self, *names: str, kind: torch.dtype | None = None) -> list[Value]:
        """Returns arguments in the type that PyTorch promotes them to.

        Tensors are cast, and numbers become constants.
        """
        kind = kind or self.promoted_dtype(*names)
        return [self.cast_to(self.arguments[name], kind) for name in names]

    def promoted_dtype(self, *names: str) -> torch.dtype:
        """Returns the element type that PyTorch promotes these arguments to."""
        arguments = [self.arguments[name] for name in names]
        types = [
            argument.meta["val"] if isinstance(argument, fx.Node) else argument
            for argument in arguments
        ]
        # `result_type` counts a tensor's rank and a Python number's class, so a symbolic float is
        # replaced by a plain one of the same class.
        types = [
            float(operand) if isinstance(operand, torch.SymFloat) else operand for operand in types
        ]
        if any(isinstance(operand, (torch.SymInt, torch.SymBool)) for operand in types):
            raise KeepCall
        dtype: torch.dtype = torch.result_type(types[0], types[-1])
        return dtype

    def cast_to(self, argument: Any, kind: torch.dtype) -> Value:
        """Returns an argument in an element type."""
        dtype = known_dtype(kind)
        if isinstance(argument, fx.Node):
            value = self._operand(argument)
            if value.type.dtype == dtype:
                return value
            return self.add("cast", {"x": value}, {"to": dtype})
        return self.reader.number(self.node, argument, dtype)

    # -- attributes -----------------------------------------------------------------------------

    def integer(self, name: str) -> int:
        """Returns an integer argument; raises KeepCall for a symbolic one."""
        argument = self.arguments[name]
        if not isinstance(argument, int):
            raise KeepCall
        return int(argument)

    def number(self, name: str) -> float:
        """Returns a number as a float; raises KeepCall for a symbolic one."""
        argument = self.arguments[name]
        if not isinstance(argument, (int, float)):
            raise KeepCall
        return float(argument)

    def flag(self, name: str) -> bool:
        """Returns a boolean argument."""
        return bool(self.arguments[name])

    def integers(self, name: str, count: int = 0) -> tuple[int, ...]:
        """Returns a list of integers; a single one is repeated `count` times, as PyTorch does."""
        argument = self.arguments[name]
        if argument is None:
            return ()
        items = [argument] if isinstance(argument, int) else list(argument)
        if not all(isinstance(item, int) for item in items):
            raise KeepCall
        return tuple(items) * (count if len(items) == 1 and count else 1)

    def axis(self, name: str, rank: int) -> int:
        """Returns an axis, negative ones counted from the end."""
        index = self.integer(name)
        return index + rank if index < 0 else index

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns axes, negative ones counted from the end; all axes where none is named."""
        listed = self.integers(name) or tuple(range(rank))
        return tuple(axis + rank if axis < 0 else axis for axis in listed)


def known_dtype(kind: torch.dtype) -> DType:
    """Returns the language's element type; raises KeepCall if it has none."""
    dtype = dtype_of(kind)
    if dtype is None:
        raise KeepCall
    return dtype


def type_of(fake: torch.Tensor, place: str) -> TensorType:
    """Returns the type of a tensor.

    Raises InputError for an element type that the language lacks.
    """
    dtype = dtype_of(fake.dtype)
    if dtype is None:
        raise InputError(f"{place}: the language has no element type {fake.dtype}")
    return TensorType(shape_of(fake.shape), dtype)
