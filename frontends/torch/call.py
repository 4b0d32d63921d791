"""One call of an operator, its arguments read by the names that its schema has for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import fx

from qir.errors import InputError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import Stage, Value
from qir.ir.types import TensorType

from .elements import element
from .symbols import shape_of

if TYPE_CHECKING:
    from .reader import ProgramReader

Size: TypeAlias = "int | fx.Node"


class KeepCall(Exception):
    """The call has no exact form in the language, and is kept as a foreign op."""


class OverloadCall:
    """A call of an overload such as `aten.conv2d.default`."""

    def __init__(self, reader: ProgramReader, node: fx.Node, *, moves: bool = False) -> None:
        self.reader = reader
        self.node = node
        self.moves = moves
        """Whether the op only moves elements, and so keeps a quantized type."""
        target = node.target
        schema = target._schema  # type: ignore[union-attr]
        self.given: dict[str, Any] = {}
        for index, formal in enumerate(schema.arguments):
            if index < len(node.args) and not formal.kwarg_only:
                self.given[formal.name] = node.args[index]
            elif formal.name in node.kwargs:
                self.given[formal.name] = node.kwargs[formal.name]
            else:
                self.given[formal.name] = formal.default_value

    def __getitem__(self, name: str) -> Any:
        """Returns an argument as the graph has it."""
        return self.given[name]

    # -- results --------------------------------------------------------------------------------

    @property
    def result(self) -> torch.Tensor:
        """The fake tensor of the only result: its shape and element type."""
        found: torch.Tensor = self.node.meta["val"]
        return found

    def reads(self, place: int) -> bool:
        """Returns whether somebody reads the result at a place of several."""
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
        held = {slot: value for slot, value in operands.items() if value is not None}
        return self.reader.add(self.node, op, held, attrs or {}).results

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
        """Adds ops that one kernel computes; one alone is no group."""
        if len(stages) == 1:
            return self.add_typed(stages[0].op, operands, kind, stages[0].attrs)
        return self.reader.add_group(self.node, stages, operands, kind)

    def expanded(self, x: Value, like: Value) -> Value:
        """Returns a tensor repeated to the shape of another one."""
        shape = like.type.shape
        if x.type.shape == shape:
            return x
        known = [size for size in shape if isinstance(size, int)]
        if len(known) == len(shape):
            return self.add("expand", {"x": x, "shape": self.reader.graph.constant(row(known))})
        made = self.add("expand", {"x": x, "shape": self.add("shape", {"x": like})})
        if None not in shape:
            self.reader.graph.set_type(made, made.type.with_shape(shape))
        return made

    # -- operands -------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """Returns a tensor argument."""
        found = self.optional(name)
        if found is None:
            raise KeepCall
        return found

    def optional(self, name: str) -> Value | None:
        """Returns a tensor argument, or None where it is left out."""
        held = self.given[name]
        return None if held is None else self._tensor(held)

    def integers(self, name: str) -> Value:
        """Returns a tensor argument with the quantized type that it may have."""
        return self.reader.tensor(self.given[name])

    def _tensor(self, held: Any) -> Value:
        """Returns a tensor; quantized ones as plain integers, except for ops that move them."""
        found = self.reader.tensor(held)
        if found.type.quant is None or self.moves:
            return found
        return self.add("recode", {"x": found})

    def values(self, name: str) -> list[Value]:
        """Returns the tensors of a list."""
        return [self._tensor(held) for held in self.given[name]]

    def scalar(self, value: Value) -> Value:
        """Returns the only element of a tensor without its axes."""
        shape = self.reader.graph.constant(np.zeros(0, np.int64))
        return self.add("reshape", {"x": value, "shape": shape})

    def fake(self, name: str) -> torch.Tensor:
        """Returns the fake tensor of an argument: its shape and element type."""
        found: torch.Tensor = self.given[name].meta["val"]
        return found

    def rank(self, name: str) -> int:
        """Returns how many axes a tensor argument has."""
        return self.fake(name).dim()

    def promoted(self, *names: str, kind: torch.dtype | None = None) -> list[Value]:
        """Returns operands in the element type that PyTorch computes in: tensors cast, numbers as
        constants."""
        kind = kind or self.common(*names)
        return [self.cast_to(self.given[name], kind) for name in names]

    def common(self, *names: str) -> torch.dtype:
        """Returns the element type that PyTorch promotes these arguments to."""
        held = [self.given[name] for name in names]
        kinds = [h.meta["val"] if isinstance(h, fx.Node) else h for h in held]
        kinds = [float(k) if isinstance(k, torch.SymFloat) else k for k in kinds]
        if any(isinstance(k, (torch.SymInt, torch.SymBool)) for k in kinds):
            raise KeepCall
        found: torch.dtype = torch.result_type(kinds[0], kinds[-1])
        return found

    def cast_to(self, held: Any, kind: torch.dtype) -> Value:
        """Returns an argument in an element type."""
        wanted = known(kind)
        if isinstance(held, fx.Node):
            found = self._tensor(held)
            if found.type.dtype == wanted:
                return found
            return self.add("cast", {"x": found}, {"to": wanted})
        return self.reader.number(self.node, held, wanted)

    # -- attributes -----------------------------------------------------------------------------

    def whole(self, name: str) -> int:
        """Returns an integer; Keep for one that is not known."""
        held = self.given[name]
        if not isinstance(held, int):
            raise KeepCall
        return int(held)

    def real(self, name: str) -> float:
        """Returns a number; Keep for one that is not known."""
        held = self.given[name]
        if not isinstance(held, (int, float)):
            raise KeepCall
        return float(held)

    def flag(self, name: str) -> bool:
        """Returns a truth value."""
        return bool(self.given[name])

    def wholes(self, name: str, count: int = 0) -> tuple[int, ...]:
        """Returns a list of integers; one alone is repeated `count` times."""
        held = self.given[name]
        if held is None:
            return ()
        items = [held] if isinstance(held, int) else list(held)
        if not all(isinstance(item, int) for item in items):
            raise KeepCall
        return tuple(items) * (count if len(items) == 1 and count else 1)

    def axis(self, name: str, rank: int) -> int:
        """Returns an axis, counted from the front."""
        found = self.whole(name)
        return found + rank if found < 0 else found

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns axes, counted from the front; all of them where none is named."""
        named = self.wholes(name) or tuple(range(rank))
        return tuple(a + rank if a < 0 else a for a in named)


def known(kind: torch.dtype) -> DType:
    """Returns the language's element type; Keep where it has none."""
    found = element(kind)
    if found is None:
        raise KeepCall
    return found


def type_of(fake: torch.Tensor, place: str) -> TensorType:
    """Returns the type of a tensor; raises InputError for an element type that the language
    lacks."""
    found = element(fake.dtype)
    if found is None:
        raise InputError(f"{place}: the language has no element type {fake.dtype}")
    return TensorType(shape_of(fake.shape), found)


def same_numbers(sizes: Sequence[Size]) -> bool:
    """Returns whether all sizes are known."""
    return all(isinstance(size, int) for size in sizes)


def row(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns integers as a one-dimensional array of i64."""
    return np.asarray(values, np.int64)
