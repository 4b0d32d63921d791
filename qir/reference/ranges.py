"""Scale rules that several runtimes have, and the range of a tensor that a model computes.

Each rule computes in the types its framework computes in, step by step: it is held to the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import Choose
from qir.numerics.scale_rules import SYMMETRIC_TEXT, ScaleRequest, ScaleRule

Tensor = NDArray[np.generic]
Pair = tuple[Tensor, Tensor]
float32 = np.float32


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
        zeros = np.zeros(shape if keep else (), x.dtype)
        return zeros, zeros
    # reduceat takes a shorter last block too, which reshaping to blocks would not.
    reduced_axes = tuple(i for i in range(x.ndim) if i not in keep)
    ends: list[Tensor] = []
    for reduce in (np.minimum, np.maximum):
        extreme = reduce.reduce(x, axis=reduced_axes, keepdims=True) if reduced_axes else x
        for axis, size in zip(keep, blocks, strict=False):
            if size > 1:
                starts = np.arange(0, x.shape[axis], size)
                extreme = reduce.reduceat(extreme, starts, axis=axis)
        ends.append(np.asarray(extreme if keep else extreme.reshape(())))
    return ends[0], ends[1]


def _onnx(low: Tensor, high: Tensor, request: ScaleRequest) -> Pair:
    """ONNX's DynamicQuantizeLinear, as onnxruntime computes it: float32 throughout.

    A scale of 0 gives no number for the zero, which then is the extreme quantized value.
    """
    require_affine("onnx.dynamic", request)
    qmin, qmax = request.bounds
    least, greatest = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    with np.errstate(all="ignore"):
        scale = np.where(
            greatest == least, float32(1), (greatest - least) / float32(qmax - qmin)
        ).astype(float32)
        zero = float32(qmin) - least / scale
    rounded = np.rint(np.clip(zero, float32(qmin), float32(qmax)))
    return scale, np.where(np.isnan(zero), float32(qmax), rounded)


# FBGEMM's SMALL_SCALE_THRESHOLD.
_MIN_SCALE = float32(6.1e-5)


def _widened_in_f64(low: Tensor, high: Tensor, request: ScaleRequest) -> Pair:
    """PyTorch's dynamic layers (ChooseQuantizationParams): float64 between float32 ends.

    A range too small for its scale is widened. `bounds` 0:127 are what reduce_range asks for.
    """
    require_affine("torch.dynamic", request)
    require_finite("torch.dynamic", low, high)
    least, greatest = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    qmin, qmax = (float(b) for b in request.bounds)
    with np.errstate(all="ignore"):
        scale = (greatest.astype(np.float64) - least) / (qmax - qmin)
        is_zero = (scale.astype(float32) == 0) | np.isinf(float32(1) / scale.astype(float32))
        scale = np.where(is_zero, 0.1, scale)
        is_small = scale < _MIN_SCALE
        widening = _MIN_SCALE / scale.astype(float32)
        span = _MIN_SCALE * float32(qmax - qmin)
        widened_greatest = np.where(
            least == 0, span, np.where(greatest == 0, greatest, greatest * widening)
        )
        widened_least = np.where(
            greatest == 0, np.where(least == 0, least, -span), least * widening
        )
        least, greatest = (
            np.where(is_small, widened_least, least),
            np.where(is_small, widened_greatest, greatest),
        )
        scale = np.where(is_small, np.float64(_MIN_SCALE), scale)
        from_min = qmin - least.astype(np.float64) / scale
        from_max = qmax - greatest.astype(np.float64) / scale
        error_at_min = abs(qmin) - np.abs(least.astype(np.float64) / scale)
        error_at_max = abs(qmax) - np.abs(greatest.astype(np.float64) / scale)
        # The zero point from the end with the smaller rounding error, as FBGEMM's
        # ChooseQuantizationParams.
        start = np.where(error_at_min < error_at_max, from_min, from_max)
    zero = np.rint(np.clip(start, qmin, qmax))
    return scale, zero


def require_affine(rule: str, request: ScaleRequest) -> None:
    """Raises OpError for a symmetric type, which a rule has no scale for."""
    if request.symmetric:
        raise OpError(f"{rule} chooses an affine map, not a symmetric one")


def require_finite(rule: str, low: Tensor, high: Tensor) -> None:
    """Raises OpError for ranges with an end that is not finite."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise OpError(f"{rule}: x holds infinities, and no scale reaches them")


SHARED: Mapping[str, ScaleRule] = {
    "onnx.dynamic": ScaleRule(function=_onnx),
    "torch.dynamic": ScaleRule(function=_widened_in_f64),
    "onednn.i8": ScaleRule(
        Choose(levels=(("i8", 127.0),)),
        formula=SYMMETRIC_TEXT,
        storages=("i8",),
        symmetric=True,
        family="onednn",
    ),
    "onednn.u8": ScaleRule(
        Choose(reach="max", levels=(("u8", 255.0),)),
        formula="scale = max(rmin,rmax)/255",
        storages=("u8",),
        symmetric=True,
        family="onednn",
    ),
}
"""The scale rules that target files of several runtimes name, and that of ONNX's own operator."""
