"""Sums of products by an equation: operand by operand from the left, each a batched product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from qir.errors import OpError, TypeRuleError
from qir.ir.ops import einsum as rules
from qir.reference.operands import Array, common_dtype, round_to_dtype, to_float64
from qir.reference.product import product

Labels = tuple[str, ...]


@np.errstate(all="ignore")
def einsum(xs: Sequence[Array], *, equation: str) -> Array:
    """Returns the sums of products that the equation says; raises OpError for misfits."""
    if not xs:
        raise OpError("einsum: it takes an operand or more")
    common_dtype("einsum", **{f"xs.{i}": x for i, x in enumerate(xs)})
    try:
        found = rules.equation(equation, tuple(x.ndim for x in xs))
        sizes = rules.sizes(found, tuple(x.shape for x in xs))
    except TypeRuleError as error:
        raise OpError(f"einsum: {error}") from None
    wanted = {n: s for n, s in sizes.items() if isinstance(s, int)}
    parts = [_diagonal(to_float64(x), t, wanted) for x, t in zip(xs, found.terms, strict=True)]
    data, labels = parts[0]
    for i, (other, theirs) in enumerate(parts[1:], 1):
        later = {n for _, names in parts[i + 1 :] for n in names}
        data, labels = _joined(data, labels, other, theirs, later | set(found.result))
    data, labels = _summed(data, labels, set(found.result))
    out = data.transpose([labels.index(n) for n in found.result])
    return np.asarray(round_to_dtype(out, xs[0].dtype), order="C")


def _diagonal(x: Array, labels: Labels, sizes: dict[str, int]) -> tuple[Array, Labels]:
    """Returns an operand with each label once, axes of 1 as long as the others of their label."""
    x = np.broadcast_to(x, [sizes[n] for n in labels])
    while len(set(labels)) < len(labels):
        first = next(i for i, n in enumerate(labels) if n in labels[i + 1 :])
        again = labels.index(labels[first], first + 1)
        x = np.diagonal(x, axis1=first, axis2=again)
        rest = tuple(n for i, n in enumerate(labels) if i not in (first, again))
        labels = (*rest, labels[first])
    return x, labels


def _summed(x: Array, labels: Labels, kept: set[str]) -> tuple[Array, Labels]:
    """Sums over the labels that nothing needs any more."""
    gone = tuple(i for i, n in enumerate(labels) if n not in kept)
    if not gone:
        return x, labels
    flat = np.asarray(x, order="C")
    return np.asarray(np.sum(flat, gone, dtype=x.dtype)), tuple(n for n in labels if n in kept)


def _joined(
    a: Array, mine: Labels, b: Array, theirs: Labels, needed: set[str]
) -> tuple[Array, Labels]:
    a, mine = _summed(a, mine, needed | set(theirs))
    b, theirs = _summed(b, theirs, needed | set(mine))
    both = [n for n in mine if n in theirs]
    batch, inner = [n for n in both if n in needed], [n for n in both if n not in needed]
    rows, columns = [n for n in mine if n not in both], [n for n in theirs if n not in both]
    left = _matrices(a, mine, batch, rows, inner)
    right = _matrices(b, theirs, batch, inner, columns)
    sizes = dict(zip((*mine, *theirs), (*a.shape, *b.shape), strict=True))
    labels = (*batch, *rows, *columns)
    return product(left, right).reshape([sizes[n] for n in labels]), labels


def _matrices(
    x: Array, labels: Labels, batch: list[str], rows: list[str], columns: list[str]
) -> Array:
    """Returns a stack of matrices, the labels of each kind made one axis."""
    turned = x.transpose([labels.index(n) for n in (*batch, *rows, *columns)])
    ends = (0, len(batch), len(batch) + len(rows), x.ndim)
    shape = [math.prod(turned.shape[i:j]) for i, j in pairwise(ends)]
    return np.ascontiguousarray(turned).reshape(shape)


FUNCTIONS: dict[str, Callable[..., Array]] = {"einsum": einsum}
