"""Ranges of TensorFlow's quantized values, and the types that declare them.

Values carry ranges in TensorFlow. Here a range that is constant becomes the scale of a quantized
type that declares the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, DeclaredBounds, Granularity, QuantType, TensorType

from .call import KeepNode, NodeCall
from .elements import CODES

F = np.float32
Reals = NDArray[np.float32]
PROFILE = "tf-2.21.onednn"
LEVELS = {"u8": 255.0, "i8": 127.0, "i32": 2.0**31}
"""What the greatest reach of a range is divided by, by storage."""


@dataclass(frozen=True)
class RangeEnds:
    """The ends of a range, one each or one a channel."""

    low: Reals
    high: Reals

    @property
    def reach(self) -> Reals:
        """The greater distance from zero."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def widened(self) -> RangeEnds:
        """The range as QuantizeV2 uses it: with zero in it, and not too narrow."""
        low = np.minimum(F(0), self.low)
        room = np.maximum(F(1), self.reach) * F(0.01)
        return RangeEnds(low, np.maximum(np.maximum(F(0), self.high), low + room))

    def type(self, storage: str, axis: int | None = None) -> QuantType:
        """Returns the type of quantized values that declares this range, zero in the middle."""
        return self._type(storage, (self.reach / F(LEVELS[storage])).astype(F), axis)

    def sided(self, storage: str, axis: int | None, *, narrow: bool) -> QuantType:
        """Returns the type of the mode SCALED of TensorFlow's own kernel: the side that needs it
        gives the scale."""
        least, most = dtype(storage).bounds
        scale = self.high / F(most)
        if least:
            scale = np.maximum(scale, np.abs(self.low) / F(-least))
        kind = self._type(storage, scale.astype(F), axis)
        return replace(kind, bounds=(least + 1, most)) if narrow else kind

    def from_low(self, storage: str, axis: int | None = None, *, first: bool) -> QuantType:
        """Returns the type of the modes MIN_FIRST and MIN_COMBINED: steps from the low end.

        The step of MIN_FIRST is shifted so that one of the values is zero.
        """
        step, begin = ((self.high - self.low) / F(255)).astype(F), dtype(storage).bounds[0]
        plus, zero = self.low, begin
        if first:
            ratio = self.low / step
            whole = np.copysign(np.floor(np.abs(ratio) + F(0.5)), ratio).astype(F)
            plus, zero = whole * step - F(begin) * step, 0
        kind = self._type(storage, step, axis, level=255.0)
        zeros: tuple[int, ...] | Array = (zero,) if zero else ()
        if zero and axis is not None and step.size > 1:
            held = np.full(step.shape, zero, kind.storage.carrier)
            zeros = Array(held, TensorType(held.shape, kind.storage))
        offset = tuple(float(v) for v in plus)
        return replace(kind, zero=zeros, plus=offset if plus.size <= 8 else _row(plus))

    def _type(
        self, storage: str, scales: Reals, axis: int | None, level: float | None = None
    ) -> QuantType:
        level = level or LEVELS[storage]
        ends = [tuple(float(v) for v in end) for end in (self.low, self.high)]
        declared = DeclaredBounds(ends[0], ends[1], level)
        if self.low.size > 8:
            declared = DeclaredBounds(_row(self.low), _row(self.high), level)
        if axis is None or scales.size == 1:
            return QuantType(dtype(storage), F32, (float(scales[0]),), declared=declared)
        grain = Granularity(((axis, 1),))
        return QuantType(dtype(storage), F32, _row(scales), (), grain, declared=declared)


def _row(numbers: Reals) -> Array:
    return Array(numbers, TensorType(numbers.shape, F32))


def range_of(call: NodeCall, at: int) -> RangeEnds:
    """Returns the constant range whose ends are two operands."""
    low, high = (np.atleast_1d(call.known(i)).astype(F).reshape(-1) for i in (at, at + 1))
    if not (np.isfinite(low) & np.isfinite(high)).all() or not np.maximum(-low, high).all():
        raise KeepNode("one of its ranges is empty")
    return RangeEnds(low, high)


def storage_of(call: NodeCall, name: str) -> str:
    """Returns the storage of a type attribute."""
    found = CODES.get(call.attr(name).type)
    if found not in LEVELS:
        raise KeepNode(f"its {name} is no type of quantized values that is read")
    return found


def ends_of(call: NodeCall, found: RangeEnds) -> list[Value]:
    """Returns the two results that state the range of the first one."""
    single = found.low.size == 1
    ends = [(end[0] if single else end) for end in (found.low, found.high)]
    return [call.constant(np.asarray(end, F), "range") for end in ends]


def read_as(x: Value, kind: QuantType, call: NodeCall) -> Value:
    """Returns a quantized value as its reader takes it."""
    held = x.type.quant
    if held is None or str(held.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    said = replace(kind, bounds=held.bounds)
    if held.has_same_mapping(said):
        return x
    return call.add_typed("recode", {"x": x}, {}, x.type.with_element(said))


def read_scaled(call: NodeCall, x: Value, stated: RangeEnds) -> Value:
    """Returns a quantized value by the range that its reader is given, zero in the middle."""
    held = x.type.quant
    if held is None or str(held.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    return read_as(x, stated.type(str(held.storage)), call)
