"""Rounding and the fused multiply-add against exact rationals."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from qir.numerics.rounding import ROUNDINGS, doubling_high_multiply, fma, shift_right_away

HALF = Fraction(1, 2)


def nearest(x: Fraction, at_half: Callable[[int], int]) -> int:
    """The nearest whole number; `at_half` picks, given the one below."""
    below = math.floor(x)
    if x - below == HALF:
        return at_half(below)
    return below + (x - below > HALF)


EXACT: dict[str, Callable[[Fraction], int]] = {
    "even": lambda x: nearest(x, lambda n: n + n % 2),
    "away": lambda x: nearest(x, lambda n: n + (x > 0)),
    "half_up": lambda x: nearest(x, lambda n: n + 1),
    "half_down": lambda x: nearest(x, lambda n: n),
    "up": lambda x: math.ceil(x) if x > 0 else math.floor(x),
    "down": math.trunc,
    "zero": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}


def test_a_half_that_is_added_may_carry() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    found = ROUNDINGS["half_added"](np.array([below, -0.5, 1.5, -1.5], np.float32))
    assert found.tolist() == [1, 0, 2, -1]
    assert ROUNDINGS["half_up"](np.array([below], np.float32)).tolist() == [0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_each_rounding_is_exact_at_ties_and_beside_them(
    name: str, kind: type[np.float32] | type[np.float64]
) -> None:
    ties = (np.arange(-40, 41) / 2).astype(kind)
    beside = [np.nextafter(ties, np.array(end, kind)) for end in (-np.inf, np.inf)]
    big = [2.0**22 + 0.5, 2.0**23 - 0.5, -(2.0**23) + 0.5, 2.0**24, -(2.0**30)]
    x = np.concatenate([ties, *beside, np.array([s * v for s in (1, -1) for v in big], kind)])
    found = ROUNDINGS[name](x)
    assert found.dtype == x.dtype
    assert found.tolist() == [EXACT[name](Fraction(float(v))) for v in x]


def test_the_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    spread = np.exp2(rng.integers(-40, 40, 4000)).astype(np.float32)
    near = -(a * b) * (1 + rng.integers(-2, 3, 4000) * np.float32(2.0**-23))
    for c in (spread * b, near.astype(np.float32)):
        found = fma(a, b, c)
        for i in range(len(a)):
            exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
            assert found[i] == nearest_float32(exact), (i, a[i], b[i], c[i])


def nearest_float32(x: Fraction) -> np.float32:
    """The float32 nearest to a rational, the even one of two."""
    guess = np.float32(float(x))
    around = [
        guess,
        np.nextafter(guess, np.float32(-np.inf)),
        np.nextafter(guess, np.float32(np.inf)),
    ]
    distances = [(abs(Fraction(float(g)) - x), int(np.array(g).view(np.int32)) & 1) for g in around]
    return np.float32(around[distances.index(min(distances))])


def test_fixed_point_products_are_gemmlowps() -> None:
    rng = np.random.default_rng(1)
    edge = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30)], np.int32)
    a = np.concatenate([edge, rng.integers(-(2**31), 2**31, 3000).astype(np.int32)])
    b = np.concatenate([edge[::-1], rng.integers(-(2**31), 2**31, 3000).astype(np.int32)])
    found = doubling_high_multiply(a, b)
    for x, y, z in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        product = x * y
        nudge = 2**30 if product >= 0 else 1 - 2**30
        wanted = int(Fraction(product + nudge, 2**31).__trunc__())
        assert z == min(wanted, 2**31 - 1), (x, y)


def test_a_shift_to_the_right_rounds_halves_away_from_zero() -> None:
    x = np.arange(-200, 201, dtype=np.int32)
    for exponent in range(8):
        found = shift_right_away(x, np.array(exponent))
        wanted = [EXACT["away"](Fraction(v, 2**exponent)) for v in x.tolist()]
        assert found.tolist() == wanted, exponent
