"""ResizeNearestNeighbor and ResizeBilinear."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall


def _coordinate_attrs(call: NodeCall, is_nearest: bool) -> dict[str, Attr]:
    if call.flag("align_corners"):
        coordinates, rounding = "align_corners", "round_prefer_ceil"
    elif call.flag("half_pixel_centers"):
        # TensorFlow's nearest neighbour with half-pixel centers is floor((i + 0.5) * scale),
        # without the last - 0.5.
        coordinates, rounding = "tf_half_pixel_for_nn" if is_nearest else "half_pixel", "floor"
    else:
        coordinates, rounding = "asymmetric", "floor"
    attrs: dict[str, Attr] = {"coordinates": coordinates}
    return {**attrs, "rounding": rounding} if is_nearest else attrs


def _nearest(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"axes": (1, 2), **_coordinate_attrs(call, True)}
    return call.add(
        "resize_nearest", {"x": call[0], "sizes": call.int64_constant(call.integers(1))}, attrs
    )


def _bilinear(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"axes": (1, 2), "mode": "linear", **_coordinate_attrs(call, False)}
    return call.add("resize", {"x": call[0], "sizes": call.int64_constant(call.integers(1))}, attrs)


OPS: dict[str, Callable[[NodeCall], Value]] = {
    "ResizeNearestNeighbor": _nearest,
    "ResizeBilinear": _bilinear,
}
