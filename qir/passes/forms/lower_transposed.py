"""Rewrites transposed convolutions as convolutions whose channels become pixels.

    graph main as native {
      %x = input() : 1x1x3x3xf32
      %w = constant([1.0, 2.0, 3.0, 4.0]) : 1x1x2x2xf32
      %t = conv_transpose2d(%x, %w) {stride = (2, 2)} : 1x1x6x6xf32
      %y = relu(%t) : 1x1x6x6xf32
      output(y=%y)
    }

By `lower-transposed` it becomes:

    graph main as native {
      %x = input() : 1x1x3x3xf32
      %t.weight = constant([1.0, 2.0, 3.0, 4.0]) : 4x1x1x1xf32
      %t.pixels = conv2d(%x, %t.weight) : 1x4x3x3xf32
      %y.pixels = relu(%t.pixels) : 1x4x3x3xf32
      %y = depth_to_space(%y.pixels) {block = 2} : 1x1x6x6xf32
      output(y=%y)
    }

Runtimes have integer kernels for that convolution and often none for a transposed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED

_OPEN_END = (1 << 63) - 1
"""The end of a slice that keeps what is there."""


@dataclass(frozen=True)
class _Axis:
    """How one axis is padded and cut.

    A result pixel is stride * quotient + phase, before the padding is cut off. Each phase has taps
    of its own, a stride apart, and all phases read the same data: one convolution of `taps` taps
    whose channels are the phases.
    """

    taps: int
    before: int
    after: int
    """Zeros around the data."""
    start: int
    end: int
    """Pixels to cut off, after the phases became pixels."""

    @classmethod
    def of(cls, span: int, stride: int, pads: tuple[int, int], output_pad: int) -> _Axis:
        """Returns the numbers for a kernel that spans so many pixels, dilated."""
        low, high = pads
        # The phase with the most taps decides; the others have zeros for the rest.
        taps = -(-span // stride)
        before = max(taps - 1 - low // stride, 0)
        after = max((span - high + output_pad - 1) // stride, 0)
        start = low - (taps - 1 - before) * stride
        # Sizes of n pixels: the convolution makes n + before + after - taps + 1 of them.
        made = (before + after - taps + 1) * stride
        kept = span - stride - low - high + output_pad
        return cls(taps, before, after, start, made - kept - start)


@dataclass(frozen=True)
class LowerTransposed(Pass):
    """Rewrites a conv_transpose2d of constant filters, without groups and with one stride for both
    axes, as a conv2d and a depth_to_space, whose border is cut off.

    Elementwise ops after it come before the pixels are moved, so that runtimes fuse them with the
    convolution. Where the stride does not divide the kernel's size, filters get zeros: a kernel of
    3 and stride 2 has 16 taps in place of 9.
    """

    name = "lower-transposed"
    tolerance = REGROUPED

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Yields a transposed convolution that doubles an image, and a relu."""
        taps = ", ".join(f"{tap}.0" for tap in range(9))
        text = (
            "graph main as native {\n  %x = input() : 1x1x3x3xf32\n"
            f"  %w = constant([{taps}]) : 1x1x3x3xf32\n"
            "  %t = conv_transpose2d(%x, %w) "
            "{stride = (2, 2), pad = (1, 0, 0, 1)} : 1x1x6x6xf32\n"
            "  %y = relu(%t) : 1x1x6x6xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op != "conv_transpose2d" or not _is_supported(node):
                continue
            if not may(self.name, "lower", node):
                continue
            name = node.name
            _lower(graph, node)
            ledger.add(Change.REGROUPED, self.name, name, "a convolution to channels, then pixels")
            count += 1
        return count + (graph.prune() if count else 0)


def _is_supported(node: Node) -> bool:
    values = (*node.operands.values(), node.result)
    if node.schemes or any(value.type.quant for value in values):
        return False
    vertical, horizontal = _ints(node, "stride")
    weight = node.operands["w"].constant
    return weight is not None and node.attrs["groups"] == 1 and vertical == horizontal


def _ints(node: Node, name: str) -> tuple[int, ...]:
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return tuple(int(each) for each in value)  # type: ignore[arg-type]


def _lower(graph: Graph, node: Node) -> None:
    (stride, _), dilation, pad = (_ints(node, name) for name in ("stride", "dilation", "pad"))
    weight = node.operands["w"].constant
    assert weight is not None
    filters = _dilated(weight.data, dilation)
    axes = [
        _Axis.of(span, stride, (pad[i], pad[i + 2]), extra)
        for i, (span, extra) in enumerate(
            zip(filters.shape[2:], _ints(node, "output_pad"), strict=True)
        )
    ]
    taps = _phases(filters, stride, [axis.taps for axis in axes])
    stem = node.name
    operands = {
        "x": node.operands["x"],
        "w": graph.constant(taps, name=graph.fresh(f"{stem}.weight"), before=node),
    }
    bias = node.operands.get("bias")
    if bias is not None:
        operands["bias"] = _repeated(graph, node, bias, stride * stride)
    pads = (*(axis.before for axis in axes), *(axis.after for axis in axes))
    last = graph.add(
        "conv2d",
        operands,
        {"pad": pads},
        name=graph.fresh(f"{stem}.pixels"),
        before=node,
        origins=node.origins,
        profile=node.profile,
    )
    # Elementwise ops go before the pixels are moved; the last of them is replaced.
    replaced = node
    gone: list[Node] = []
    while (follower := _elementwise_user(replaced)) is not None:
        (slot,) = follower.operands
        last = graph.add(
            follower.op,
            {slot: last.result},
            follower.attrs,
            name=graph.fresh(f"{follower.name}.pixels"),
            before=follower,
            origins=follower.origins,
            profile=follower.profile,
        )
        gone.append(replaced)
        replaced = follower
    moved = _as_pixels(graph, replaced, last.result, stride, axes)
    graph.substitute(replaced, moved)
    for each in reversed(gone):
        graph.remove(each)


def _elementwise_user(node: Node) -> Node | None:
    """Returns the float elementwise op of one operand that alone reads a node's result."""
    use = node.result.only_use
    if use is None or use.node.schemes or use.node.bodies or len(use.node.operands) != 1:
        return None
    is_float = use.node.results and use.node.results[0].type.dtype == node.result.type.dtype
    return use.node if spec(use.node.op).traits.elementwise and is_float else None


def _dilated(filters: np.ndarray, dilation: Sequence[int]) -> np.ndarray:
    """Returns filters with the zeros between their taps."""
    spans = [(k - 1) * d + 1 for k, d in zip(filters.shape[2:], dilation, strict=True)]
    spread = np.zeros((*filters.shape[:2], *spans), filters.dtype)
    rows, columns = dilation
    spread[..., ::rows, ::columns] = filters
    return spread


def _phases(filters: np.ndarray, stride: int, taps: Sequence[int]) -> np.ndarray:
    """Returns the filters of the convolution: one result channel a phase and channel.

    Phase r of a row has the taps r, r + stride, r + 2 * stride, ..., the last one first.
    """
    inner, outer, *spans = filters.shape
    ends = [count * stride - span for count, span in zip(taps, spans, strict=True)]
    whole = np.pad(filters, [(0, 0), (0, 0), *((0, end) for end in ends)])
    split = whole.reshape(inner, outer, taps[0], stride, taps[1], stride)
    # Reversed, for a convolution reads its taps forwards and a transposed one spreads them
    # backwards.
    by_phase = split[:, :, ::-1, :, ::-1, :].transpose(3, 5, 1, 0, 2, 4)
    return np.ascontiguousarray(by_phase.reshape(stride * stride * outer, inner, *taps))


def _repeated(graph: Graph, node: Node, bias: Value, times: int) -> Value:
    """Returns a bias for the channels of all phases."""
    name = graph.fresh(f"{node.name}.bias")
    if bias.constant is not None:
        return graph.constant(np.tile(bias.constant.data, times), name=name, before=node)
    attrs: dict[str, Attr] = {"repeats": (times,)}
    return graph.add("tile", {"x": bias}, attrs, name=name, before=node).result


def _as_pixels(
    graph: Graph, node: Node, channels: Value, stride: int, axes: Sequence[_Axis]
) -> Value:
    """Returns the pixels that channels hold, without the border."""
    pixels, kind = channels, node.result.type
    is_whole = not any(axis.start or axis.end for axis in axes)
    if stride > 1:
        attrs: dict[str, Attr] = {"block": stride}
        types = [kind] if is_whole else None
        moved = graph.add("depth_to_space", {"x": channels}, attrs, types=types, before=node)
        pixels = moved.result
    if is_whole:
        return pixels
    attrs = {
        "starts": tuple(axis.start for axis in axes),
        "ends": tuple(-axis.end if axis.end else _OPEN_END for axis in axes),
        "axes": (2, 3),
        "steps": (1, 1),
    }
    # Of open sizes a slice does not know that they are those of the transposed convolution.
    return graph.add("slice", {"x": pixels}, attrs, types=[kind], before=node).result
