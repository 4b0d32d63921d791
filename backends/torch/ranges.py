"""The scale rules of PyTorch's observers, of FBGEMM's formulas and of torchao."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.numerics import Choose
from qir.numerics.scale_rules import AFFINE_TEXT, ScaleRequest, ScaleRule
from qir.reference.ranges import Pair, Tensor, float32, require_finite

_EIGHT_BIT = ("u8", "i8")


def _per_token(low: Tensor, high: Tensor, request: ScaleRequest) -> Pair:
    """torchao's asymmetric choice for each token, in float32; the zero is nudged to one end.

    A symmetric one reaches as far as the larger end, never less than 1e-5.
    """
    require_finite("torchao.per_token", low, high)
    qmin, qmax = request.bounds
    if request.symmetric:
        absmax = np.maximum(np.abs(low.astype(float32)), np.abs(high.astype(float32)))
        return np.maximum(absmax, float32(1e-5)) / float32(qmax), np.zeros(absmax.shape)
    least, greatest = (
        np.minimum(low.astype(float32), float32(0)),
        np.maximum(high.astype(float32), float32(0)),
    )
    with np.errstate(all="ignore"):
        scale = np.maximum((greatest - least) / float32(qmax - qmin), np.finfo(float32).eps)
        below, above = least / scale, greatest / scale
        min_is_nearer = (float32(qmin) + below) + (float32(qmax) + above) > 0
        zero = np.where(min_is_nearer, float32(qmin) - below, float32(qmax) - above)
    return scale, np.rint(np.clip(zero, float32(qmin), float32(qmax)))


RANGES: Mapping[str, ScaleRule] = {
    "fbgemm.symmetric": ScaleRule(
        Choose(levels=(("*", 127.5),)),
        formula="scale = max(|rmin|,|rmax|)/(255/2)",
        storages=_EIGHT_BIT,
        symmetric=True,
        note="zero_point = 128 of u8",
        family="fbgemm",
    ),
    "fbgemm.affine": ScaleRule(
        Choose(zero="qmin-round(min/s)"),
        formula=AFFINE_TEXT,
        storages=_EIGHT_BIT,
        symmetric=False,
        family="fbgemm",
    ),
    "torch.observer": ScaleRule(
        Choose(zero="qmin-round(min/s)", small=f"floor:{2.0**-23!r}"),
        formula="scale = max((rmax-rmin)/255, 2^-23), zero_point = 0 - round(rmin/scale)",
    ),
    "torch.qnnpack.symmetric": ScaleRule(
        Choose(zero="qmin-round(min/s)", small=f"floor:{2.0**-12!r}"),
        formula="scale = max((rmax-rmin)/255, 2^-12), zero_point = 0 - round(rmin/scale); of "
        "default_symmetric_qnnpack_qconfig",
    ),
    "torchao.per_token": ScaleRule(function=_per_token),
}
"""Rules by name; FBGEMM's are the formulas of the support matrix."""
