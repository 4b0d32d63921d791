"""Products of two computed matrices: exact sums, rounded once, in any place of a buffer."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32
Codes = NDArray[np.uint8 | np.int8]


def exact(a: Codes, b: Codes, a_zero: int, b_zero: int) -> NDArray[np.int64]:
    sums: NDArray[np.int64] = np.matmul(a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero)
    return sums


def places(count: int, size: int) -> list[int]:
    return [i * size for i in range(count)]


def run(
    a: Codes, b: Codes, y_type: str, isa: str, threads: int = 1, **more: Any
) -> NDArray[np.generic]:
    """The product of two batches of matrices that lie one behind the other, row by row."""
    (t, m, k), n = a.shape, b.shape[-1]
    kinds = {np.dtype(np.uint8): "u8", np.dtype(np.int8): "i8"}
    return one(
        "matmul",
        [a, b],
        (t, m, n),
        F32 if y_type == "f32" else CODES[y_type],
        isa=isa,
        threads=threads,
        sizes=(m, k, n),
        a_at=places(t, m * k),
        b_at=places(t, k * n),
        y_at=places(t, m * n),
        a_row=k,
        b_steps=(n, 1),
        y_row=n,
        a_type=kinds[a.dtype],
        b_type=kinds[b.dtype],
        y_type=y_type,
        **more,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("a_type", "b_type"), list(product(CODES, repeat=2)))
def test_every_size_up_to_seventy_is_exact(isa: str, a_type: str, b_type: str) -> None:
    rng = np.random.default_rng(31)
    for size in range(1, 71):
        sizes = [size, int(rng.integers(1, 71)), int(rng.integers(1, 71))]
        m, k, n = rng.permutation(sizes)
        ends = size % 3 == 0
        a, b = (
            random_integers(rng, a_type, (2, m, k), ends),
            random_integers(rng, b_type, (2, k, n), ends),
        )
        a_zero, b_zero = (int(rng.integers(*BOUNDS[kind])) for kind in (a_type, b_type))
        if ends:
            a_zero, b_zero = BOUNDS[a_type][size % 2], BOUNDS[b_type][size % 2]
        y_type = ("u8", "i8", "f32")[size % 3]
        multiplier, zero = F32(0.003 / k), 0 if y_type == "f32" else 17
        limits = {"y_zero": zero, "low": -3, "high": 99} if y_type == "i8" else {"y_zero": zero}
        got = run(a, b, y_type, isa, 1 + size % 2, a_zero=a_zero, b_zero=b_zero,
                  multiplier=multiplier, **limits)  # fmt: skip
        real = exact(a, b, a_zero, b_zero).astype(F32) * multiplier
        if y_type == "f32":
            assert np.array_equal(got, real), (m, k, n)
            continue
        low, high = limits.get("low", BOUNDS[y_type][0]), limits.get("high", BOUNDS[y_type][1])
        assert np.array_equal(got, formulas.rounded(real, zero, low, high)), (m, k, n)


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_of_rows_and_panels_meet(isa: str) -> None:
    rng = np.random.default_rng(32)
    for m, k, n in ((1, 300, 1), (385, 12, 130), (801, 5, 3), (3, 1030, 257)):
        a, b = random_integers(rng, "u8", (1, m, k)), random_integers(rng, "i8", (1, k, n))
        got = run(a, b, "f32", isa, 2, a_zero=200, b_zero=-100, multiplier=1.0)
        assert np.array_equal(got, exact(a, b, 200, -100).astype(F32))


@pytest.mark.parametrize("isa", ISAS)
def test_sums_wrap_at_32_bits(isa: str) -> None:
    a, b = np.full((1, 2, 40_000), 255, np.uint8), np.full((1, 40_000, 3), 255, np.uint8)
    got = run(a, b, "f32", isa, a_zero=0, b_zero=0, multiplier=1.0)
    wrapped = formulas.wrapped(np.full((1, 2, 3), 255 * 255 * 40_000, np.int64))
    assert np.array_equal(got, wrapped)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("by_columns", [False, True])
def test_operands_may_lie_in_other_orders_and_repeat(isa: str, by_columns: bool) -> None:
    """As attention has it: (tokens, heads, depth), of which each head is a matrix."""
    rng = np.random.default_rng(33)
    for tokens, heads, depth in ((6, 3, 8), (35, 2, 33), (130, 1, 64)):
        a, b = (
            random_integers(rng, "u8", (tokens, heads, depth)),
            random_integers(rng, "u8", (tokens, heads, depth)),
        )
        if by_columns:  # a @ b.T of each head, the first head of b for all
            n, k = tokens, depth
            sizes, steps, b_at = (tokens, k, n), (1, heads * depth), [0] * heads
            wanted = exact(a.transpose(1, 0, 2), b[:, :1].transpose(1, 2, 0), 9, 130)
            a_at, a_row = places(heads, depth), heads * depth
        else:  # a.T @ b, with a laid out for it
            n, k = depth, tokens
            a = np.ascontiguousarray(a.transpose(1, 2, 0))
            sizes, steps, b_at = (depth, k, n), (heads * depth, 1), places(heads, depth)
            wanted = exact(a, b.transpose(1, 0, 2), 9, 130)
            a_at, a_row = places(heads, depth * tokens), tokens
        got = one("matmul", [a, b], (sizes[0], heads, n), F32, isa=isa, threads=2, sizes=sizes,
                  a_at=a_at, b_at=b_at, y_at=places(heads, n), a_row=a_row, b_steps=steps,
                  y_row=heads * n, a_zero=9, b_zero=130, multiplier=0.25, y_type="f32")  # fmt: skip
        assert np.array_equal(got.transpose(1, 0, 2), wanted.astype(F32) * F32(0.25))


GOOD: dict[str, Any] = {
    "sizes": (2, 3, 4), "a_at": [0], "b_at": [0], "y_at": [0], "a_row": 3, "b_steps": (4, 1),
    "y_row": 4, "multiplier": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": (3, 3, 4)}, "step: a is buffer 0 of 6 bytes, 9 are needed"),
        ({"sizes": (2, 3, 5), "y_row": 5}, "step: b is buffer 1 of 12 bytes, 13 are needed"),
        ({"y_at": [1]}, "step: y is buffer 2 of 8 bytes, 9 are needed"),
        ({"y_row": 3}, "step: rows of 4 results overlap at a stride of 3"),
        ({"b_at": [0, 1]}, "step: offsets are int64 (2,), not integers"),
        ({"a_at": [-1]}, "step: an offset is below 0 or above"),
        ({"a_row": -3}, "step: a_row is -3; 0 is the least possible"),
        ({"a_zero": 256}, "step: a_zero is 256, u8 holds 0 to 255"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], message: str) -> None:
    a, b = np.zeros((2, 3), np.uint8), np.zeros((3, 4), np.uint8)
    one("matmul", [a, b], (2, 4), np.uint8, **GOOD)
    with pytest.raises(ValueError, match=r"^step: ") as caught:
        one("matmul", [a, b], (2, 4), np.uint8, **{**GOOD, **wrong})
    assert str(caught.value).startswith(message)


def test_nothing_to_sum_gives_the_zero_and_nothing_to_give_nothing() -> None:
    empty = np.zeros((0,), np.uint8)
    zero = {**GOOD, "sizes": (2, 0, 4), "a_row": 0, "y_zero": 7}
    assert np.array_equal(
        one("matmul", [empty, empty], (2, 4), np.uint8, **zero), np.full((2, 4), 7)
    )
    assert one("matmul", [empty, empty], (0, 4), np.uint8, **{**GOOD, "sizes": (0, 3, 4)}).size == 0
