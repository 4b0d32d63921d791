"""Recorded cases of squares and roots, of rows of tables, and of what else moves integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from backends.tflite.models import CaseOperand, F, OpCase, Value
from tests.oracles.tflite_operands import (
    HALVES,
    Suites,
    bounds,
    operand,
    random_integers,
    result,
    scale_of,
    seeds,
    zero_of,
)


def squares(count: int) -> Iterator[OpCase]:
    """Squares of differences of tensors of 1..70 integers; every third is of integers that mean
    nearly the same, and many results lie on ties."""
    for number, seed in seeds("sqdiff", count):
        a, b = (operand(seed, "int8", number, 6, 1 + number * 13 % 70) for _ in "ab")
        wide = (a.step + b.step) ** 2 * seed.uniform(500, 6000)
        if number % 3 == 0:
            near = a.data.astype(int) - a.zero + seed.integers(-12, 13, a.data.shape) + b.zero
            data = np.clip(near, *bounds("int8")).astype(np.int8)
            b = replace(b, data=data, scale=a.scale)
            wide = float(F(a.step * a.step)) / HALVES[number // 3 % 6]
        made = result(seed, "int8", float(wide))
        yield OpCase("squared_difference", {"a": a, "b": b}, made, a.data.shape, fed=("a", "b"))


def close_pairs(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Sums or differences by scales of which one is 3/8 or 5/16 of the other: the last of 20 more
    bits decides some results."""
    for number, seed in seeds(f"{op}close", count):
        every = np.linspace(*bounds(kind), 256).round().astype(kind)
        left = every.repeat(16).reshape(1, -1)
        scale = F(seed.uniform(0.03, 0.13))
        other = F(scale * F((0.375, 0.3125)[number // 2 % 2]))
        a = CaseOperand(left, float(scale), zero_of(seed, kind))
        b = CaseOperand(random_integers(seed, kind, *left.shape), float(other), zero_of(seed, kind))
        made = result(seed, kind, float(scale * F((0.5, 1.0, 2.0, 0.25)[number % 4])))
        yield OpCase(op, {"a": a, "b": b}, made, left.shape, fed=("a", "b"))


_POWERS = (
    (0.046764858067035675, 0.19594383239746094, -71),
    (0.025000693276524544, 0.09738333523273468, -27),
    (0.012104950845241547, 0.04984306916594505, -103),
    (0.007938103750348091, 0.029952986165881157, 49),
    (0.032252825796604156, 0.05919560790061951, 19),
    (0.029513834044337273, 0.04853544756770134, 27),
)
"""Maps under which a power of e lies near a tie: a quotient and a product tell integers apart."""


def close_powers() -> Iterator[OpCase]:
    """Powers of e of all integers of such maps."""
    for scale, to, zero in _POWERS:
        x = CaseOperand(np.arange(-128, 128).astype(np.int8).reshape(1, -1), scale, zero)
        yield OpCase("exp", {"x": x}, CaseOperand(np.zeros(0, np.int8), to, -127), x.data.shape)


def roots(kind: str, count: int) -> Iterator[OpCase]:
    """Roots of all integers from the zero point up, of 16 bits one of 13; many are whole
    numbers."""
    high = bounds(kind)[1]
    for number, seed in seeds(f"sqrt{kind}", count):
        zero = zero_of(seed, kind)
        data = np.arange(zero, high + 1, 1 if kind == "int8" else 13).astype(kind).reshape(1, -1)
        least, most = (0.004, 0.08) if kind == "int8" else (5e-5, 4e-4)
        x = CaseOperand(data, scale_of(seed, number, least, most), zero)
        if number % 3 == 0:
            x = CaseOperand(data, 4.0 ** -int(seed.integers(2, 6)), zero)
        wide = float(np.sqrt((high - zero) * x.step)) / high * seed.uniform(0.5, 2)
        made = result(seed, kind, 2.0 ** round(np.log2(wide)) if number % 2 else wide)
        yield OpCase("sqrt", {"x": x}, made, data.shape)


def tables(count: int, *, real: bool) -> Iterator[OpCase]:
    """Rows of a table of integers as floats, with one scale or one a row, or as they are."""
    for number, seed in seeds("table", count):
        many = real and number % 2 == 0
        bits = 4 if real and number % 4 > 1 else 8
        wide = 1 + number * 13 % 70
        shape = (4 + number, wide + wide % 2 if bits == 4 else wide)
        scale = seed.uniform(0.002, 0.05, shape[0]).astype(F)
        data = random_integers(seed, "int8", *shape)
        data = data // 16 if bits == 4 else data
        zero = 0 if real else zero_of(seed, "int8")
        w = CaseOperand(data.astype(np.int8), scale if many else float(scale[0]), zero, bits=bits)
        made = (
            CaseOperand(np.zeros(0, F))
            if real
            else CaseOperand(np.zeros(0, np.int8), w.scale, zero)
        )
        rows = CaseOperand(seed.integers(0, shape[0], 9).astype(np.int32))
        given = {"indices": rows, "w": w}
        yield OpCase("embedding", given, made, (9, shape[1]), fed=("indices",))


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


def moves(kind: str, count: int) -> Iterator[OpCase]:
    """Each move in turn."""
    for number, seed in seeds(f"others{kind}", count):
        op, size, shape, attrs = _MOVES[number % len(_MOVES)]
        x = operand(seed, kind, number, *size)
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        yield OpCase(op, {"x": x}, made, shape, dict(attrs))


def shapes(kind: str, count: int) -> Iterator[OpCase]:
    """The same integers in another shape."""
    for number, seed in seeds(f"shapes{kind}", count):
        size, shape = _SHAPES[number % len(_SHAPES)]
        x = operand(seed, kind, number, *size)
        yield OpCase("reshape", {"x": x}, CaseOperand(np.zeros(0, kind), x.scale, x.zero), shape)


_SHAPES = (((4, 6, 8), (24, 8)), ((5, 12), (5, 3, 4)), ((2, 7, 9), (126,)))

OTHERS: Suites = {
    "squared_difference": lambda: squares(36),
    "sub_close": lambda: close_pairs("sub", "int8", 8),
    "add16_close": lambda: close_pairs("add", "int16", 4),
    "exp_close": close_powers,
    "sqrt": lambda: roots("int8", 24),
    "sqrt16": lambda: roots("int16", 12),
    "embedding": lambda: tables(12, real=True),
    "embedding_codes": lambda: tables(6, real=False),
    "reshape": lambda: shapes("int8", 6),
    "reshape16": lambda: shapes("int16", 6),
    "reshape_u8": lambda: shapes("uint8", 6),
    "more_moves": lambda: moves("int8", 10),
    "more_moves16": lambda: moves("int16", 10),
    "more_moves_u8": lambda: moves("uint8", 10),
}
"""Suites of cases, by the names of their files."""
