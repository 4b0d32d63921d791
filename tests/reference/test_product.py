"""The shared matrix product at every size where it changes how it is cut into tiles.

Operands are small whole numbers, so float64 holds every sum exactly and int64 gives the answer.
"""

from __future__ import annotations

import numpy as np
import pytest

from qir.reference import product as module
from qir.reference.product import product

EDGES = (-1, 0, 1, 2)
DEPTHS = sorted({k * module._TILE_DEPTH + e for k in (1, 2, 3) for e in EDGES})


def _check(rows: int, depth: int, columns: int, lead: tuple[int, ...] = ()) -> None:
    rng = np.random.default_rng([rows, depth, columns])
    a = rng.integers(-9, 10, (*lead, rows, depth))
    b = rng.integers(-9, 10, (depth, columns))
    out = product(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(out, a @ b, f"{rows} x {depth} x {columns}")


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_term_is_added_once_at_every_depth(depth: int) -> None:
    for rows in sorted({1, 2, *(k * module._TILE_ROWS + e for k in (1, 2) for e in EDGES)}):
        enough = module._MAX_UNTHREADED // (
            rows * depth
        )  # the last count of columns that is not tiled
        for columns in {1, 2, enough, enough + 1, enough + 2}:
            if columns:
                _check(rows, depth, columns)


@pytest.mark.parametrize("depth", [3, module._TILE_DEPTH - 1, module._TILE_DEPTH + 1])
@pytest.mark.parametrize("rows", [2, module._TILE_ROWS, module._TILE_ROWS + 1])
def test_every_column_is_made_once_at_every_width(rows: int, depth: int) -> None:
    tile = module._MAX_UNTHREADED // (min(rows, module._TILE_ROWS) * min(depth, module._TILE_DEPTH))
    for columns in (k * tile + e for k in (1, 2) for e in EDGES):
        _check(rows, depth, columns)
    _check(rows, depth, tile + 1, lead=(3,))
