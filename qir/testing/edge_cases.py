"""Odd names, numbers, elements and types: what tries the text form and files."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.dtype import F16, F32, F64, I8, U8, DType, dtype
from qir.ir.types import Array, DeclaredBounds, Granularity, Param, QuantType, TensorType
from qir.testing.random_source import Pick

DTYPES = (
    "f64 f32 f16 bf16 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0 f6e2m3fn f6e3m2fn f4e2m1fn "
    "bool string i8 u8 i16 u16 i32 u32 i64 u64 i1 u1 u2 i3 i4 u4 i7 u9 i12 u17 i31 i33 u63"
).split()
"""Element types of every family and width."""
NAMES = (
    "plain",
    "a.b",
    "a-b",
    "1st",
    "",
    " ",
    ".",
    "two words",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\t",
    "nul\x00",
    "\u2028",
    "ünïcödé",
    "日本語",
    "💥",
    "\ud800",
    "%percent",
    "@at",
    "# hash",
    "// slashes",
    "}{)(",
    "graph",
    "__metadata__",
    "x=%y, z",
    "as",
    "é",
)
"""Names that need care in texts and files."""


def odd_name(pick: Pick) -> str:
    """Returns a name that tries the text form."""
    if pick(3):
        return NAMES[pick(len(NAMES))]
    return "".join(chr(pick(0x1F600 if pick(4) == 0 else 0x250)) for _ in range(pick(5)))


def odd_array(pick: Pick, kind: DType, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Elements of a type, drawn from all its bit patterns."""
    rng = np.random.default_rng(pick(1 << 16))
    size = int(np.prod(shape))
    if kind.name == "string":
        out = np.empty(size, object)
        out[:] = [odd_name(pick).encode(errors="surrogatepass") for _ in range(size)]
        return out.reshape(shape)
    if kind.name == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    width = kind.carrier.itemsize
    bits = np.frombuffer(rng.bytes(size * width), f"u{width}").reshape(shape)
    if kind.is_float:
        # Narrow floats keep their bits at the low end of the carrier.
        return (bits >> (8 * width - kind.bits)).astype(bits.dtype).view(kind.carrier)
    low, high = kind.bounds
    # Python's integers: 64-bit bounds overflow NumPy's.
    integers = [low + int(b) % (high - low + 1) for b in bits.reshape(-1)]
    return np.array(integers, kind.carrier).reshape(shape)


def odd_number(pick: Pick) -> float:
    """Returns a number of any size, its bits drawn."""
    if pick(2):
        return (0.1, 1.0, 0.0235, 1e-45, 3.4e38, 1e-7, 16777217.0, 1 / 3)[pick(8)]
    bits = np.array([pick(1 << 16) << 16 | pick(1 << 16)], np.uint32)
    # Scales must be positive and finite, whatever the bits say.
    value = float(bits.view(np.float32)[0])
    return abs(value) if np.isfinite(value) and value else 0.5


def odd_type(pick: Pick) -> TensorType:
    """Returns a type of any shape and element."""
    sizes = (1, 2, 3, 5, 8, 9, None, dims.symbol("N"), dims.parse("(N+3)//2*M - 1"))
    shape = tuple(sizes[pick(len(sizes))] for _ in range(pick(4)))
    if pick(4) == 0:
        return TensorType(shape, dtype(DTYPES[pick(len(DTYPES))]))
    return TensorType(shape, odd_quant(pick, shape, nested=True))


def odd_quant(pick: Pick, shape: dims.Shape, *, nested: bool) -> QuantType:
    """Returns a quantized type that uses any part of the grammar."""
    storage = dtype(f"{'iu'[pick(2)]}{1 + pick(64)}" if pick(3) else f"f{_SMALL[pick(5)]}")
    if not storage.is_float and pick(2):
        storage = (U8, I8)[pick(2)]
    bounds = None
    if storage.is_integer and pick(2):
        low, high = storage.bounds
        bounds = (low + pick(min(high - low, 100)), high)
    express = (F32, F32, F64, F16, dtype("bf16"))[pick(5)]
    granularity, grid = _odd_grain(pick, shape)
    scale_dtype = (None, None, F64, F32, dtype("f8e8m0"))[pick(5)]
    scale = _odd_scale(pick, granularity, grid, scale_dtype or express, nested)
    zero = _odd_zero(pick, scale, storage)
    whole_tensor = granularity is None or pick(2) == 0
    declared = None
    if pick(4) == 0 and whole_tensor:
        level = (None, 127.5, 255.0)[pick(3)]
        declared = DeclaredBounds((-odd_number(pick),), (odd_number(pick),), level)
    plus = (odd_number(pick),) if pick(5) == 0 else None
    table = None
    if storage.is_integer and storage.bits <= 4 and pick(2):
        low, high = bounds or storage.bounds
        # A table says what each element means, so there is no zero point to subtract.
        table, zero = tuple(odd_number(pick) for _ in range(high - low + 1)), ()
    kind: Literal["uniform", "lut"] = "lut" if table else "uniform"
    return QuantType(
        storage, express, scale, zero, granularity, bounds, scale_dtype, plus, declared, kind, table
    )


_SMALL = ("8e4m3fn", "8e5m2", "4e2m1fn", "6e2m3fn", "8e4m3fnuz")


def _odd_grain(pick: Pick, shape: dims.Shape) -> tuple[Granularity | None, tuple[int, ...]]:
    known = [(i, d) for i, d in enumerate(shape) if isinstance(d, int)]
    if not known or pick(3) == 0:
        return None, ()
    if pick(2):
        axis, size = known[pick(len(known))]
        return Granularity(((axis, 1),)), (size,)
    blocks = tuple((axis, 1 + pick(size)) for axis, size in known)
    group_indices = (
        Array.of(np.arange(known[0][1], dtype=np.int32), "g_idx") if pick(3) == 0 else None
    )
    granularity = Granularity(blocks, group_indices)
    return granularity, dims.known_shape(
        granularity.grid(tuple(d if isinstance(d, int) else 1 for d in shape))
    ) or ()


def _odd_scale(
    pick: Pick, grain: Granularity | None, grid: tuple[int, ...], kind: DType, nested: bool
) -> Param:
    count = int(np.prod(grid))
    if pick(6) == 0:
        return None
    if grain is None or (grain.axis is not None and count <= 8 and pick(2)):
        return tuple(odd_number(pick) for _ in range(count))
    if nested and pick(3) == 0:
        inner = odd_quant(pick, grid, nested=False)
        data = odd_array(pick, inner.storage, grid)
        return Array(data, TensorType(grid, inner), odd_name(pick))
    return Array.of(odd_array(pick, kind, grid), odd_name(pick))


def _odd_zero(pick: Pick, scale: Param, storage: DType) -> Param:
    low, high = storage.bounds
    choice = pick(5)
    if storage.is_float or choice == 0:
        return ()
    if choice == 1:
        return None
    if isinstance(scale, Array):
        return Array.of(np.full(scale.data.shape, pick(100), np.int32), odd_name(pick))
    count = len(scale) if scale else 1
    if choice == 2:
        return tuple(odd_number(pick) for _ in range(count))
    return tuple(low + pick(min(high - low + 1, 1 << 30)) for _ in range(count))
