"""Calls of operators that sort, write and look up elements, for the tests of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _random_floats(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


def _random_indices(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


X, ROWS, LINES = _random_floats(2, 4, 8, 8), _random_floats(5, 6), _random_floats(2, 5, 6)
INTO, ALONG = _random_indices(5, 3, 6), _random_indices(5, 5, 2)
AT = torch.tensor([0, 2, 3])
PAIR = torch.tensor([0, 1])
AGAIN = torch.tensor([0, 2, 2])
WHOLE = torch.tensor([[-7, 8, 9], [4, -5, 6]])


def _upsample_nearest_exact(axes: int) -> Any:
    return getattr(torch.ops.aten, f"_upsample_nearest_exact{axes}d")


def _put(at: Any, value: Any = None) -> Callable[[Tensor], Tensor]:
    """Returns a function that writes a value, or the first rows, to places."""

    def function(x: Tensor) -> Tensor:
        copy = x.clone()
        copy[at] = x.new_tensor(value) if value is not None else x[: len(AT)]
        return copy

    return function


Function = tuple[Callable[..., Any], tuple[Tensor, ...]]

INDEXING_CASES: Mapping[str, Function] = {
    "sort": (lambda x: torch.sort(x, dim=1), (LINES,)),
    "sort descending, stable": (lambda x: torch.sort(x, stable=True, descending=True), (LINES,)),
    "argsort": (lambda x: torch.argsort(x, dim=1), (LINES,)),
    "argsort, stable": (lambda x: torch.argsort(x, stable=True), (LINES,)),
    "kthvalue": (lambda x: torch.kthvalue(x, 2, dim=1, keepdim=True), (LINES,)),
    "median": (lambda x: torch.median(x, dim=1), (LINES,)),
    "searchsorted": (lambda x: torch.searchsorted(x[0].sort()[0], x, right=True), (ROWS,)),
    "searchsorted, before": (
        lambda x: torch.searchsorted(x[0].sort()[0], x, out_int32=True),
        (ROWS,),
    ),
    "scatter": (lambda x: torch.zeros(5, 6).scatter(0, INTO, x), (ROWS,)),
    "scatter a number": (lambda x: x.scatter(1, ALONG, 2.0), (ROWS,)),
    "scatter and add": (lambda x: x.scatter(0, INTO, x[:3], reduce="add"), (ROWS,)),
    "scatter and multiply": (
        lambda x: x.scatter(0, INTO, 0.5, reduce="multiply"),
        (ROWS,),
    ),
    "scatter_add": (lambda x: x.scatter_add(0, INTO, x[:3]), (ROWS,)),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, INTO, x[:3], "amax"), (ROWS,)),
    "index_put": (_put(AT), (ROWS,)),
    "index_put a number": (_put(AT, 1.5), (ROWS,)),
    "index_put by two": (_put((AT, AT), 1.5), (ROWS,)),
    "index_put on the second axis": (_put((slice(None), AT), 0.5), (LINES,)),
    "index_put apart": (
        _put((torch.tensor([0, 1]), slice(None), torch.tensor([2, 3])), 9.0),
        (LINES,),
    ),
    "index_put by a mask": (lambda x: x.index_put((x > 0,), torch.tensor(0.5)), (ROWS,)),
    "index_put by a mask of rows": (
        lambda x: x.index_put((x[:, 0] > 0,), torch.tensor(0.5)),
        (ROWS,),
    ),
    "index_put and add": (lambda x: x.index_put((AGAIN,), x[:3], accumulate=True), (ROWS,)),
    "index_copy": (lambda x: x.index_copy(1, AT, x[:, :3]), (ROWS,)),
    "index_add": (lambda x: x.index_add(0, AGAIN, x[:3]), (ROWS,)),
    "index_fill": (lambda x: x.index_fill(1, AT, 1.5), (ROWS,)),
    "index_fill by a tensor": (lambda x: x.index_fill(1, AT, torch.tensor(1.5)), (ROWS,)),
    "index by a mask": (lambda x: x[x > 0], (ROWS,)),
    "index rows by a mask": (lambda x: x[x[:, 0] > 0], (ROWS,)),
    "index x[:, i, j]": (lambda x: x[:, AT, AT], (LINES,)),
    "index x[i, :, j]": (lambda x: x[AT[:2] // 2, :, AT[:2]], (LINES,)),
    "index by shapes that broadcast": (lambda x: x[AT[:, None], AT], (ROWS,)),
    "masked_select": (lambda x: x.masked_select(x > 0), (ROWS,)),
    "nonzero": (lambda x: (x > 0).nonzero(), (ROWS,)),
    "unfold": (lambda x: x.unfold(2, 3, 2), (X,)),
    "diagonal": (lambda x: x.diagonal(1, 1, 2), (LINES,)),
    "diagonal below": (lambda x: x.diagonal(-2), (ROWS,)),
    "repeat_interleave": (
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1, 3]), dim=0),
        (ROWS,),
    ),
    "F.unfold": (lambda x: F.unfold(x, 3, dilation=2, padding=1, stride=2), (X,)),
    "F.fold": (lambda x: F.fold(x, (8, 8), 2, stride=2), (_random_floats(2, 16, 16),)),
    "max_pool2d with places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (X,)),
    "max_pool3d with places": (
        lambda x: F.max_pool3d(x, 2, return_indices=True),
        (_random_floats(1, 2, 4, 4, 4),),
    ),
    "max_pool1d with places": (lambda x: F.max_pool1d(x, 2, return_indices=True), (LINES,)),
    "max_unpool2d": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
        (X,),
    ),
    "max_unpool3d": (
        lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), [2, 2, 2]),
        (_random_floats(1, 2, 4, 4, 4),),
    ),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), (LINES,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), (X,)),
    "adaptive_max_pool2d to one": (lambda x: F.adaptive_max_pool2d(x, 1), (X,)),
    "adaptive_max_pool3d": (
        lambda x: F.adaptive_max_pool3d(x, 2),
        (_random_floats(1, 2, 4, 5, 6),),
    ),
    "EmbeddingBag": (nn.EmbeddingBag(7, 4, mode="sum"), (_random_indices(7, 2, 5),)),
    "EmbeddingBag with offsets": (
        lambda x: F.embedding_bag(torch.arange(2).repeat(3), x, AT, mode="max"),
        (ROWS,),
    ),
    "embedding_bag": (
        lambda x: torch.ops.aten.embedding_bag.default(
            x, torch.arange(5), AT, False, 1, False, None, False
        )[0],
        (ROWS,),
    ),
    "circular pad": (lambda x: F.pad(x, (1, 2, 0, 3), mode="circular"), (X,)),
    "batch norm of the batch": (
        lambda x: F.batch_norm(x, None, None, torch.ones(5) * 2, training=True),
        (LINES,),
    ),
    "cdist": (torch.cdist, (LINES, LINES.flip(1))),
    "cdist by sizes": (lambda x: torch.cdist(x, x.flip(0), p=1.0), (ROWS,)),
    "bilinear": (nn.Bilinear(6, 6, 3), (LINES, LINES.flip(0))),
    "inverse": (lambda x: torch.linalg.inv(x + 3 * torch.eye(4)), (_random_floats(2, 4, 4),)),
    "inverse of one": (lambda x: x.inverse(), (torch.eye(3) * 2 + 0.1,)),
    "det": (torch.linalg.det, (_random_floats(2, 4, 4),)),
    "var_mean": (lambda x: torch.var_mean(x, (1, 2), correction=0, keepdim=True), (LINES,)),
    "var_mean by axes": (lambda x: torch.ops.aten.var_mean.dim(x, [1]), (LINES,)),
    "std_mean": (lambda x: torch.std_mean(x, dim=1, correction=1), (LINES,)),
    "std_mean by axes": (lambda x: torch.ops.aten.std_mean.dim(x, [1]), (LINES,)),
    "aminmax": (lambda x: tuple(torch.aminmax(x, dim=1)), (LINES,)),
    "aminmax of all": (lambda x: tuple(torch.aminmax(x)), (LINES,)),
    "argmax of all": (torch.argmax, (LINES,)),
    "largest norm": (lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1), (ROWS,)),
    "cumprod": (lambda x: x.cumprod(1), (LINES,)),
    "fmod": (torch.fmod, (ROWS, ROWS.flip(0))),
    "fmod by a number": (lambda x: torch.fmod(x, 0.3), (ROWS,)),
    "integers toward zero": (lambda x: torch.div(x, 3, rounding_mode="trunc"), (WHOLE,)),
    "integers by numbers": (
        lambda x: torch.ops.aten.div.Scalar_mode(x, -2, rounding_mode="trunc"),
        (WHOLE,),
    ),
    "bits by numbers": (lambda x: ((x & 3) | 8) ^ 2, (WHOLE,)),
    "bits by tensors": (lambda x: (x.__and__(x.flip(0))).__or__(x).__xor__(x.flip(1)), (WHOLE,)),
    "bitwise by numbers": (
        lambda x: torch.bitwise_xor(torch.bitwise_or(torch.bitwise_and(x, 6), 8), 3),
        (WHOLE,),
    ),
    "eye": (lambda x: x @ torch.eye(6) + torch.eye(5, 6), (ROWS,)),
    "triangles": (
        lambda x: x[tuple(torch.tril_indices(5, 5))] * x[tuple(torch.triu_indices(5, 5))],
        (ROWS,),
    ),
    "windows": (lambda x: x * torch.hann_window(6) + torch.hamming_window(6), (ROWS,)),
    "nearest-exact": (lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"), (X,)),
    **{
        f"nearest-exact {n}d": (
            lambda x, n=n: F.interpolate(x, [5] * n, mode="nearest-exact"),
            (_random_floats(1, 2, *([4] * n)),),
        )
        for n in (1, 2, 3)
    },
    **{
        f"_upsample_nearest_exact{n}d": (
            lambda x, n=n: getattr(torch.ops.aten, f"_upsample_nearest_exact{n}d").default(
                x, [5] * n
            ),
            (_random_floats(1, 2, *([4] * n)),),
        )
        for n in (1, 2, 3)
    },
    **{
        f"grid_sample {mode} {outside} {corners}": (
            lambda x, grid, m=mode, o=outside, c=corners: F.grid_sample(x, grid, m, o, c),
            (X, _random_floats(2, 5, 3, 2) * 1.3),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for outside in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
}
"""What is read and computed as PyTorch does, by name."""


def indexing_cases() -> Iterator[tuple[str, Callable[..., Any], tuple[Tensor, ...]]]:
    """Yields all of them."""
    for name, (function, inputs) in INDEXING_CASES.items():
        yield name, function, inputs
