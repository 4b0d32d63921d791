"""The matrix product that every op shares, with the same bytes whatever the number of threads.

BLAS splits a large product among its threads, and the last bits follow the split. A product of
no more than 2**18 multiplications stays on one thread (OpenBLAS's threshold), and one with two
or more rows and columns stays off the matrix-vector kernels, whose threshold is far lower. So a
large product is cut into such tiles, which costs less than half of one thread's speed.
"""

from __future__ import annotations

import numpy as np

from qir.reference.operands import Array, Float64Array

_MAX_UNTHREADED = 1 << 18
_TILE_ROWS = 64
_TILE_DEPTH = 256


def product(a: Array, b: Array) -> Array:
    """a @ b over the last two axes, the others broadcast; integers wrap."""
    if a.dtype != np.float64:
        exact: Array = np.matmul(a, b)
        return exact
    with np.errstate(all="ignore"):
        return _float_product(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False))


def _float_product(a: Float64Array, b: Float64Array) -> Float64Array:
    # A second row of zeros keeps the product off the matrix-vector kernels.
    if a.shape[-2] == 1:
        return _float_product(np.concatenate([a, np.zeros_like(a)], axis=-2), b)[..., :1, :]
    if b.shape[-1] == 1:
        return _float_product(a, np.concatenate([b, np.zeros_like(b)], axis=-1))[..., :1]
    a, b = _blas_layout(a), _blas_layout(b)
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if rows * depth * columns <= _MAX_UNTHREADED:
        small: Float64Array = np.matmul(a, b)
        return small
    return _tiled(a, b)


def _tiled(a: Float64Array, b: Float64Array) -> Float64Array:
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    tile_rows, tile_depth = min(rows, _TILE_ROWS), min(depth, _TILE_DEPTH)
    tile_columns = max(2, _MAX_UNTHREADED // (tile_rows * tile_depth))
    out = np.empty((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, columns))
    for i in _tile_slices(rows, tile_rows):
        for j in _tile_slices(columns, tile_columns):
            tile = out[..., i, j]
            first, *rest = _tile_slices(depth, tile_depth)
            np.matmul(a[..., i, first], b[..., first, j], out=tile)
            for k in rest:
                tile += np.matmul(a[..., i, k], b[..., k, j])
    return out


def _tile_slices(size: int, step: int) -> list[slice]:
    """Slices of `step`; a last one of a single line would be a vector, so it is never made."""
    starts = list(range(0, size, step))
    if size % step == 1 and len(starts) > 1:
        starts[-1] -= 1
    return [slice(s, e) for s, e in zip(starts, [*starts[1:], size], strict=True)]


def _blas_layout(m: Float64Array) -> Float64Array:
    """Returns a matrix that BLAS can read in place: its rows or its columns are together."""
    return m if m.itemsize in m.strides[-2:] else np.ascontiguousarray(m)
