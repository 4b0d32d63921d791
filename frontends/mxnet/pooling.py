"""Pooling by windows, in the conventions valid and full, global and adaptive."""

from __future__ import annotations

from math import prod

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import SymbolCall
from .results import Unsupported


def _global_pool(call: SymbolCall, x: Value, pool_type: str) -> Value:
    call.ignore("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
    spatial = tuple(range(2, x.type.rank))
    if pool_type == "sum":
        return call.add("reduce_sum", {"x": x}, {"axes": spatial, "keep": True})
    if pool_type == "lp":
        return call.add("global_lp_pool", {"x": x}, {"p": call.attrs.integer("p_value")})
    return call.add(f"global_{pool_type}_pool", {"x": x})


def _last_window_is_outside(
    call: SymbolCall, x: Value, kernel: int, stride: int, pad: int, axis: int
) -> bool:
    """Returns whether the last window of convention full starts outside the data."""
    if stride <= kernel - pad:
        return False
    size = call.size(x, axis)
    count = -(-(size + 2 * pad - kernel) // stride) + 1
    return (count - 1) * stride >= size + pad


def window_attrs(call: SymbolCall) -> dict[str, Attr]:
    """Returns the window attributes; convention full is `ceil`."""
    x, kernel = call.value(0), call.attrs.integers("kernel")
    axes = len(kernel)
    if axes not in (1, 2, 3):
        raise Unsupported(f"kernel is {kernel}, it must have 1 to 3 axes")
    if x.type.rank != axes + 2:
        raise Unsupported(f"kernel has {axes} axes, the data have {x.type.rank}")
    stride = call.attrs.integers("stride", (1,) * axes)
    pad = call.attrs.integers("pad", (0,) * axes)
    convention = call.choice("pooling_convention", "valid", "valid", "full")
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": pad * 2, "ceil": False}
    by_axis = list(zip(kernel, stride, pad, range(2, 2 + axes), strict=True))
    if convention == "full":
        if any(_last_window_is_outside(call, x, *window) for window in by_axis):
            raise Unsupported("the last window of pooling_convention full is beyond the data")
        attrs["ceil"] = True
    return attrs


def _pooling(call: SymbolCall) -> Value:
    x = call.value(0)
    call.choice("layout", "", "", "NCW", "NCHW", "NCDHW")
    pool_type = call.choice("pool_type", "max", "max", "avg", "sum", "lp")
    if pool_type != "lp":
        call.ignore("p_value")
    if call.attrs.flag("global_pool"):
        return _global_pool(call, x, pool_type)
    attrs = window_attrs(call)
    kernel = call.attrs.integers("kernel")
    axes, counts_padding = len(kernel), call.attrs.flag("count_include_pad", True)
    if pool_type == "max":
        return call.add(f"max_pool{axes}d", {"x": x}, attrs)
    if pool_type == "lp":
        return call.add(f"lp_pool{axes}d", {"x": x}, attrs | {"p": call.attrs.integer("p_value")})
    if pool_type == "sum":
        if attrs["ceil"]:
            raise Unsupported("pool_type sum is read in the convention valid only")
        counts_padding = True
    average = call.add(f"avg_pool{axes}d", {"x": x}, attrs | {"count_pad": counts_padding})
    if pool_type == "avg":
        return average
    # A sum is the average times the count of elements, if padding is counted.
    return call.add("mul", {"a": average, "b": call.number(float(prod(kernel)), x.type.dtype)})


def _adaptive(call: SymbolCall) -> Value:
    x, size = call.value(0), call.attrs.integers("output_size", (1,))
    return call.add("adaptive_avg_pool", {"x": x}, {"size": size * (2 if len(size) == 1 else 1)})


OPS = {"Pooling": _pooling, "_contrib_AdaptiveAvgPooling2D": _adaptive}
