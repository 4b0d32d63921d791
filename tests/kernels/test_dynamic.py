"""Products of integers whose zero and scale are found by the run, and functions the C library
decides, all compared with NumPy and libm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, Plan

from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32


def dynamic(
    x: NDArray[np.generic], w: NDArray[np.int8], scale: NDArray[np.float32], kind: str,
    zero: int | None, isa: str, threads: int, bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:  # fmt: skip
    """The result of one step."""
    y = np.full((len(x), len(w)), np.nan, F32)
    arrays: list[NDArray[np.generic]] = [x, y, scale]
    if zero is not None:
        arrays.append(np.asarray([zero], CODES[kind]))
    plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
    plan.dynamic_linear(
        "step", 0, 1, w, bias, rows=len(x), scale=2, scales=scale.size, x_type=kind,
        zero=None if zero is None else 3,
    )  # fmt: skip
    plan.run(arrays, threads=threads)
    return y


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1), (3, 5, 17), (7, 64, 64), (13, 33, 65), (128, 130, 96), (50, 300, 7)],
    ids=str,
)
def test_sums_are_exact_and_then_rounded_and_scaled(
    kind: str, ends: bool, size: tuple[int, int, int]
) -> None:
    rows, k, n = size
    rng = np.random.default_rng([71, *size, ends])
    x, w = random_integers(rng, kind, (rows, k), ends), random_integers(rng, "i8", (n, k), ends)
    low, high = BOUNDS[kind]
    bias = rng.normal(size=n).astype(F32)
    for zero in (None, low, high, int(rng.integers(low, high + 1))):
        sums = (x.astype(np.int64) - (zero or 0)) @ w.T.astype(np.int64)
        for count in (1, n):
            scale = rng.uniform(1e-3, 1, count).astype(F32)
            wanted = sums.astype(F32) * scale
            for isa in ISAS:
                for threads in (1, 2):
                    got = dynamic(x, w.view(np.int8), scale, kind, zero, isa, threads)
                    assert got.tobytes() == wanted.tobytes(), (zero, count, isa, threads)
                    got = dynamic(x, w.view(np.int8), scale, kind, zero, isa, threads, bias)
                    assert got.tobytes() == (wanted + bias).tobytes(), (zero, count, isa, threads)


def test_other_sizes_are_refused() -> None:
    x, w = np.zeros((2, 3), np.uint8), np.zeros((4, 3), np.int8)
    with pytest.raises(ValueError, match="3 scales for 4 columns"):
        dynamic(x, w, np.ones(3, F32), "u8", 0, ISAS[0], 1)
    with pytest.raises(ValueError, match="bias has 3 numbers, not 4"):
        dynamic(x, w, np.ones(1, F32), "u8", 0, ISAS[0], 1, np.ones(3, F32))
    with pytest.raises(ValueError, match="not int8"):
        dynamic(x, np.zeros((4, 3), np.uint8), np.ones(1, F32), "u8", 0, ISAS[0], 1)
    plan = Plan(0, [(EXTERNAL, size) for size in (6, 32, 4)])
    with pytest.raises(ValueError, match="scale is buffer 2 of 4 bytes, 16 are needed"):
        plan.dynamic_linear("step", 0, 1, w, rows=2, scale=2, scales=4)


def gelu(x: float) -> float:
    return x * 0.5 * math.erfc(x * -0.7071067811865476)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "erf": math.erf,
    "tanh": math.tanh,
    "gelu": gelu,
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_have_the_bytes_of_the_c_library(op: str) -> None:
    rng = np.random.default_rng(72)
    bits = rng.integers(0, 2**32, 20_000, np.uint64).astype(np.uint32).view(F32)
    near = [rng.normal(size=20_000) * size for size in (0.01, 1, 4, 20)]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.0, -1.0, 1e-30, -13.5, -14.2]
    with np.errstate(all="ignore"):
        x = np.concatenate([bits, *near, special]).astype(F32)
    with np.errstate(all="ignore"):
        wanted = np.array([FUNCTIONS[op](v) for v in x.tolist()]).astype(F32)
        for isa in ISAS:
            got = one("function", [x], x.shape, F32, op=op, size=x.size, isa=isa)
            same = got.view(np.uint32) == wanted.view(np.uint32)
            assert np.all(same | (np.isnan(got) & np.isnan(wanted))), x[~same][:5]
