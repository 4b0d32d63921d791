"""What torch's kernels are given: results half way between two integers, a tenth of them beyond
each end, odd zero points, and scales of any kind. One generator, from which each test takes its
shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tests.differential.torch.kernels import (
    BOUNDS,
    Array,
    Asked,
    F,
    Held,
    Map,
    Product,
    dequantized,
    exact,
    in_steps,
    of,
    paired,
    random_integers,
)

Rng = np.random.Generator
Floats = NDArray[np.float64]
RATIOS = (2 / 5, 2 / 3, 2, *range(4, 400, 2))
"""A result's step in units of what all sums are multiples of: half of some sums then, or 1/3, ...,
lie half way between two integers."""


def weights(rng: Rng, terms: int, *shape: int, limit: int = 63) -> tuple[NDArray[np.int8], int]:
    """Integers and the step that they are multiples of: few, the more are summed; or any
    integers."""
    if rng.random() < 0.12:
        return rng.integers(-limit, limit + 1, shape).astype(np.int8), 1
    reach = max(1, round(6 / float(np.sqrt(terms))))
    step = int(rng.integers(1, limit // reach + 1))
    return (step * rng.integers(-reach, reach + 1, shape)).astype(np.int8), step


def scale(rng: Rng, low: float, high: float) -> np.float32:
    """A power of two, or any number."""
    number = rng.uniform(low, high)
    return F(2.0 ** np.rint(np.log2(number)) if rng.random() < 0.4 else number)


def maps(rng: Rng, count: int, *, many: bool) -> tuple[Map, Map]:
    """Of data, and of weights: the scales of channels are hairs apart, or alike."""
    x = of("u8", scale(rng, 0.01, 0.1), int(rng.integers(0, 256)) | 1)
    base = scale(rng, 0.001, 0.05)
    if not many:
        return x, of("i8", base)
    return x, of("i8", np.nextafter(base, rng.choice([0, float(base), 10], count).astype(F)), 0, 0)


def moved(rng: Rng, w: Map, step: int) -> Map:
    """The same of weights whose zero points are few steps off."""
    most = max(1, 4 // step)
    zero = rng.integers(-most, most, w.scale.shape, endpoint=True) * step
    return replace(w, zero=np.asarray(zero, np.int64))


def in_16_bits(case: Product) -> NDArray[np.int64]:
    """Sums whose pairs end at 16 bits."""
    return paired(case)[0]


def level(rng: Rng, units: Floats, step: float, kind: str = "u8") -> tuple[float, int]:
    """The step of a result and its zero point: what there is fills the integers and some more.

    `units` are results in units of which all of them, but for hairs, are multiples of `step`.
    """
    some = units[units != 0] if units.any() else units  # not what has no terms
    # A tenth of the results then lies beyond either end.
    low, high = np.quantile(some, [0.12, 0.88])
    least, most = BOUNDS[kind]
    width = max(float(high - low) / 256, 1e-3 * step)
    if rng.random() < 0.12:
        ratio = width * rng.uniform(0.8, 1.1)
    else:
        ratio = step * min(RATIOS, key=lambda r: abs(np.log(r * step / width)))
    center = float(low + high) / 2
    return ratio, int(np.clip(least + 127 - center / ratio, least + 1, most - 2)) | 1


def fitted(
    rng: Rng,
    case: Product,
    step: int,
    sums: Callable[[Product], NDArray[np.int64] | Floats] = exact,
) -> Product:
    """A layer with a bias, or none, and a map of results that its sums fill."""
    assert case.x.map is not None
    assert case.w.map is not None
    unit = np.asarray(case.x.map.scale * case.w.map.scale.min(), F)
    fitted_case = replace(case, bias=None, out=of("u8", unit))
    units = in_steps(fitted_case, sums(fitted_case))
    if rng.random() < 0.6:
        spread = max(1, int(units.std() / step))
        steps = rng.integers(-spread, spread, len(case.w.data), endpoint=True) * step
        fitted_case = replace(
            fitted_case, bias=np.asarray(steps * (case.x.map.scale * case.w.map.scale), F)
        )
        units = in_steps(fitted_case, sums(fitted_case))
    ratio, zero = level(rng, units, step)
    return replace(fitted_case, out=of("u8", F(unit * F(ratio)), zero))


def wider(case: Product) -> Product:
    """The same layer of large weights: pairs of its terms leave 16 bits."""
    rng = np.random.default_rng(case.w.data.size)
    data, _ = weights(rng, case.w.data[0].size, *case.w.data.shape, limit=127)
    return refitted(replace(case, w=Held(data, case.w.map)))


def refitted(case: Product) -> Product:
    """The same layer with a map of results that its sums of pairs fill."""
    assert case.w.map is not None
    zero = case.w.map.zero.reshape(-1, *[1] * (case.w.data.ndim - 1))
    step = int(np.gcd.reduce(case.w.data.astype(np.int64) - zero, axis=None))
    return fitted(np.random.default_rng(case.w.data.size), case, max(step, 1), in_16_bits)


def between(case: Product) -> Product:
    """The same layer, its bias half way between two steps of its sums."""
    assert case.x.map is not None
    assert case.w.map is not None
    unit = np.broadcast_to(case.x.map.scale * case.w.map.scale, len(case.w.data))
    return replace(case, bias=halves(case.bias, unit))


def halves(bias: Array | None, unit: Array) -> NDArray[np.float32]:
    """A bias, or none, half a unit lower in the first channel, higher in the next, and so on."""
    sides = np.resize([-0.5, 0.5], unit.shape)
    return np.asarray((0 if bias is None else bias) + sides * unit, F)


# -- elements -------------------------------------------------------------------------------------

KINDS = ("u8", "i8")
LENGTHS = (*range(1, 71), 127, 128, 129, 200, 1000)


def odd(rng: Rng, kind: str) -> int:
    """Returns an odd zero point."""
    low, high = BOUNDS[kind]
    return int(rng.integers(low + 1, high - 1)) | 1


def image(rng: Rng, kind: str, *sizes: int) -> Held:
    """An image of integers about the zero point, where means are not all alike."""
    m = of(kind, rng.uniform(0.01, 0.1), odd(rng, kind))
    return Held(random_integers(rng, kind, *sizes), m)


def multiples(rng: Rng, m: Map, step: int, *shape: int) -> Held:
    """Integers that lie some such steps from the zero point."""
    least, most = (int(end - m.zero) for end in m.bounds)
    steps = rng.integers(-(-least // step), most // step, shape, endpoint=True)
    return Held((m.zero + step * steps).astype(random_integers(rng, m.storage).dtype), m)


def pair(rng: Rng, op: str, kind: str, a: tuple[int, ...], b: tuple[int, ...]) -> Asked:
    """Operands whose results are at ties, often; of products one of them is of few integers."""
    first_scale = scale(rng, 0.01, 0.3)
    second_scale = first_scale if rng.random() < 0.6 else F(first_scale * F(0.5))
    first_map, second_map = (
        of(kind, first_scale, odd(rng, kind)),
        of(kind, second_scale, odd(rng, kind)),
    )
    step = int(rng.choice([3, 5, 9])) if op == "mul" else 1
    operands = multiples(rng, first_map, step, *a), Held(random_integers(rng, kind, *b), second_map)
    return joined(rng, op, *operands, step=step)


def joined(rng: Rng, op: str, a: Held, b: Held, *, step: int = 1) -> Asked:
    """Both operands, and a map of results that these fill."""
    assert a.map is not None
    assert b.map is not None
    first_scale, second_scale = a.map.scale, b.map.scale
    unit = of(
        a.map.storage, min(first_scale, second_scale) if op == "add" else first_scale * second_scale
    )
    asked = Asked(op, {"a": a, "b": b}, unit)
    ratio, zero = level(rng, exactly(asked), step, a.map.storage)
    return replace(asked, out=of(a.map.storage, F(unit.scale * F(ratio)), zero))


def exactly(asked: Asked) -> Floats:
    """The result of two operands in steps of its map, unrounded."""
    assert asked.out is not None
    a, b = (dequantized(asked.operands[s]) for s in "ab")
    result = a @ b if asked.op == "matmul" else a + b if asked.op == "add" else a * b
    return np.asarray(result / float(asked.out.scale), np.float64)


@dataclass
class Maps:
    """Scales and zero points, and of which kinds they were."""

    seen: set[str] = field(default_factory=set)

    def zero(self, rng: Rng, kind: str) -> int:
        """An end of the integers, their middle, or any."""
        low, high = BOUNDS[kind]
        zero_point = int(
            rng.choice([low, high, (low + high + 1) // 2, *rng.integers(low, high + 1, 3)])
        )
        self.seen.add("end" if zero_point in (low, high) else ("even", "odd")[zero_point % 2])
        return zero_point

    def scale(self, rng: Rng, *, low: float = 1e-5, high: float = 1e3) -> np.float32:
        """A power of two or three of them, or any number of any size."""
        if rng.random() < 0.5:
            self.seen.add("round")
            power = rng.integers(np.ceil(np.log2(low)), np.floor(np.log2(high)))
            return F(2.0**power * rng.choice([1, 1, 1.5]))
        self.seen.add("any")
        return F(np.exp(rng.uniform(np.log(low), np.log(high))))

    def rich(self) -> None:
        """Each kind was there."""
        assert self.seen == {"end", "odd", "even", "round", "any"}
