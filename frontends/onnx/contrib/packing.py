"""Layouts of packed integers in onnxruntime's operators, and their lookup tables."""

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
    """Weights [N, K] in blocks along K; a block fills whole bytes (MatMulNBits, QMoE)."""

    bits: int
    block_size: int
    shape: tuple[int, int]

    @property
    def blocks_per_row(self) -> int:
        """Blocks in a row, the last perhaps partly filled."""
        return -(-self.shape[1] // self.block_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.block_size * self.bits // 8

    def check(self, op: OnnxOp) -> None:
        """Raises KeepOperator for sizes that onnxruntime lacks, InputError for no weights."""
        if (
            self.bits not in (2, 4, 8)
            or self.block_size < 16
            # Blocks are powers of two, from 16 on.
            or self.block_size & (self.block_size - 1)
        ):
            raise KeepOperator(f"blocks of {self.block_size} quantized values of {self.bits} bits")
        if min(self.shape) < 1:
            raise op.error(f"has weights of {self.shape[0]} x {self.shape[1]}")

    def zero_points(self, op: OnnxOp, stored: Tensor) -> Tensor:
        """Returns zero points [N, blocks]: packed row by row, or floats."""
        rows = self.shape[0]
        block_count = rows * self.blocks_per_row
        if stored.dtype != np.uint8:
            if stored.size != block_count:
                raise op.error(f"has {stored.size} zero points for {block_count} blocks")
            return np.ascontiguousarray(stored.reshape(rows, self.blocks_per_row))
        row_bytes = -(-self.blocks_per_row * self.bits // 8)
        if stored.size != rows * row_bytes:
            raise op.error(f"has {stored.size} bytes of zero points for {rows} rows of {row_bytes}")
        unpacked = unpack_rows(stored.reshape(rows, row_bytes), self.bits)[:, : self.blocks_per_row]
        return np.ascontiguousarray(unpacked)


def unpack_integers(
    packed: ArrayData, bits: int, shape: Sequence[int], order: Order = "low"
) -> ArrayData:
    """Returns the integers packed in bytes, in that shape; large ones are unpacked lazily."""
    if packed.dtype != np.uint8:
        packed = read_all(packed).astype(np.uint8)
    if bits == 8:
        return reshape(packed, shape)
    return lazy_unpack(packed, dtype(f"u{bits}"), shape, order)


def unpack_rows(packed: Tensor, bits: int) -> Tensor:
    """Returns the integers packed in rows of bytes, low bits first."""
    if bits == 8:
        return packed
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    # [..., bytes, 1] >> [values of a byte] gives [..., bytes, values], joined by the reshape.
    values = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(values.reshape(*packed.shape[:-1], -1))


_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
BNB4_TABLES = (
    np.array([*_FP4, *(-v for v in _FP4)], np.float32),
    np.array(_NF4, np.float32),
)
"""Floats by quantized value of MatMulBnb4's types fp4 and nf4, as bitsandbytes has them."""
