"""Constants on integers, with every kind of map: axes, blocks, tables, quantized floats, nested
scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F16, F32, I8, U8, DType, dtype
from qir.ir.types import Array, DeclaredBounds, Granularity, Param, QuantType, TensorType, uniform
from qir.testing.random_source import Pick

Shape = tuple[int, ...]
_F8, _F4 = dtype("f8e4m3fn"), dtype("f4e2m1fn")


def coded_constant(pick: Pick) -> Array:
    """Well-formed quantized values: positive scales, zeros and elements inside the bounds."""
    makers = tuple(MAKERS.values())
    shape, kind = makers[pick(len(makers))](pick)
    return Array(_random_elements(pick, shape, kind), TensorType(shape, kind), "codes")


def _random_elements(pick: Pick, shape: Shape, kind: QuantType) -> NDArray[np.generic]:
    rng = np.random.default_rng(pick(1 << 16))
    if kind.storage.is_float:
        return rng.normal(0, 1, shape).astype(kind.storage.carrier)
    high = kind.high
    if kind.codes is not None:
        count = len(kind.codes) if isinstance(kind.codes, tuple) else kind.codes.data.size
        # Elements of a table index it, so none may reach past its end.
        high = min(high, kind.low + count - 1)
    return rng.integers(kind.low, high, shape, endpoint=True).astype(kind.storage.carrier)


def _scales(pick: Pick, shape: Shape, kind: DType = F32) -> Array:
    rng = np.random.default_rng(pick(1 << 16))
    return Array.of(rng.uniform(0.25, 2, shape).astype(kind.carrier), "scales")


def _tensor(pick: Pick) -> tuple[Shape, QuantType]:
    zero: Param = (None, (3,), (0.5,))[pick(3)] or ()
    plus = (1.5,) if pick(3) == 0 else None
    declared = DeclaredBounds((-6.0,), (5.5,), 127.0) if pick(3) == 0 else None
    return (2, 3), QuantType(U8, F32, (0.5,), zero, plus=plus, declared=declared)


def _axis(pick: Pick) -> tuple[Shape, QuantType]:
    size = (3, 9)[pick(2)]
    scales = np.linspace(0.5, 2, size, dtype=np.float32)
    zeros = np.arange(size) % 3 if pick(2) else 0
    return (2, size), uniform(I8, scales, zeros, axis=1, bounds=(-127, 127), name="w")


def _block(pick: Pick) -> tuple[Shape, QuantType]:
    grain, grid = Granularity(((0, 1), (1, 4))), (3, 2)
    zero: Param = Array.of(np.full(grid, 5, np.uint8), "zeros") if pick(2) else ()
    storage = (U8, dtype("u3"))[pick(2)]
    return (3, 8), QuantType(storage, F16, _scales(pick, grid, F16), zero, grain)


def _grouped(pick: Pick) -> tuple[Shape, QuantType]:
    """Blocks whose members a table of indices names."""
    by = Array.of(np.array([0, 1, 0, 1, 0, 1, 0, 1], np.int32), "g_idx")
    return (8, 3), QuantType(
        dtype("i4"), F32, _scales(pick, (2, 1)), (), Granularity(((0, 4),), by)
    )


def _table(pick: Pick) -> tuple[Shape, QuantType]:
    table = tuple(float(np.float32(c)) for c in np.linspace(-1, 1, 16))
    return (4,), QuantType(dtype("u4"), F32, (0.5,), kind="lut", codes=table)


def _float8(pick: Pick) -> tuple[Shape, QuantType]:
    return (2, 4), QuantType(_F8, F32, (0.25,))


def _float4(pick: Pick) -> tuple[Shape, QuantType]:
    """Quantized values of four bits, scales of eight a block, and one scale for the scales."""
    scales = np.random.default_rng(pick(1 << 16)).uniform(0.5, 2, (2, 2)).astype(_F8.carrier)
    scale_type = QuantType(_F8, F32, (0.125,))
    # The scales of the blocks are themselves quantized, as formats with float8 scales have it.
    nested = Array(scales, TensorType((2, 2), scale_type), "block_scales")
    return (2, 8), QuantType(_F4, F32, nested, granularity=Granularity(((0, 1), (1, 4))))


def _double(pick: Pick) -> tuple[Shape, QuantType]:
    """Scales that are quantized themselves."""
    quantized = np.random.default_rng(pick(1 << 16)).integers(1, 255, (3,)).astype(np.uint8)
    nested = Array(quantized, TensorType((3,), QuantType(U8, F32, (0.01,))), "scale_codes")
    return (3, 2), QuantType(I8, F32, nested, granularity=Granularity(((0, 1),)))


MAKERS: Mapping[str, Callable[[Pick], tuple[Shape, QuantType]]] = {
    "tensor": _tensor,
    "axis": _axis,
    "block": _block,
    "grouped": _grouped,
    "table": _table,
    "float8": _float8,
    "float4": _float4,
    "double": _double,
}
"""Each kind of map, with the shape of a tensor that it fits."""
