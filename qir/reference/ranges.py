"""Scale and zero from the range of a tensor, as frameworks choose them while a model runs.

Each rule computes in the types its framework computes in, step by step: it is held to the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType

Tensor = NDArray[np.generic]
Pair = tuple[Tensor, Tensor]
float32 = np.float32


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the numbers are chosen for."""

    storage: DType
    bounds: tuple[int, int]
    symmetric: bool


def extremes(x: Tensor, keep: tuple[int, ...], blocks: tuple[int, ...]) -> Pair:
    """Least and greatest element of each block of the kept axes, of all where none is kept.

    Of no elements both are 0. Raises OpError for NaN, which has no place in a range.
    """
    if np.isnan(x).any():
        raise OpError("x holds NaN, and no range has an end there")
    keep = tuple(axis % x.ndim for axis in keep)
    if not x.size:
        sizes = dict(zip(keep, blocks or (1,) * len(keep), strict=True))
        shape = [-(-d // sizes[i]) if i in sizes else 1 for i, d in enumerate(x.shape)]
        none = np.zeros(shape if keep else (), x.dtype)
        return none, none
    rest = tuple(i for i in range(x.ndim) if i not in keep)
    ends: list[Tensor] = []
    for reduce in (np.minimum, np.maximum):
        found = reduce.reduce(x, axis=rest, keepdims=True) if rest else x
        for axis, size in zip(keep, blocks, strict=False):
            if size > 1:
                starts = np.arange(0, x.shape[axis], size)
                found = reduce.reduceat(found, starts, axis=axis)
        ends.append(np.asarray(found if keep else found.reshape(())))
    return ends[0], ends[1]


def _onnx(low: Tensor, high: Tensor, wanted: Wanted) -> Pair:
    """ONNX's DynamicQuantizeLinear, as onnxruntime computes it: float32 throughout.

    A scale of 0 gives no number for the zero, which then is the extreme quantized value.
    """
    _affine("onnx.dynamic", wanted)
    first, last = wanted.bounds
    least, most = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    with np.errstate(all="ignore"):
        scale = np.where(most == least, float32(1), (most - least) / float32(last - first)).astype(
            float32
        )
        zero = float32(first) - least / scale
    near = np.rint(np.clip(zero, float32(first), float32(last)))
    return scale, np.where(np.isnan(zero), float32(last), near)


_SMALLEST = float32(6.1e-5)


def _widened_in_f64(low: Tensor, high: Tensor, wanted: Wanted) -> Pair:
    """PyTorch's dynamic layers (ChooseQuantizationParams): float64 between float32 ends.

    A range too small for its scale is widened. `bounds` 0:127 are what reduce_range asks for.
    """
    _affine("torch.dynamic", wanted)
    _finite("torch.dynamic", low, high)
    least, most = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    first, last = (float(b) for b in wanted.bounds)
    with np.errstate(all="ignore"):
        scale = (most.astype(np.float64) - least) / (last - first)
        tiny = (scale.astype(float32) == 0) | np.isinf(float32(1) / scale.astype(float32))
        scale = np.where(tiny, 0.1, scale)
        small = scale < _SMALLEST
        more = _SMALLEST / scale.astype(float32)
        span = _SMALLEST * float32(last - first)
        widest = np.where(least == 0, span, np.where(most == 0, most, most * more))
        lowest = np.where(most == 0, np.where(least == 0, least, -span), least * more)
        least, most = np.where(small, lowest, least), np.where(small, widest, most)
        scale = np.where(small, np.float64(_SMALLEST), scale)
        from_min = first - least.astype(np.float64) / scale
        from_max = last - most.astype(np.float64) / scale
        below = abs(first) - np.abs(least.astype(np.float64) / scale)
        above = abs(last) - np.abs(most.astype(np.float64) / scale)
        start = np.where(below < above, from_min, from_max)
    zero = np.rint(np.clip(start, first, last))
    return scale, zero


def _per_token(low: Tensor, high: Tensor, wanted: Wanted) -> Pair:
    """torchao's asymmetric choice for each token, in float32; the zero is nudged to one end.

    A symmetric one reaches as far as the larger end, never less than 1e-5.
    """
    _finite("torchao.per_token", low, high)
    first, last = wanted.bounds
    if wanted.symmetric:
        reach = np.maximum(np.abs(low.astype(float32)), np.abs(high.astype(float32)))
        return np.maximum(reach, float32(1e-5)) / float32(last), np.zeros(reach.shape)
    least, most = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    with np.errstate(all="ignore"):
        scale = np.maximum((most - least) / float32(last - first), np.finfo(float32).eps)
        below, above = least / scale, most / scale
        nearer = (float32(first) + below) + (float32(last) + above) > 0
        zero = np.where(nearer, float32(first) - below, float32(last) - above)
    return scale, np.rint(np.clip(zero, float32(first), float32(last)))


def _affine(rule: str, wanted: Wanted) -> None:
    if wanted.symmetric:
        raise OpError(f"{rule} chooses an affine map, not a symmetric one")


def _finite(rule: str, low: Tensor, high: Tensor) -> None:
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise OpError(f"{rule}: x holds infinities, and no scale reaches them")


RULES: Mapping[str, Callable[[Tensor, Tensor, Wanted], Pair]] = {
    "onnx.dynamic": _onnx,
    "torch.dynamic": _widened_in_f64,
    "torchao.per_token": _per_token,
}
"""The rules by name; those of the core's profiles are known too, and `profile` is the node's."""
