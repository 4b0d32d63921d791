"""Operands, weights, scales and sizes of recorded cases, made from seeds: NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import Array, CaseOperand, F, Numbers, OpCase

Seed = np.random.Generator


def bounds(kind: str) -> tuple[int, int]:
    """The least and the greatest code."""
    info = np.iinfo(kind)
    return int(info.min), int(info.max)


def random_integers(seed: Seed, kind: str, *shape: int) -> Array:
    """Integers of all values, extremes among them."""
    low, high = bounds(kind)
    made = seed.integers(low, high + 1, shape)
    ends = seed.random(shape) < 0.05
    return np.where(ends, seed.choice([low, high], shape), made).astype(kind)


def scale_of(seed: Seed, number: int, least: float = 0.002, most: float = 0.2) -> float:
    """Every third one a power of two, where ties lie."""
    if number % 3 == 0:
        return float(2.0 ** -int(seed.integers(3, 8)))
    return float(F(seed.uniform(least, most)))


def zero_of(seed: Seed, kind: str) -> int:
    """An odd zero point; 16-bit integers have none."""
    if kind == "int16":
        return 0
    low, high = bounds(kind)
    return int(seed.integers(low // 2, high // 2)) * 2 + 1


def operand(seed: Seed, kind: str, number: int, *shape: int) -> CaseOperand:
    """Integers and a map."""
    return CaseOperand(
        random_integers(seed, kind, *shape), scale_of(seed, number), zero_of(seed, kind)
    )


def result(seed: Seed, kind: str, scale: float, zero: int | None = None) -> CaseOperand:
    """A map for the result."""
    empty = np.zeros(0, kind)
    return CaseOperand(empty, float(F(scale)), zero_of(seed, kind) if zero is None else zero)


def seeds(op: str, count: int) -> Iterator[tuple[int, Seed]]:
    """As many random generators, each with its number."""
    name = int.from_bytes(op.encode()[:8].ljust(8), "little")
    for number in range(count):
        yield number, np.random.default_rng((name, number))


def same_pad(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int, int]:
    """The result's size and what is put before and after, as `SAME` has it."""
    out = -(-size // stride)
    reach = (kernel - 1) * dilation + 1
    total = max(0, (out - 1) * stride + reach - size)
    return out, total // 2, total - total // 2


def window(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    *,
    same: bool,
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """The result's sizes and the padding, top left bottom right."""
    if not same:
        found = [
            (s - (k - 1) * d - 1) // t + 1
            for s, k, t, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        return (found[0], found[1]), (0, 0, 0, 0)
    (h, top, bottom), (w, left, right) = (
        same_pad(*sizes) for sizes in zip(size, kernel, stride, dilation, strict=True)
    )
    return (h, w), (top, left, bottom, right)


ACTIVATIONS = ("", "relu", "", "relu6")


def pair(seed: Seed, low: int, high: int) -> tuple[int, int]:
    """Two whole numbers."""
    return int(seed.integers(low, high)), int(seed.integers(low, high))


def weights(seed: Seed, number: int, shape: tuple[int, ...], *, many: bool) -> CaseOperand:
    """Weights with one scale, or one a channel."""
    data = seed.integers(-127, 128, shape).astype(np.int8)
    if number % 3 == 0:
        return CaseOperand(
            data,
            (2.0 ** -seed.integers(4, 8, shape[0] if many else ())).astype(F) if many else 2.0**-6,
        )
    scale = seed.uniform(0.001, 0.02, shape[0]).astype(F)
    return CaseOperand(data, scale if many else float(scale[0]))


def biased(seed: Seed, x: CaseOperand, w: CaseOperand, count: int, reach: int) -> CaseOperand:
    """A bias in units of the accumulator."""
    kind = "int64" if x.data.dtype == np.int16 else "int32"
    unit = np.asarray(F(x.step)) * np.asarray(w.scale, F)
    data = seed.integers(-reach, reach + 1, count).astype(kind)
    return CaseOperand(data, unit if np.ndim(unit) else float(unit))


def unsigned(seed: Seed, w: CaseOperand) -> CaseOperand:
    """Weights as unsigned integers of one scale with a zero point."""
    zero = int(seed.integers(50, 100)) * 2 + 1
    data = np.clip(w.data.astype(np.int32) + zero, 0, 255).astype(np.uint8)
    return CaseOperand(data, float(np.ravel(np.asarray(w.scale))[0]), zero)


def fitting(x: CaseOperand, w: CaseOperand, terms: int, number: int) -> float:
    """A scale at which some results saturate; a power of two with those of the operands."""
    low, high = bounds(str(x.data.dtype))
    spread = (high - low) / 3.4 * 73 * math.sqrt(terms)
    unit = x.step * float(np.mean(np.asarray(w.scale)))
    scale = spread * unit / ((high - low) / 2.6)
    return 2.0 ** round(math.log2(scale)) if number % 3 == 0 else scale


def one_sided(of: CaseOperand) -> CaseOperand:
    """The same with integers of the upper half alone."""
    low, high = bounds(str(of.data.dtype))
    return replace(
        of,
        data=np.maximum(np.abs(of.data.astype(np.int32)), high // 2)
        .clip(low, high)
        .astype(of.data.dtype),
    )


def beside(seed: Seed, x: np.float32) -> np.float32:
    """A number near another, up to a few thousandths of a thousandth off."""
    return F(x * F(1 + float(seed.choice([-1, 1])) * 2.0 ** -float(seed.integers(12, 24))))


HALVES = (1.5, 0.5, 2.5, 0.75, 0.5, 1.25)
"""Of how many steps of the result a step of what is rounded is: odd sums, or every other one of
them, are half way between two integers, and sums of the width of the integers leave them at both
ends."""


def sparse(seed: Seed, w: CaseOperand, unit: float, kind: str) -> tuple[CaseOperand, CaseOperand]:
    """Weights of which each result has about two, of 1 and -1, and a map of the result, such that
    many sums of data whose step is `unit` are half way between two integers."""
    count = w.data.shape[w.axis]
    rows = np.moveaxis(np.zeros(w.data.shape, np.int8), w.axis, 0).reshape(count, -1)
    for _ in range(2):
        at = seed.integers(0, rows.shape[1], count)
        rows[np.arange(count), at] = seed.choice([-1, 1], count)
    sizes = np.moveaxis(w.data, w.axis, 0).shape
    data = np.moveaxis(rows.reshape(sizes), 0, w.axis)
    base = F(seed.uniform(0.005, 0.02))
    scale: Numbers = float(F(base * F(seed.choice(HALVES))))
    if isinstance(w.scale, np.ndarray):
        scale = (base * seed.choice(HALVES, count).astype(F)).astype(F)
    return replace(w, data=data, scale=scale), result(seed, kind, float(F(unit) * base))


Suites = dict[str, Callable[[], Iterator[OpCase]]]
