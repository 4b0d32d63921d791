"""Pooling by windows, in the conventions valid and full, global and adaptive."""

from __future__ import annotations

from math import prod

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import SymbolCall, Unsupported


def _global_pool(call: SymbolCall, x: Value, kind: str) -> Value:
    call.ignore("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
    spatial = tuple(range(2, x.type.rank))
    if kind == "sum":
        return call.add("reduce_sum", {"x": x}, {"axes": spatial, "keep": True})
    if kind == "lp":
        return call.add("global_lp_pool", {"x": x}, {"p": call.attrs.integer("p_value")})
    return call.add(f"global_{kind}_pool", {"x": x})


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
    made: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": pad * 2, "ceil": False}
    each = list(zip(kernel, stride, pad, range(2, 2 + axes), strict=True))
    if convention == "full":
        if any(_last_window_is_outside(call, x, *one) for one in each):
            raise Unsupported("the last window of pooling_convention full is beyond the data")
        made["ceil"] = True
    return made


def _pooling(call: SymbolCall) -> Value:
    x = call.value(0)
    call.choice("layout", "", "", "NCW", "NCHW", "NCDHW")
    kind = call.choice("pool_type", "max", "max", "avg", "sum", "lp")
    if kind != "lp":
        call.ignore("p_value")
    if call.attrs.flag("global_pool"):
        return _global_pool(call, x, kind)
    attrs = window_attrs(call)
    kernel = call.attrs.integers("kernel")
    axes, counted = len(kernel), call.attrs.flag("count_include_pad", True)
    if kind == "max":
        return call.add(f"max_pool{axes}d", {"x": x}, attrs)
    if kind == "lp":
        return call.add(f"lp_pool{axes}d", {"x": x}, attrs | {"p": call.attrs.integer("p_value")})
    if kind == "sum":
        if attrs["ceil"]:
            raise Unsupported("pool_type sum is read in the convention valid only")
        counted = True
    made = call.add(f"avg_pool{axes}d", {"x": x}, attrs | {"count_pad": counted})
    if kind == "avg":
        return made
    return call.add("mul", {"a": made, "b": call.number(float(prod(kernel)), x.type.dtype)})


def _adaptive(call: SymbolCall) -> Value:
    x, size = call.value(0), call.attrs.integers("output_size", (1,))
    return call.add("adaptive_avg_pool", {"x": x}, {"size": size * (2 if len(size) == 1 else 1)})


OPS = {"Pooling": _pooling, "_contrib_AdaptiveAvgPooling2D": _adaptive}
