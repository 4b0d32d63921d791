"""Interpolation: upsample_nearest, linear, bilinear, bicubic."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall
from .shape_operands import exact_shape_operand
from .sizes import are_known, int64_array


def _resize(axes: int, mode: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("input" if "input" in call.arguments else "self")
        spatial = tuple(range(2, 2 + axes))
        sizes_requested = [call.result.shape[axis] for axis in spatial]
        if x.type.rank != axes + 2:
            raise KeepCall
        # ATen's nearest is floor(index * scale); `nearest_exact` looks at pixel centers.
        attrs: dict[str, Attr] = {"axes": spatial, "coordinates": "asymmetric", "rounding": "floor"}
        if mode == "exact":
            attrs |= {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"}
        elif mode != "nearest":
            may_be_one = 1 in sizes_requested or not are_known(sizes_requested)
            half_pixel = (
                "pytorch_half_pixel" if may_be_one else "half_pixel"
            )  # differ in sizes of 1
            coordinates = "align_corners" if call.flag("align_corners") else half_pixel
            attrs = {"axes": spatial, "coordinates": coordinates, "mode": mode}
        operands = {"x": x}
        if scales := _stated_scales(call, axes):
            attrs["scales"] = scales
        elif are_known(sizes_requested):
            sizes_array = int64_array([int(size) for size in sizes_requested])
            name = call.reader.names(call.node, "sizes")
            operands["sizes"] = call.reader.graph.constant(sizes_array, name=name)
        else:
            operands["sizes"] = exact_shape_operand(call.reader, call.node, call["output_size"])
        is_nearest = mode in ("nearest", "exact")
        return call.add("resize_nearest" if is_nearest else "resize", operands, attrs)

    return read


def _stated_scales(call: OverloadCall, axes: int) -> tuple[float, ...]:
    """Returns the scale factors that PyTorch uses for coordinates; empty if it uses the sizes."""
    factors = call.arguments.get("scale_factors")
    # Factors that a call states are used for coordinates, not the quotient of the sizes.
    if factors is None:
        factors = [call.arguments.get(name) for name in ("scales_h", "scales_w")[-axes:]]
        factors = None if any(s is None for s in factors) else factors
    if factors is None:
        return ()
    if not all(isinstance(factor, (int, float)) for factor in factors):
        raise KeepCall
    return tuple(float(factor) for factor in factors)


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
