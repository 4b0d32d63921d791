"""Resizing by interpolation, along any axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import require_floats
from qir.ir.ops.granularity import unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = ("linear", "cubic")
POLICIES = ("stretch", "not_larger", "not_smaller")
_MAX_DENOMINATOR = 64


def scaled(size: int, scale: float) -> int:
    """Returns the size that a scale makes; ONNX multiplies in float32."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def proportion(policy: str, sizes: Sequence[int], target: Sequence[int]) -> np.float32:
    """Returns the scale that keeps the proportions, no size larger or none smaller than what is
    wanted."""
    # ONNX's keep_aspect_ratio_policy: one scale for all axes.
    choose = min if policy == "not_larger" else max
    ratios = (np.float32(w) / np.float32(s) for w, s in zip(target, sizes, strict=True))
    return choose(ratios, default=np.float32(1))


def rounded(size: int, scale: np.float32) -> int:
    """Returns the nearest whole size to a float32 product, the larger one of two."""
    return int(np.floor(np.float64(np.float32(size) * scale) + 0.5))


def _check(call: Call) -> tuple[int, ...]:
    """Returns the axes that are resized; raises TypeRuleError for attributes that cannot be
    meant."""
    words = {"coordinates": COORDINATES, "policy": POLICIES, "rounding": ROUNDINGS, "mode": MODES}
    for name, known in words.items():
        if name in call.attrs and call.text_attr(name) not in known:
            raise call.fail(f"{name} {call.text_attr(name)!r} is none of {', '.join(known)}")
    rank = len(call.shape("x"))
    axes = call.axes_attr("axes", rank) or tuple(range(rank))
    scales, roi = call.float_list_attr("scales"), call.float_list_attr("roi")
    if bool(scales) == ("sizes" in call.types):
        raise call.fail("it takes scales or sizes, one of the two")
    if scales and (len(scales) != len(axes) or not all(0 < s < 2**31 for s in scales)):
        raise call.fail(f"scales {scales} are no {len(axes)} positive numbers")
    if len(roi) not in (0, 2 * len(axes)):
        raise call.fail(f"roi has {len(roi)} numbers, it takes {2 * len(axes)}")
    if call.text_attr("coordinates") == "tf_crop_and_resize" and not roi:
        raise call.fail("tf_crop_and_resize needs a roi")
    return axes


def _resize(call: Call) -> tuple[TensorType, ...]:
    axes, shape = _check(call), list(call.shape("x"))
    if call.op == "resize":
        require_floats(call)
    sizes = _sizes(call, tuple(shape[a] for a in axes))
    for axis, size in zip(axes, sizes, strict=True):
        if shape[axis] == 0 and size != 0:
            raise call.fail(f"axis {axis} of x is empty, it cannot become {size}")
        shape[axis] = size
    return (TensorType(tuple(shape), call.express("x")),)


def _sizes(call: Call, old_sizes: Shape) -> Sequence[Dim]:
    if scales := call.float_list_attr("scales"):
        return [_scaled(d, s) for d, s in zip(old_sizes, scales, strict=True)]
    kind, constant = call.types["sizes"], call.constant("sizes")
    if kind.rank != 1 or kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"sizes are {kind}, they take one row of whole numbers")
    if not dims.may_be_equal(kind.shape[0], len(old_sizes)):
        raise call.fail(f"{kind.shape[0]} sizes for {len(old_sizes)} axes")
    if constant is None:
        return [None] * len(old_sizes)
    target: list[int] = constant.tolist()
    if min(target, default=1) < 1:
        raise call.fail(f"sizes {target}: each must be 1 or more")
    if call.text_attr("policy") == "stretch":
        return target
    old = dims.known_shape(old_sizes)
    if not old or 0 in old:
        return [None] * len(old_sizes)
    scale = proportion(call.text_attr("policy"), old, target)
    return [rounded(d, scale) for d in old]


def _scaled(size: Dim, scale: float) -> Dim:
    if isinstance(size, int):
        return scaled(size, scale)
    # A scale such as 2.0 or 0.5 keeps a symbolic size exact; one such as 1.2 has a denominator of
    # 2**52, and no such size is worth writing down.
    numerator, denominator = scale.as_integer_ratio()
    if denominator > _MAX_DENOMINATOR:
        return None
    return dims.divide(dims.multiply(size, numerator), denominator)


def _move(call: Call, element: QuantType) -> QuantType | None:
    shape, result_shape = call.shape("x"), _resize(call)[0].shape
    scales, axes = (
        call.float_list_attr("scales"),
        call.axes_attr("axes", len(shape)) or tuple(range(len(shape))),
    )
    if scales:
        unchanged = {a for a, s in zip(axes, scales, strict=True) if s == 1.0}
    else:
        unchanged = {a for a in axes if shape[a] == result_shape[a] and isinstance(shape[a], int)}
    # These coordinates move elements even along axes that keep their size.
    if call.text_attr("coordinates").startswith("tf_"):
        unchanged = set()
    return unless_along_axes(element, *(a for a in axes if a not in unchanged))


_OPERANDS = (Slot("x"), Slot("sizes", optional=True))
_RESIZE_ATTRS = (
    AttrSpec("scales", "floats", ()),
    AttrSpec("axes", "ints", ()),
    AttrSpec("coordinates", "text", "half_pixel"),
    AttrSpec("policy", "text", "stretch"),
    AttrSpec("roi", "floats", ()),
    AttrSpec("extrapolation", "float", 0.0),
)

OPS = (
    OpSpec(
        "resize_nearest",
        _OPERANDS,
        _resize,
        (*_RESIZE_ATTRS, AttrSpec("rounding", "text", "round_prefer_floor")),
        Traits(same_params=("x",), value_preserving=True),
        _move,
        doc="each element the nearest of x; the axes are all where none is named, and their "
        "sizes come as an operand or from scales. Places are float32, each step rounded, over the "
        "scale (by sizes: the new one over the old); a half is what is within 1e-6 of one. A "
        "result of the sizes of x is x, but for a crop",
    ),
    OpSpec(
        "resize",
        _OPERANDS,
        _resize,
        (
            *_RESIZE_ATTRS,
            AttrSpec("mode", "text", "linear"),
            AttrSpec("cubic_a", "float", -0.75),
            AttrSpec("exclude_outside", "bool", False),
            AttrSpec("antialias", "bool", False),
        ),
        doc="each element interpolated between those of x, by lines or by cubic splines, at the "
        "places that resize_nearest has; antialias leaves an axis that keeps its size as it is",
    ),
)
