"""Pooling along one, two and three axes, to windows and to sizes."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _window_attrs(call: OverloadCall, axes: int) -> dict[str, Attr]:
    kernel = call.integers("kernel_size", axes)
    return {
        "kernel": kernel,
        "stride": call.integers("stride", axes) or kernel,
        "pad": call.integers("padding", axes) * 2,
        "ceil": call.flag("ceil_mode"),
    }


def _max_pool(axes: int) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        if x.type.rank != axes + 2:
            raise KeepCall
        attrs = _window_attrs(call, axes) | {"dilation": call.integers("dilation", axes)}
        return call.add(f"max_pool{axes}d", {"x": x}, attrs)

    return read


def _avg_pool(axes: int) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        # A divisor of its own replaces the count of elements: decomposed by PyTorch.
        if x.type.rank != axes + 2 or call.arguments.get("divisor_override") is not None:
            raise KeepCall
        attrs = _window_attrs(call, axes) | {"count_pad": call.flag("count_include_pad")}
        return call.add(f"avg_pool{axes}d", {"x": x}, attrs)

    return read


def _adaptive(axes: int) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        if x.type.rank != axes + 2:
            raise KeepCall
        # None keeps the size of the axis, which the language writes as -1.
        size = tuple(-1 if s is None else s for s in _output_size(call, axes))
        if all(s == 1 for s in size):
            return call.add("global_avg_pool", {"x": x})
        return call.add("adaptive_avg_pool", {"x": x}, {"size": size})

    return read


def _output_size(call: OverloadCall, axes: int) -> tuple[int, ...]:
    requested = call["output_size"]
    items = [requested] * axes if isinstance(requested, int) else list(requested)
    if not all(item is None or isinstance(item, int) for item in items):
        raise KeepCall
    return tuple(items) * (axes if len(items) == 1 else 1)


OPS = {
    **{f"max_pool{axes}d.default": _max_pool(axes) for axes in (1, 2, 3)},
    **{f"avg_pool{axes}d.default": _avg_pool(axes) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d.default": _adaptive(axes) for axes in (1, 2, 3)},
}
