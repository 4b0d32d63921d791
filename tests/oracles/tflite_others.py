"""Recorded cases of squares and roots, of rows of tables, and of what else moves codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from backends.tflite.models import Case, F, Operand, Value
from tests.oracles.tflite_operands import (
    Suites,
    bounds,
    codes,
    operand,
    result,
    scale_of,
    seeds,
    zero_of,
)


def squares(count: int) -> Iterator[Case]:
    """Squares of differences of tensors of 1..70 codes, every third one by powers of two."""
    for number, seed in seeds("sqdiff", count):
        a, b = (operand(seed, "int8", number, 6, 1 + number * 13 % 70) for _ in "ab")
        wide = (a.step + b.step) ** 2 * seed.uniform(500, 6000)
        scale = 2.0 ** round(np.log2(wide)) if number % 3 == 0 else wide
        made = result(seed, "int8", float(scale))
        yield Case("squared_difference", {"a": a, "b": b}, made, a.data.shape, fed=("a", "b"))


def roots(kind: str, count: int) -> Iterator[Case]:
    """Roots of all codes from the zero point up, of 16 bits one of 13; many are whole numbers."""
    high = bounds(kind)[1]
    for number, seed in seeds(f"sqrt{kind}", count):
        zero = zero_of(seed, kind)
        data = np.arange(zero, high + 1, 1 if kind == "int8" else 13).astype(kind).reshape(1, -1)
        least, most = (0.004, 0.08) if kind == "int8" else (5e-5, 4e-4)
        x = Operand(data, scale_of(seed, number, least, most), zero)
        if number % 3 == 0:
            x = Operand(data, 4.0 ** -int(seed.integers(2, 6)), zero)
        wide = float(np.sqrt((high - zero) * x.step)) / high * seed.uniform(0.5, 2)
        made = result(seed, kind, 2.0 ** round(np.log2(wide)) if number % 2 else wide)
        yield Case("sqrt", {"x": x}, made, data.shape)


def tables(count: int, *, real: bool) -> Iterator[Case]:
    """Rows of a table of codes as reals, with one scale or one a row, or as they are."""
    for number, seed in seeds("table", count):
        many = real and number % 2 == 0
        bits = 4 if real and number % 4 > 1 else 8
        wide = 1 + number * 13 % 70
        shape = (4 + number, wide + wide % 2 if bits == 4 else wide)
        scale = seed.uniform(0.002, 0.05, shape[0]).astype(F)
        data = codes(seed, "int8", *shape)
        data = data // 16 if bits == 4 else data
        zero = 0 if real else zero_of(seed, "int8")
        w = Operand(data.astype(np.int8), scale if many else float(scale[0]), zero, bits=bits)
        made = Operand(np.zeros(0, F)) if real else Operand(np.zeros(0, np.int8), w.scale, zero)
        rows = Operand(seed.integers(0, shape[0], 9).astype(np.int32))
        given = {"indices": rows, "w": w}
        yield Case("embedding", given, made, (9, shape[1]), fed=("indices",))


_MOVES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], Mapping[str, Value]], ...] = (
    ("unsqueeze", (4, 6, 8), (4, 1, 6, 8), {"axes": (1,)}),
    ("squeeze", (4, 1, 6, 1), (4, 6), {"axes": (1, 3)}),
    (
        "slice",
        (4, 6, 8),
        (2, 2, 3),
        {"starts": (0, 1, 6), "ends": (4, 5, 0), "axes": (0, 1, 2), "steps": (2, 3, -2)},
    ),
    ("pad", (4, 6, 8), (6, 9, 8), {"pads": (1, 2, 0, 1, 1, 0), "mode": "reflect"}),
    ("expand", (4, 1, 8), (4, 5, 8), {}),
)


def moves(kind: str, count: int) -> Iterator[Case]:
    """Each move in turn."""
    for number, seed in seeds(f"others{kind}", count):
        op, size, shape, attrs = _MOVES[number % len(_MOVES)]
        x = operand(seed, kind, number, *size)
        made = Operand(np.zeros(0, kind), x.scale, x.zero)
        yield Case(op, {"x": x}, made, shape, dict(attrs))


OTHERS: Suites = {
    "squared_difference": lambda: squares(36),
    "sqrt": lambda: roots("int8", 24),
    "sqrt16": lambda: roots("int16", 12),
    "embedding": lambda: tables(12, real=True),
    "embedding_codes": lambda: tables(6, real=False),
    "more_moves": lambda: moves("int8", 10),
    "more_moves16": lambda: moves("int16", 10),
    "more_moves_u8": lambda: moves("uint8", 10),
}
"""Suites of cases, by the names of their files."""
