"""Ranges of TensorFlow's quantized tensors as quantized types.

In TensorFlow a quantized tensor has two more tensors, its minimum and maximum. A constant range
becomes the scale of a quantized type, which also declares the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, DeclaredBounds, Granularity, QuantType, TensorType

from .call import KeepNode, NodeCall
from .elements import QUANTIZED_STORAGE

F = np.float32
Floats = NDArray[np.float32]
PROFILE = "tf-2.21.onednn"
LEVELS = {"u8": 255.0, "i8": 127.0, "i32": 2.0**31}
"""The divisor L of scale = absmax / L, by storage."""


@dataclass(frozen=True)
class RangeEnds:
    """Minimum and maximum of a range, per tensor or per channel."""

    low: Floats
    high: Floats

    @property
    def absmax(self) -> Floats:
        """The larger magnitude of minimum and maximum."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def as_quantize_v2_widens(self) -> RangeEnds:
        """The range as QuantizeV2 widens it: to include zero, and to a minimum width of 1 %."""
        low = np.minimum(F(0), self.low)
        room = np.maximum(F(1), self.absmax) * F(0.01)
        return RangeEnds(low, np.maximum(np.maximum(F(0), self.high), low + room))

    def scaled_type(self, storage: str, axis: int | None = None) -> QuantType:
        """Returns the symmetric type of this range."""
        return self._declared_type(storage, (self.absmax / F(LEVELS[storage])).astype(F), axis)

    def sided_type(self, storage: str, axis: int | None, *, narrow: bool) -> QuantType:
        """Returns the type of mode SCALED in TensorFlow's own kernel: the side that needs the
        larger
        scale gives it."""
        least, most = dtype(storage).bounds
        scale = self.high / F(most)
        if least:
            scale = np.maximum(scale, np.abs(self.low) / F(-least))
        kind = self._declared_type(storage, scale.astype(F), axis)
        return replace(kind, bounds=(least + 1, most)) if narrow else kind

    def min_first_type(self, storage: str, axis: int | None = None, *, first: bool) -> QuantType:
        """Returns the type of modes MIN_FIRST and MIN_COMBINED: steps from the minimum.

        MIN_FIRST shifts the steps so that one of them is exactly zero.
        """
        step, begin = ((self.high - self.low) / F(255)).astype(F), dtype(storage).bounds[0]
        plus, zero = self.low, begin
        if first:
            ratio = self.low / step
            whole = np.copysign(np.floor(np.abs(ratio) + F(0.5)), ratio).astype(F)
            plus, zero = whole * step - F(begin) * step, 0
        kind = self._declared_type(storage, step, axis, level=255.0)
        zeros: tuple[int, ...] | Array = (zero,) if zero else ()
        if zero and axis is not None and step.size > 1:
            held = np.full(step.shape, zero, kind.storage.carrier)
            zeros = Array(held, TensorType(held.shape, kind.storage))
        offset = tuple(float(v) for v in plus)
        return replace(kind, zero=zeros, plus=offset if plus.size <= 8 else _float_array(plus))

    def _declared_type(
        self, storage: str, scales: Floats, axis: int | None, level: float | None = None
    ) -> QuantType:
        level = level or LEVELS[storage]
        ends = [tuple(float(v) for v in end) for end in (self.low, self.high)]
        declared = DeclaredBounds(ends[0], ends[1], level)
        if self.low.size > 8:
            declared = DeclaredBounds(_float_array(self.low), _float_array(self.high), level)
        if axis is None or scales.size == 1:
            return QuantType(dtype(storage), F32, (float(scales[0]),), declared=declared)
        granularity = Granularity(((axis, 1),))
        return QuantType(
            dtype(storage), F32, _float_array(scales), (), granularity, declared=declared
        )


def _float_array(numbers: Floats) -> Array:
    return Array(numbers, TensorType(numbers.shape, F32))


def range_of(call: NodeCall, at: int) -> RangeEnds:
    """Returns the constant range of two operands; raises KeepNode for an empty one."""
    low, high = (
        np.atleast_1d(call.constant_elements(i)).astype(F).reshape(-1) for i in (at, at + 1)
    )
    if not (np.isfinite(low) & np.isfinite(high)).all() or not np.maximum(-low, high).all():
        raise KeepNode("one of its ranges is empty")
    return RangeEnds(low, high)


def storage_of(call: NodeCall, name: str) -> str:
    """Returns the storage of a quantized type attribute."""
    found = QUANTIZED_STORAGE.get(call.attr(name).type)
    if found not in LEVELS:
        raise KeepNode(f"its {name} is no type of quantized values that is read")
    return found


def range_results(call: NodeCall, found: RangeEnds) -> list[Value]:
    """Returns the two further results of a quantized op: minimum and maximum."""
    single = found.low.size == 1
    ends = [(end[0] if single else end) for end in (found.low, found.high)]
    return [call.constant(np.asarray(end, F), "range") for end in ends]


def as_quantized(x: Value, kind: QuantType, call: NodeCall) -> Value:
    """Returns a quantized value as the type that its consumer assumes, recoded if it differs."""
    held = x.type.quant
    if held is None or str(held.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    said = replace(kind, bounds=held.bounds)
    if held.has_same_mapping(said):
        return x
    return call.add_typed("recode", {"x": x}, {}, x.type.with_element(said))


def as_scaled(call: NodeCall, x: Value, stated: RangeEnds) -> Value:
    """Returns a quantized value as the symmetric type of the range that its consumer is given."""
    held = x.type.quant
    if held is None or str(held.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    return as_quantized(x, stated.scaled_type(str(held.storage)), call)
