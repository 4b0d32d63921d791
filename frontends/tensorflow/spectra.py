"""Fourier transforms of real signals, as products with constant matrices, and complex numbers.

The language has no complex type: a complex tensor is a pair of float tensors while a graph is read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir.node import Value

from .call import NodeCall
from .reader import KeepNode
from .results import ComplexPair

_LARGEST = 1 << 13
"""Samples of a transform, at most: a matrix has half of their square."""


def _rfft(call: NodeCall) -> ComplexPair:
    x, length = call[0], _length(call)
    size = x.type.shape[-1]
    if not isinstance(size, int) or size < length:
        raise KeepNode(f"it transforms {length} samples, and has {size}")
    if size > length:
        cut = {"starts": (0,), "ends": (length,), "axes": (x.type.rank - 1,), "steps": (1,)}
        x = call.add("slice", {"x": x}, cut)
    angles = _angles(length)
    return ComplexPair(_product(call, x, np.cos(angles)), _product(call, x, -np.sin(angles)))


def _irfft(call: NodeCall) -> Value:
    """Reads the inverse: the bins between the first and the middle one stand for two each."""
    x, length = _pair(call), _length(call)
    count, (real, imag) = length // 2 + 1, (x.real, x.imag)
    size = real.type.shape[-1]
    if size != count:
        raise KeepNode(f"it makes {length} samples of {size} bins")
    angles = _angles(length).T
    # Of a real signal the other bins are conjugates, so each counts twice; the first, and the
    # middle one of an even length, have no partner.
    twice = np.where((np.arange(count) * 2) % length == 0, 1.0, 2.0)[:, None] / length
    parts = [
        _product(call, real, np.cos(angles) * twice),
        _product(call, imag, -np.sin(angles) * twice),
    ]
    return call.add("add", {"a": parts[0], "b": parts[1]})


def _length(call: NodeCall) -> int:
    """Returns the number of samples of a transform."""
    (length,) = call.integers(1)
    if not 0 < length <= _LARGEST:
        raise KeepNode(f"it transforms {length} samples; up to {_LARGEST} are read")
    return length


def _angles(length: int) -> np.ndarray:
    """Returns the angle of each sample in each bin, [samples, bins]."""
    # The remainder in integers keeps the angles below a full turn, where cos and sin are most
    # exact.
    turns = np.outer(np.arange(length), np.arange(length // 2 + 1)) % length
    return np.asarray(turns * (2 * np.pi / length))


def _product(call: NodeCall, x: Value, matrix: np.ndarray) -> Value:
    held = call.constant(matrix.astype(x.type.dtype.carrier), "transform")
    return call.add("matmul", {"a": x, "b": held})


def _pair(call: NodeCall) -> ComplexPair:
    held: object = call[0]
    if not isinstance(held, ComplexPair):
        raise KeepNode("its input is not complex")
    return held


def _absolute(call: NodeCall) -> Value:
    x = _pair(call)
    squares = [call.add("mul", {"a": part, "b": part}) for part in (x.real, x.imag)]
    return call.add("sqrt", {"x": call.add("add", {"a": squares[0], "b": squares[1]})})


def _angle(call: NodeCall) -> Value:
    x = _pair(call)
    return call.add("atan2", {"a": x.imag, "b": x.real})


def _conjugate(call: NodeCall) -> ComplexPair:
    x = _pair(call)
    return ComplexPair(x.real, call.add("neg", {"x": x.imag}))


def _complex(call: NodeCall) -> ComplexPair:
    return ComplexPair(call[0], call[1])


READS_PAIRS: dict[str, Callable[[NodeCall], Value | ComplexPair]] = {
    "Real": lambda call: _pair(call).real,
    "Imag": lambda call: _pair(call).imag,
    "ComplexAbs": _absolute,
    "Angle": _angle,
    "Conj": _conjugate,
    "IRFFT": _irfft,
}
"""Ops on complex tensors."""
OPS: dict[str, Callable[[NodeCall], Value | ComplexPair]] = {
    **READS_PAIRS,
    "RFFT": _rfft,
    "Complex": _complex,
}
