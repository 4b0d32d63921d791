"""im2col and col2im, grid_sample, max pools with indices, embedding_bag."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall

_MODES = ("linear", "nearest", "cubic")
_OUTSIDE = ("zeros", "border", "reflection")


def _im2col(call: OverloadCall) -> Value:
    x = call.value("self")
    if x.type.rank != 4:
        raise KeepCall("it takes columns of an image without a batch")
    return call.add("unfold", {"x": x}, _window(call, "kernel_size"))


def _col2im(call: OverloadCall) -> Value:
    x = call.value("self")
    if x.type.rank != 3:
        raise KeepCall("it makes an image without a batch")
    size: dict[str, Attr] = {"size": call.integers("output_size", 2)}
    return call.add("fold", {"x": x}, size | _window(call, "kernel_size"))


def _window(call: OverloadCall, kernel: str) -> dict[str, Attr]:
    return {
        "kernel": call.integers(kernel, 2),
        "stride": call.integers("stride", 2),
        "pad": call.integers("padding", 2) * 2,
        "dilation": call.integers("dilation", 2),
    }


def _grid_sample(call: OverloadCall) -> Value:
    operands = {"x": call.value("input"), "grid": call.value("grid")}
    attrs: dict[str, Attr] = {
        # Index by ATen's enums GridSamplerInterpolation and GridSamplerPadding.
        "mode": _MODES[call.integer("interpolation_mode")],
        "outside": _OUTSIDE[call.integer("padding_mode")],
        "align_corners": call.flag("align_corners"),
    }
    return call.add("grid_sample", operands, attrs)


def _max_pool_with_indices(axes: int) -> Callable[[OverloadCall], list[Value]]:
    """Returns the converter of a max pool with indices; PyTorch counts them within a plane."""

    def read(call: OverloadCall) -> list[Value]:
        x = call.value("self")
        if x.type.rank != axes + 2:
            raise KeepCall
        attrs: dict[str, Attr] = {
            "kernel": call.integers("kernel_size", axes),
            # An empty stride means the kernel's size.
            "stride": call.integers("stride", axes) or call.integers("kernel_size", axes),
            "pad": call.integers("padding", axes) * 2,
            "dilation": call.integers("dilation", axes),
            "ceil": call.flag("ceil_mode"),
            "counted": "plane",
        }
        return list(call.add_many("max_pool_places", {"x": x}, attrs))

    return read


def _max_unpool(call: OverloadCall) -> Value:
    x, indices = call.value("self"), call.value("indices")
    size = call.result.shape
    if not all(isinstance(s, int) for s in size):
        raise KeepCall("it makes an image of unknown size")
    attrs: dict[str, Attr] = {"size": tuple(map(int, size)), "counted": "plane"}
    return call.add("max_unpool", {"x": x, "places": indices}, attrs)


def _adaptive_max(axes: int) -> Callable[[OverloadCall], list[Value | None]]:
    """Returns the converter of an adaptive max pool; raises KeepCall if its indices are used."""

    def read(call: OverloadCall) -> list[Value | None]:
        x, requested = call.value("self"), call["output_size"]
        if x.type.rank != axes + 2 or call.is_result_used(1):
            raise KeepCall("it says where the greatest elements are")
        size = call.integers("output_size", axes)
        if len(size) != axes or requested is None:
            raise KeepCall
        # Size 1 along all axes is a global pool, which every backend has.
        if all(s == 1 for s in size):
            return [call.add("global_max_pool", {"x": x}), None]
        return [call.add("adaptive_max_pool", {"x": x}, {"size": size}), None]

    return read


def _embedding_bag(call: OverloadCall) -> list[Value | None]:
    """Reads `embedding_bag`; raises KeepCall if other results than the bags are used."""
    if any(call.is_result_used(place) for place in (1, 2, 3)) or call.flag("scale_grad_by_freq"):
        raise KeepCall("it says which bags its rows are of")
    # By the numbers of ATen's EmbeddingBagMode.
    mode = ("sum", "mean", "max")[call.integer("mode")]
    operands = {
        "w": call.value("weight"),
        "indices": call.value("indices"),
        "offsets": call.value("offsets"),
        "weights": call.optional("per_sample_weights"),
    }
    attrs: dict[str, Attr] = {"mode": mode, "last": call.flag("include_last_offset")}
    padding = call.arguments.get("padding_idx")
    if isinstance(padding, int) and padding >= 0:
        attrs["padding"] = padding
    return [call.add("embedding_bag", operands, attrs), None, None, None]


OPS: dict[str, Callable[[OverloadCall], Value | list[Value] | list[Value | None]]] = {
    "im2col.default": _im2col,
    "col2im.default": _col2im,
    "grid_sampler.default": _grid_sample,
    "max_pool1d_with_indices.default": _max_pool_with_indices(1),
    "max_pool2d_with_indices.default": _max_pool_with_indices(2),
    "max_pool3d_with_indices.default": _max_pool_with_indices(3),
    "max_unpool2d.default": _max_unpool,
    "max_unpool3d.default": _max_unpool,
    "adaptive_max_pool1d.default": _adaptive_max(1),
    "adaptive_max_pool2d.default": _adaptive_max(2),
    "adaptive_max_pool3d.default": _adaptive_max(3),
    "embedding_bag.default": _embedding_bag,
    "embedding_bag.padding_idx": _embedding_bag,
}
