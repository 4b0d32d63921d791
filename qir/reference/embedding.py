"""Rows of a table by their numbers, as torch takes them; bags in float64, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.embedding import MODES
from qir.reference.operands import (
    Array,
    Float64Array,
    require_floats,
    require_rank,
    round_to_dtype,
    to_float64,
)


def _rows(op: str, w: Array, indices: Array, padding: int | None) -> NDArray[np.int64]:
    """Returns the numbers of rows; raises OpError for one that w has not."""
    require_rank(op, "w", w, 2)
    if indices.dtype.kind not in "iu":
        raise OpError(f"{op}: indices are {indices.dtype}, they must be whole numbers")
    if padding is not None and not -len(w) <= padding < len(w):
        raise OpError(f"{op}: padding {padding}, but w has {len(w)} rows")
    if indices.size and not 0 <= indices.min() <= indices.max() < len(w):
        raise OpError(f"{op}: row {indices.min()}..{indices.max()}, but w has {len(w)}")
    return indices.astype(np.int64)


def embedding(w: Array, indices: Array, *, padding: int | None = None) -> Array:
    """Returns the rows of w that the indices name; raises OpError for a row that is not there."""
    return np.asarray(w[_rows("embedding", w, indices, padding)])


@np.errstate(all="ignore")
def embedding_bag(
    w: Array,
    indices: Array,
    offsets: Array | None = None,
    weights: Array | None = None,
    *,
    mode: str = "mean",
    last: bool = False,
    padding: int | None = None,
) -> Array:
    """Rows of w bag by bag; a bag of nothing gives zeros. OpError for misfits."""
    op = "embedding_bag"
    require_floats(op, w=w, weights=weights)
    rows = _rows(op, w, indices, padding)
    if mode not in MODES or (weights is not None and mode != "sum"):
        raise OpError(f"{op}: mode {mode!r}{' with weights' if weights is not None else ''}")
    if weights is not None and weights.shape != indices.shape:
        raise OpError(f"{op}: weights {list(weights.shape)}, indices {list(indices.shape)}")
    starts = bag_starts(op, rows, offsets, last)
    flat = rows.reshape(-1)
    share = np.ones(flat.shape) if weights is None else to_float64(weights).reshape(-1)
    # Rows named `padding` count neither in sums nor in the number of a mean, as in torch.
    counts = np.ones(flat.shape, np.bool_) if padding is None else flat != padding % len(w)
    out = np.zeros((len(starts) - 1, w.shape[1]))
    for i, (start, end) in enumerate(pairwise(starts)):
        counted = np.flatnonzero(counts[start:end]) + start
        out[i] = _bag(to_float64(w[flat[counted]]).astype(np.float64), share[counted], mode)
    return round_to_dtype(out, w.dtype)


def _bag(rows: Float64Array, weights: Array, mode: str) -> Float64Array:
    if not len(rows):
        return np.zeros(rows.shape[1])
    if mode == "max":
        return np.asarray(np.max(rows, 0))
    total = np.sum(rows * weights.astype(np.float64)[:, None], 0)
    return np.asarray(total / len(rows) if mode == "mean" else total)


def bag_starts(op: str, rows: Array, offsets: Array | None, last: bool) -> list[int]:
    """Where each bag starts among all rows, and at the end where the last one ends."""
    if offsets is None:
        require_rank(op, "indices", rows, 2)
        return [i * rows.shape[1] for i in range(len(rows) + 1)]
    require_rank(op, "indices", rows, 1)
    require_rank(op, "offsets", offsets, 1)
    starts = [int(v) for v in offsets]
    ends = starts if last else [*starts, len(rows)]
    is_rising = all(a <= b for a, b in pairwise(ends))
    if not ends or ends[0] != 0 or not is_rising or ends[-1] > len(rows):
        raise OpError(f"{op}: offsets {starts[:8]} do not divide {len(rows)} rows from 0 on")
    return ends


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "embedding": embedding,
    "embedding_bag": embedding_bag,
}
