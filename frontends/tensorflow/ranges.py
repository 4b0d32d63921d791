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

from .call import NodeCall
from .elements import QUANTIZED_STORAGE
from .reader import KeepNode

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
        min_width = np.maximum(F(1), self.absmax) * F(0.01)
        return RangeEnds(low, np.maximum(np.maximum(F(0), self.high), low + min_width))

    def scaled_type(self, storage: str, axis: int | None = None) -> QuantType:
        """Returns the symmetric type of this range."""
        return self._declared_type(storage, (self.absmax / F(LEVELS[storage])).astype(F), axis)

    def sided_type(self, storage: str, axis: int | None, *, narrow: bool) -> QuantType:
        """Returns the type of mode SCALED in TensorFlow's own kernel.

        The side of the range that needs the larger scale gives it.
        """
        lowest, highest = dtype(storage).bounds
        scale = self.high / F(highest)
        if lowest:
            scale = np.maximum(scale, np.abs(self.low) / F(-lowest))
        quant = self._declared_type(storage, scale.astype(F), axis)
        return replace(quant, bounds=(lowest + 1, highest)) if narrow else quant

    def min_first_type(self, storage: str, axis: int | None = None, *, first: bool) -> QuantType:
        """Returns the type of modes MIN_FIRST and MIN_COMBINED: steps from the minimum.

        MIN_FIRST shifts the steps so that one of them is exactly zero.
        """
        step, lowest = ((self.high - self.low) / F(255)).astype(F), dtype(storage).bounds[0]
        offset_values, zero = self.low, lowest
        if first:
            # The minimum is moved to the next multiple of the step.
            ratio = self.low / step
            steps_to_zero = np.copysign(np.floor(np.abs(ratio) + F(0.5)), ratio).astype(F)
            offset_values, zero = steps_to_zero * step - F(lowest) * step, 0
        quant = self._declared_type(storage, step, axis, level=255.0)
        zeros: tuple[int, ...] | Array = (zero,) if zero else ()
        if zero and axis is not None and step.size > 1:
            zero_array = np.full(step.shape, zero, quant.storage.carrier)
            zeros = Array(zero_array, TensorType(zero_array.shape, quant.storage))
        offsets = tuple(float(v) for v in offset_values)
        return replace(
            quant,
            zero=zeros,
            plus=offsets if offset_values.size <= 8 else _float_array(offset_values),
        )

    def _declared_type(
        self, storage: str, scales: Floats, axis: int | None, level: float | None = None
    ) -> QuantType:
        level = level or LEVELS[storage]
        limits = [tuple(float(v) for v in limit) for limit in (self.low, self.high)]
        declared = DeclaredBounds(limits[0], limits[1], level)
        # Long lists are arrays, which a file stores apart from the text.
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


def range_of(call: NodeCall, index: int) -> RangeEnds:
    """Returns the constant range of two operands; raises KeepNode for an empty one."""
    low, high = (
        np.atleast_1d(call.constant_elements(i)).astype(F).reshape(-1) for i in (index, index + 1)
    )
    if not (np.isfinite(low) & np.isfinite(high)).all() or not np.maximum(-low, high).all():
        raise KeepNode("one of its ranges is empty")
    return RangeEnds(low, high)


def storage_of(call: NodeCall, name: str) -> str:
    """Returns the storage of a quantized type attribute."""
    storage = QUANTIZED_STORAGE.get(call.attr(name).type)
    if storage not in LEVELS:
        raise KeepNode(f"its {name} is no type of quantized values that is read")
    return storage


def range_results(call: NodeCall, range_ends: RangeEnds) -> list[Value]:
    """Returns the two further results of a quantized op: minimum and maximum."""
    # TensorFlow has scalars for one range, vectors for one a channel.
    is_single = range_ends.low.size == 1
    limits = [(limit[0] if is_single else limit) for limit in (range_ends.low, range_ends.high)]
    return [call.constant(np.asarray(limit, F), "range") for limit in limits]


def as_quantized(x: Value, quant: QuantType, call: NodeCall) -> Value:
    """Returns a quantized value as the type that its consumer assumes, recoded if it differs."""
    current = x.type.quant
    if current is None or str(current.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    wanted = replace(quant, bounds=current.bounds)
    if current.has_same_mapping(wanted):
        return x
    return call.add_typed("recode", {"x": x}, {}, x.type.with_element(wanted))


def as_scaled(call: NodeCall, x: Value, stated: RangeEnds) -> Value:
    """Returns a quantized value as the symmetric type of the range that its consumer is given."""
    current = x.type.quant
    if current is None or str(current.storage) not in LEVELS:
        raise KeepNode("its data are not quantized by constant ranges")
    return as_quantized(x, stated.scaled_type(str(current.storage)), call)
