"""The conditions under which PyTorch's quantized kernels compute a group."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.ops import spec
from qir.profiles.conditions import GroupCondition
from qir.rewrite.fusing import ChainMatch


def _has_per_tensor_weights(match: ChainMatch) -> bool:
    """The weights have one scale."""
    quant = match.operands[spec(match.anchor.op).traits.weight or "w"].type.quant
    return quant is None or quant.granularity is None


def _is_bilinear(match: ChainMatch) -> bool:
    """The resize is what aten::upsample_bilinear2d computes."""
    attrs, x, y = match.anchor.attrs, match.anchor.operands["x"].type, match.anchor.result.type
    # Without axes, the resized ones are those whose sizes differ.
    axes = attrs["axes"] or [i for i, size in enumerate(x.shape) if size != y.shape[i]]
    mode_attrs = (attrs["mode"], attrs["antialias"], attrs["policy"])
    has_known_coordinates = attrs["coordinates"] in ("half_pixel", "align_corners")
    assert isinstance(axes, list | tuple)
    return mode_attrs == ("linear", False, "stretch") and has_known_coordinates and len(axes) == 2


CONDITIONS: Mapping[str, GroupCondition] = {
    "one_scale": GroupCondition("all weights have one scale", _has_per_tensor_weights),
    "bilinear": GroupCondition(
        "it is linear along two axes, from half pixels or corners, without antialias", _is_bilinear
    ),
}
"""Group conditions by the names that profiles of PyTorch use."""
