"""Interpolation of images."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall


def _coordinates(call: NodeCall, nearest: bool) -> dict[str, Attr]:
    if call.flag("align_corners"):
        place, rounding = "align_corners", "round_prefer_ceil"
    elif call.flag("half_pixel_centers"):
        place, rounding = "tf_half_pixel_for_nn" if nearest else "half_pixel", "floor"
    else:
        place, rounding = "asymmetric", "floor"
    found: dict[str, Attr] = {"coordinates": place}
    return {**found, "rounding": rounding} if nearest else found


def _nearest(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"axes": (1, 2), **_coordinates(call, True)}
    return call.add("resize_nearest", {"x": call[0], "sizes": call.row(call.sizes(1))}, attrs)


def _bilinear(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"axes": (1, 2), "mode": "linear", **_coordinates(call, False)}
    return call.add("resize", {"x": call[0], "sizes": call.row(call.sizes(1))}, attrs)


OPS: dict[str, Callable[[NodeCall], Value]] = {
    "ResizeNearestNeighbor": _nearest,
    "ResizeBilinear": _bilinear,
}
