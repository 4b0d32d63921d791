"""Interpolation: upsample_nearest, linear, bilinear, bicubic."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from . import sizes
from .call import KeepCall, OverloadCall, are_known, int64_array


def _resize(axes: int, mode: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("input" if "input" in call.arguments else "self")
        spatial = tuple(range(2, 2 + axes))
        wanted = [call.result.shape[axis] for axis in spatial]
        if x.type.rank != axes + 2:
            raise KeepCall
        attrs: dict[str, Attr] = {"axes": spatial, "coordinates": "asymmetric", "rounding": "floor"}
        if mode == "exact":
            attrs |= {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"}
        elif mode != "nearest":
            one = 1 in wanted or not are_known(wanted)
            half = "pytorch_half_pixel" if one else "half_pixel"  # differ in sizes of 1
            coordinates = "align_corners" if call.flag("align_corners") else half
            attrs = {"axes": spatial, "coordinates": coordinates, "mode": mode}
        operands = {"x": x}
        if scales := _stated_scales(call, axes):
            attrs["scales"] = scales
        elif are_known(wanted):
            numbers = int64_array([int(size) for size in wanted])
            name = call.reader.names(call.node, "sizes")
            operands["sizes"] = call.reader.graph.constant(numbers, name=name)
        else:
            operands["sizes"] = sizes.exact_shape_operand(
                call.reader, call.node, call["output_size"]
            )
        nearest = mode in ("nearest", "exact")
        return call.add("resize_nearest" if nearest else "resize", operands, attrs)

    return read


def _stated_scales(call: OverloadCall, axes: int) -> tuple[float, ...]:
    """Returns the scale factors that PyTorch uses for coordinates; empty if it uses the sizes."""
    held = call.arguments.get("scale_factors")
    if held is None:
        held = [call.arguments.get(name) for name in ("scales_h", "scales_w")[-axes:]]
        held = None if any(s is None for s in held) else held
    if held is None:
        return ()
    if not all(isinstance(factor, (int, float)) for factor in held):
        raise KeepCall
    return tuple(float(factor) for factor in held)


OPS = {
    **{
        f"{name}.{form}": _resize(axes, mode)
        for name, axes, mode in (
            ("upsample_nearest1d", 1, "nearest"),
            ("upsample_nearest2d", 2, "nearest"),
            ("upsample_nearest3d", 3, "nearest"),
            ("upsample_linear1d", 1, "linear"),
            ("upsample_bilinear2d", 2, "linear"),
            ("upsample_trilinear3d", 3, "linear"),
            ("upsample_bicubic2d", 2, "cubic"),
            ("_upsample_nearest_exact1d", 1, "exact"),
            ("_upsample_nearest_exact2d", 2, "exact"),
            ("_upsample_nearest_exact3d", 3, "exact"),
        )
        for form in ("vec", "default")
    },
}
