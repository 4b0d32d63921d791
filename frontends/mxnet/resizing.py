"""UpSampling and BilinearResize2D."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import SymbolCall, int64_array
from .results import Unsupported


def _nearest(call: SymbolCall, x: Value, scale: int) -> Value:
    attrs: dict[str, Attr] = {
        "axes": (2, 3),
        "coordinates": "asymmetric",
        "rounding": "floor",
        "scales": (float(scale), float(scale)),
    }
    return call.add("resize_nearest", {"x": x}, attrs)


def _up_sampling(call: SymbolCall) -> Value:
    call.ignore("num_args", "num_filter")
    scale = call.attrs.integer("scale")
    if call.choice("sample_type", "", "nearest", "bilinear") == "bilinear":
        # As UpSampling sets up its Deconvolution: ceil((scale - 1) / 2).
        pad = (scale - 1 + 1) // 2
        attrs: dict[str, Attr] = {
            "stride": (scale, scale),
            "pad": (pad,) * 4,
            "groups": call.size(call.value(1), 0),
        }
        return call.add("conv_transpose2d", {"x": call.value(0), "w": call.value(1)}, attrs)
    mode = call.choice("multi_input_mode", "concat", "concat", "sum")
    first, *others = call.values()
    parts = [_nearest(call, first, scale)]
    for x in others:
        target_sizes = [call.size(first, axis) * scale for axis in (2, 3)]
        factor = target_sizes[0] // call.size(x, 2)
        if [call.size(x, axis) * factor for axis in (2, 3)] != target_sizes:
            raise Unsupported("its operands have sizes that no whole factor makes equal")
        parts.append(_nearest(call, x, factor))
    if len(parts) == 1:
        return parts[0]
    operands = {f"xs.{i}": p for i, p in enumerate(parts)}
    return call.add("sum", operands) if mode == "sum" else call.add("concat", operands, {"axis": 1})


def _bilinear_resize(call: SymbolCall) -> Value:
    """Reads BilinearResize2D, which aligns corners unless an attribute says otherwise."""
    x = call.value(0)
    mode = call.choice("mode", "size", "size", "like")
    aligns_corners = call.attrs.flag("align_corners", True)
    attrs: dict[str, Attr] = {
        "axes": (2, 3),
        "coordinates": "align_corners" if aligns_corners else "half_pixel",
        "mode": "linear",
    }
    if mode == "like":
        call.ignore("height", "width", "scale_height", "scale_width")
        like = call.add("shape", {"x": call.value(1)}, {"start": 2, "end": 4})
        return call.add("resize", {"x": x, "sizes": like}, attrs)
    if call.attrs.is_given("scale_height"):
        scales = [call.attrs.number(f"scale_{side}") for side in ("height", "width")]
        size = [int(s * call.size(x, 2 + i)) for i, s in enumerate(scales)]
        call.ignore("height", "width")
    else:
        size = [call.attrs.integer(side) for side in ("height", "width")]
    return call.add("resize", {"x": x, "sizes": call.constant(int64_array(size), "sizes")}, attrs)


OPS: dict[str, Callable[[SymbolCall], Value]] = {
    "UpSampling": _up_sampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
}
