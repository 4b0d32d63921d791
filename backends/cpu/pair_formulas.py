"""Formulas for sums and products of two quantized tensors, in place of tables of all pairs.

A formula is quicker than a table, as vectors compute it. It is used where it gives the result of
the table for each of the 65,536 pairs of bytes, so that it needs no proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir._kernels._checks import WHOLE_FACTORS

from .kernel_types import ByteParameters, Job, Table, all_bytes

_FACTOR_BITS = 20
"""The greater of two whole factors has one bit more."""
_MOST_SHIFT, _MOST_OFFSET = 28, 1 << 30


@dataclass(frozen=True, slots=True)
class PairFormula:
    """A step of the plan by its method, with its options."""

    step: str
    options: Mapping[str, Any]


def pair_formula(
    job: Job, held: Sequence[ByteParameters], y: ByteParameters, table: Table
) -> PairFormula | None:
    """Returns a step that gives a table's results for all pairs; None where none is known."""
    a, b = held
    first = np.repeat(all_bytes(a), 256).astype(np.int64)
    second = np.tile(all_bytes(b), 256).astype(np.int64)
    low, high = int(table.min()), int(table.max())
    kinds = {"a_type": a.kind, "b_type": b.kind, "y_type": y.kind, "low": low, "high": high}
    known = _FORMULAS.get(job.op)
    for step, options, computed in known(job, a, b, y, first, second) if known else ():
        if np.array_equal(np.clip(computed + y.zero, low, high), table.astype(np.int64)):
            return PairFormula(step, {**options, **kinds, "y_zero": y.zero})
    return None


Whole = NDArray[np.int64]
Candidate = tuple[str, Mapping[str, Any], Whole]
"""A step, its options, and what it computes of all pairs before the zero point is added."""


def _sums(
    job: Job, a: ByteParameters, b: ByteParameters, y: ByteParameters, first: Whole, second: Whole
) -> Iterator[Candidate]:
    """Yields sums by whole factors of 21 bits and a shift that rounds halves up."""
    ratios = [float(of.scale / y.scale) for of in (a, b)]
    if not all(map(math.isfinite, ratios)) or not max(ratios):
        return
    shift = _FACTOR_BITS + 1 - math.frexp(max(ratios))[1]
    left, right = (round(math.ldexp(ratio, shift)) for ratio in ratios)
    sign = job.rule.method.params.get("sign", 1) if job.rule and job.rule.method else 1
    right = -right if sign == -1 else right
    offset = (1 << max(shift - 1, 0)) - left * a.zero - right * b.zero
    if not 1 <= shift <= _MOST_SHIFT or abs(offset) > _MOST_OFFSET:
        return
    if abs(left) + abs(right) <= WHOLE_FACTORS:
        options = {"a_factor": left, "b_factor": right, "offset": offset, "shift": shift}
        yield "whole_add", options, (first * left + second * right + offset) >> shift


def _products(
    job: Job, a: ByteParameters, b: ByteParameters, y: ByteParameters, first: Whole, second: Whole
) -> Iterator[Candidate]:
    """Yields products that one float multiplies, rounded to even before the zero point."""
    with np.errstate(all="ignore"):
        multiplier = np.float32(a.scale * b.scale) / y.scale
        product = ((first - a.zero) * (second - b.zero)).astype(np.float32) * multiplier
    if not np.isfinite(product).all() or np.abs(product).max() >= 1 << 31:
        return
    options = {"a_zero": a.zero, "b_zero": b.zero, "multiplier": float(multiplier), "after": True}
    yield "mul", options, np.rint(product).astype(np.int64)


_FORMULAS: Mapping[str, Callable[..., Iterator[Candidate]]] = {
    "add": _sums,
    "sub": _sums,
    "mul": _products,
}
