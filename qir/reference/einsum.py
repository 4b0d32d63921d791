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
        parsed = rules.equation(equation, tuple(x.ndim for x in xs))
        sizes = rules.sizes(parsed, tuple(x.shape for x in xs))
    except TypeRuleError as error:
        raise OpError(f"einsum: {error}") from None
    label_sizes = {n: s for n, s in sizes.items() if isinstance(s, int)}
    operands = [
        _diagonal(to_float64(x), t, label_sizes) for x, t in zip(xs, parsed.terms, strict=True)
    ]
    data, labels = operands[0]
    for i, (right, right_labels) in enumerate(operands[1:], 1):
        # Labels that later operands or the result need; all others are summed as early as possible.
        later = {n for _, names in operands[i + 1 :] for n in names}
        data, labels = _contract(data, labels, right, right_labels, later | set(parsed.result))
    data, labels = _sum_out(data, labels, set(parsed.result))
    out = data.transpose([labels.index(n) for n in parsed.result])
    return np.asarray(round_to_dtype(out, xs[0].dtype), order="C")


def _diagonal(x: Array, labels: Labels, sizes: dict[str, int]) -> tuple[Array, Labels]:
    """Returns an operand with each label once, axes of 1 as long as the others of their label."""
    # A label twice in one operand means its diagonal; NumPy appends that axis at the end.
    x = np.broadcast_to(x, [sizes[n] for n in labels])
    while len(set(labels)) < len(labels):
        first = next(i for i, n in enumerate(labels) if n in labels[i + 1 :])
        second = labels.index(labels[first], first + 1)
        x = np.diagonal(x, axis1=first, axis2=second)
        others = tuple(n for i, n in enumerate(labels) if i not in (first, second))
        labels = (*others, labels[first])
    return x, labels


def _sum_out(x: Array, labels: Labels, needed: set[str]) -> tuple[Array, Labels]:
    """Sums over the labels that nothing needs any more."""
    summed = tuple(i for i, n in enumerate(labels) if n not in needed)
    if not summed:
        return x, labels
    # NumPy's sums depend on strides in the last bits: contiguous data make them depend on the
    # elements alone.
    flat = np.asarray(x, order="C")
    return np.asarray(np.sum(flat, summed, dtype=x.dtype)), tuple(n for n in labels if n in needed)


def _contract(
    a: Array, a_labels: Labels, b: Array, b_labels: Labels, needed: set[str]
) -> tuple[Array, Labels]:
    a, a_labels = _sum_out(a, a_labels, needed | set(b_labels))
    b, b_labels = _sum_out(b, b_labels, needed | set(a_labels))
    common = [n for n in a_labels if n in b_labels]
    # Common labels that stay are batch axes of the product, the others its summed axis.
    batch, inner = [n for n in common if n in needed], [n for n in common if n not in needed]
    rows, columns = (
        [n for n in a_labels if n not in common],
        [n for n in b_labels if n not in common],
    )
    left = _as_matrices(a, a_labels, batch, rows, inner)
    right = _as_matrices(b, b_labels, batch, inner, columns)
    sizes = dict(zip((*a_labels, *b_labels), (*a.shape, *b.shape), strict=True))
    labels = (*batch, *rows, *columns)
    return product(left, right).reshape([sizes[n] for n in labels]), labels


def _as_matrices(
    x: Array, labels: Labels, batch: list[str], rows: list[str], columns: list[str]
) -> Array:
    """Returns a stack of matrices, the labels of each kind made one axis."""
    ordered = x.transpose([labels.index(n) for n in (*batch, *rows, *columns)])
    ends = (0, len(batch), len(batch) + len(rows), x.ndim)
    shape = [math.prod(ordered.shape[i:j]) for i, j in pairwise(ends)]
    return np.ascontiguousarray(ordered).reshape(shape)


FUNCTIONS: dict[str, Callable[..., Array]] = {"einsum": einsum}
