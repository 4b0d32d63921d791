"""Steps of a plan that are Python functions."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir._kernels._checks import integer, shown, whole


@dataclass(frozen=True, slots=True)
class BufferOperand:
    """An array over a buffer."""

    buffer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    written: bool

    @property
    def size(self) -> int:
        """Returns the size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A function and the arrays that it is called with."""

    function: Callable[..., None]
    operands: tuple[BufferOperand, ...]

    def run(self, memories: Sequence[NDArray[np.uint8]]) -> None:
        """Calls the function; the memory of each operand begins with its bytes."""
        views = []
        for operand, memory in zip(self.operands, memories, strict=True):
            view = memory[: operand.size].view(operand.dtype).reshape(operand.shape)
            view.flags.writeable = operand.written
            views.append(view)
        self.function(*views)


def call_of(step: str, function: object, inputs: object, outputs: object) -> KernelCall:
    """Returns a call; each operand is given as (buffer, dtype, shape)."""
    if not callable(function):
        raise ValueError(f"{step}: {shown(function)} cannot be called")
    operands: list[BufferOperand] = []
    for given, written in ((inputs, False), (outputs, True)):
        if not isinstance(given, Iterable):
            raise ValueError(f"{step}: operands are {shown(given)}, not a list")
        for operand in given:
            operands.append(_operand(step, f"operand {len(operands)}", operand, written))
    return KernelCall(function, tuple(operands))


def _operand(step: str, what: str, given: Any, written: bool) -> BufferOperand:
    try:
        buffer, kind, shape = given
        dtype: np.dtype[Any] = np.dtype(kind)
    except (TypeError, ValueError, DeprecationWarning):
        raise ValueError(f"{step}: {what} is {shown(given)}, not (buffer, dtype, shape)") from None
    if dtype.hasobject or dtype.itemsize < 1 or dtype.subdtype is not None:
        raise ValueError(f"{step}: {what} is {dtype}, whose elements are no plain bytes")
    number = integer(step, f"buffer of {what}", buffer, 0)
    return BufferOperand(number, dtype, whole(step, f"shape of {what}", shape, 0), written)
