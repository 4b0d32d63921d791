"""Pooling over windows and over whole images."""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir.node import Node
from qir.rewrite.window_shares import whole_windows

from .layers import int_list_attr, padded, paddings
from .symbol import Entry
from .writer import OpWriter, SymbolWriter

_LOWEST_FLOAT32 = -3.4028234663852886e38


def pool_attributes(writer: SymbolWriter, node: Node, kind: str) -> dict[str, object]:
    """Returns the attributes of a pool with the same padding on both sides."""
    before, _ = paddings(node)
    attrs: dict[str, object] = {
        "kernel": int_list_attr(node, "kernel"),
        "stride": int_list_attr(node, "stride"),
        "pad": before,
        "pool_type": kind,
        "pooling_convention": _convention(writer, node),
    }
    if kind == "avg":
        attrs["count_include_pad"] = node.attrs["count_pad"]
    return attrs


def require_no_dilation(writer: SymbolWriter, node: Node) -> None:
    """Refuses windows that MXNet's pools do not have."""
    if any(step != 1 for step in int_list_attr(node, "dilation") if "dilation" in node.attrs):
        raise writer.refuse(node, "MXNet's pools have no dilation")


def _convention(writer: SymbolWriter, node: Node) -> str:
    """Returns how windows are counted that hang over the end of the data."""
    if not node.attrs["ceil"]:
        return "valid"
    before, after = paddings(node)
    kernel, stride = int_list_attr(node, "kernel"), int_list_attr(node, "stride")
    x = node.operands["x"]
    sides = zip(kernel, stride, before, after, range(2, x.type.rank), strict=True)
    # With stride <= kernel - pad, the last window of `ceil` always begins inside the data.
    if all(s <= k - b for k, s, b, _, _ in sides):
        return "full"
    is_full = True
    for k, s, b, a, axis in zip(kernel, stride, before, after, range(2, x.type.rank), strict=True):
        # Number of windows with rounding up: ceil((size + pads - kernel) / stride) + 1.
        span = writer.size(node, x, axis) + b + a - k
        count = -(-span // s) + 1
        is_full = is_full and count == writer.size(node, node.result, axis)
    if is_full:
        return "full"
    if _has_no_overhang(writer, node, kernel, stride, before, after):
        return "valid"
    raise writer.refuse(node, "its last window begins beyond the data, for which MXNet has a row")


def _has_no_overhang(
    writer: SymbolWriter,
    node: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    *pads: Sequence[int],
) -> bool:
    """Returns whether no window hangs over the end of the data."""
    x = node.operands["x"]
    return all(
        (writer.size(node, x, axis) + b + a - k) // s + 1 == writer.size(node, node.result, axis)
        for k, s, b, a, axis in zip(kernel, stride, *pads, range(2, x.type.rank), strict=True)
    )


def _pool(kind: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        if "dilation" in node.attrs:
            require_no_dilation(writer, node)
        x, attrs = writer.operand(node), pool_attributes(writer, node, kind)
        before, after = paddings(node)
        if kind == "lp":
            attrs["p_value"] = node.attrs["p"]
        if before != after:
            if kind == "avg" and not node.attrs["count_pad"]:
                return _mean_of_padded(writer, node, x, attrs)
            if kind not in ("max", "avg"):
                raise writer.refuse(node, "it pads one side more than the other")
            x = padded(writer, node, x, (before, after), _LOWEST_FLOAT32 if kind == "max" else 0.0)
            attrs["pad"] = (0,) * len(before)
        return writer.add_result(node, "Pooling", [x], attrs)

    return write


def _mean_of_padded(writer: SymbolWriter, node: Node, x: Entry, attrs: dict[str, object]) -> Entry:
    """Adds means whose padding differs before and after and does not count."""
    windows = whole_windows(node)
    if windows is None:
        reason = (
            "it pads one side more than the other, without counting that: state the image's size"
        )
        raise writer.refuse(node, reason)
    x = padded(writer, node, x, (windows.before, windows.after), 0.0)
    # The mean of padded data, times the factor by which each window counts too many elements.
    no_padding = {"pad": (0,) * len(windows.before), "pooling_convention": "valid"}
    means = writer.add_intermediate(node, "Pooling", [x], {**attrs, **no_padding})
    gains = writer.constant(f"{node.name}_gains", windows.gains, node)
    return writer.add_result(node, "broadcast_mul", [means, gains], {})


def _global_pool(kind: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        return writer.add_result(
            node, "Pooling", [writer.operand(node)], global_pool_attributes(node, kind)
        )

    return write


def global_pool_attributes(node: Node, kind: str) -> dict[str, object]:
    """Returns the attributes of a pool over whole images."""
    axes = node.operands["x"].type.rank - 2
    attrs: dict[str, object] = {"kernel": (1,) * axes, "global_pool": True, "pool_type": kind}
    return attrs | ({"p_value": node.attrs["p"]} if kind == "lp" else {})


def _adaptive(writer: SymbolWriter, node: Node) -> Entry:
    size = int_list_attr(node, "size")
    if len(size) == 2:
        attrs = {"output_size": size}
        return writer.add_result(
            node, "_contrib_AdaptiveAvgPooling2D", [writer.operand(node)], attrs
        )
    raise writer.refuse(node, f"MXNet has adaptive pools along 2 axes, this has {len(size)}")


OPS: dict[str, OpWriter] = {
    **{f"{kind}_pool{axes}d": _pool(kind) for kind in ("max", "avg", "lp") for axes in (1, 2, 3)},
    **{f"global_{kind}_pool": _global_pool(kind) for kind in ("max", "avg", "lp")},
    "adaptive_avg_pool": _adaptive,
}
