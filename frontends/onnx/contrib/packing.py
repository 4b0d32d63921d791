"""How onnxruntime's own operators lay out integers of less than a byte, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import dtype
from qir.ir.lazy_arrays import ArrayData, read_all, reshape
from qir.numerics.packing import Order
from qir.profiles import lazy_unpack

from ..op import KeepOperator, OnnxOp

Tensor = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class BlockPacking:
    """Weights of [N, K] in blocks along K, each filling whole bytes."""

    bits: int
    size: int
    shape: tuple[int, int]

    @property
    def count(self) -> int:
        """Blocks in a row."""
        return -(-self.shape[1] // self.size)

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.size * self.bits // 8

    def check(self, op: OnnxOp) -> None:
        """Keep for bits or blocks that onnxruntime does not have, InputError for no weights."""
        if self.bits not in (2, 4, 8) or self.size < 16 or self.size & (self.size - 1):
            raise KeepOperator(f"blocks of {self.size} quantized values of {self.bits} bits")
        if min(self.shape) < 1:
            raise op.fail(f"has weights of {self.shape[0]} x {self.shape[1]}")

    def zeros(self, op: OnnxOp, held: Tensor) -> Tensor:
        """Zero points of [N, blocks]: packed ones row by row, or float values."""
        rows = self.shape[0]
        wanted = rows * self.count
        if held.dtype != np.uint8:
            if held.size != wanted:
                raise op.fail(f"has {held.size} zero points for {wanted} blocks")
            return np.ascontiguousarray(held.reshape(rows, self.count))
        wide = -(-self.count * self.bits // 8)
        if held.size != rows * wide:
            raise op.fail(f"has {held.size} bytes of zero points for {rows} rows of {wide}")
        flat = unpacked(held.reshape(rows, wide), self.bits)[:, : self.count]
        return np.ascontiguousarray(flat)


def codes_in(held: ArrayData, bits: int, shape: Sequence[int], order: Order = "low") -> ArrayData:
    """Returns the numbers that bytes hold, in that shape; of many each part when it is asked
    for."""
    if held.dtype != np.uint8:
        held = read_all(held).astype(np.uint8)
    if bits == 8:
        return reshape(held, shape)
    return lazy_unpack(held, dtype(f"u{bits}"), shape, order)


def unpacked(held: Tensor, bits: int) -> Tensor:
    """Returns the numbers in rows of bytes, low bits first."""
    if bits == 8:
        return held
    each = 8 // bits
    places = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    parts = (held.astype(np.uint8)[..., None] >> places) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*held.shape[:-1], -1))


_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
TABLES = (
    np.array([*_FP4, *(-v for v in _FP4)], np.float32),
    np.array(_NF4, np.float32),
)
"""What the quantized values of MatMulBnb4 mean: its types fp4 and nf4."""
