"""Windows that slide over height and width, for convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qir.errors import OpError
from qir.records import record
from qir.reference.operands import Array, int_tuple


@record
class SlidingWindow:
    """How a window moves along one axis: `count` places, `span` elements of padded input."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    count: int

    @property
    def span(self) -> int:
        return max(0, self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @property
    def used(self) -> int:
        """How many elements of the input are in the span; no window sees the others."""
        return max(0, min(self.size, self.span - self.before))

    def tap(self, index: int) -> slice:
        """Returns what the kernel's element of that index sees, place after place."""
        start = index * self.dilation
        if not self.count:
            return slice(0, 0)
        return slice(start, start + (self.count - 1) * self.stride + 1, self.stride)


def windows(
    op: str,
    sizes: tuple[int, int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int] = (1, 1),
    *,
    ceil: bool = False,
) -> tuple[SlidingWindow, SlidingWindow]:
    """Returns the windows along height and width; raises OpError for attributes that cannot be
    meant."""
    k, s = int_tuple(op, "kernel", kernel, 2, 1), int_tuple(op, "stride", stride, 2, 1)
    d, p = int_tuple(op, "dilation", dilation, 2, 1), int_tuple(op, "pad", pad, 4, 0)
    height = _window(op, "height", sizes[0], k[0], s[0], d[0], (p[0], p[2]), ceil)
    return height, _window(op, "width", sizes[1], k[1], s[1], d[1], (p[1], p[3]), ceil)


def windows_along_axis(
    op: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil: bool = False,
) -> tuple[SlidingWindow, ...]:
    """Returns the windows along any number of axes; raises OpError for attributes that cannot be
    meant."""
    n = len(sizes)
    k, s = int_tuple(op, "kernel", kernel, n, 1), int_tuple(op, "stride", stride, n, 1)
    d, p = int_tuple(op, "dilation", dilation, n, 1), int_tuple(op, "pad", pad, 2 * n, 0)
    sides = zip(sizes, k, s, d, p[:n], p[n:], strict=True)
    return tuple(
        _window(op, f"axis {i + 2}", size, a, b, c, (low, high), ceil)
        for i, (size, a, b, c, low, high) in enumerate(sides)
    )


def pad_window(x: Array, along: Sequence[SlidingWindow], fill: Array) -> Array:
    """Returns a copy of x in the span of the windows along its last axes; its type is that of
    `fill`."""
    leading = x.shape[: x.ndim - len(along)]
    out = np.full((*leading, *(w.span for w in along)), fill, fill.dtype)
    all_leading = (slice(None),) * len(leading)
    # Elements beyond the last window are left out: they would widen the array for nothing.
    inside = tuple(slice(w.before, w.before + w.used) for w in along)
    out[all_leading + inside] = x[all_leading + tuple(slice(w.used) for w in along)]
    return out


def _window(
    op: str,
    name: str,
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    pad: tuple[int, int],
    ceil: bool,
) -> SlidingWindow:
    extent = (kernel - 1) * dilation + 1
    slack = size + sum(pad) - extent
    count = (-(-slack // stride) if ceil else slack // stride) + 1
    # ONNX: the window that ceil adds starts in the input or the pad before it, or is dropped.
    if ceil and (count - 1) * stride >= size + pad[0]:
        count -= 1
    # By less than a step: onnxruntime counts one window, of what there is; others refuse.
    is_short = "pool" in op and not ceil and slack < 0 and slack % stride
    if count < 0 or is_short:
        raise OpError(f"{op}: a window of {extent} is larger than the {name}, {size} + pad {pad}")
    return SlidingWindow(size, kernel, stride, dilation, *pad, count)


def padded(x: Array, height: SlidingWindow, width: SlidingWindow, fill: Array) -> Array:
    """Returns a copy of x [.., height, width] in the span of the windows; its type is that of
    `fill`."""
    out = np.full((*x.shape[:-2], height.span, width.span), fill, fill.dtype)
    rows = slice(height.before, height.before + height.used)
    columns = slice(width.before, width.before + width.used)
    out[..., rows, columns] = x[..., : height.used, : width.used]
    return out


def channels_first(op: str, x: Array, layout: str) -> Array:
    """Returns a view of x as [batch, channels, height, width]; raises OpError for another
    layout."""
    if layout not in ("NCHW", "NHWC"):
        raise OpError(f"{op}: layout {layout!r} is neither NCHW nor NHWC")
    return x if layout == "NCHW" else x.transpose(0, 3, 1, 2)


def restore_layout(y: Array, layout: str) -> Array:
    """Returns the result [batch, channels, height, width] in its layout, contiguous."""
    return np.ascontiguousarray(y if layout == "NCHW" else y.transpose(0, 2, 3, 1))


def blocks(count: int, cost: int, budget: int) -> Iterator[slice]:
    """Returns slices of `count` items, each within the budget if a single item is."""
    step = max(1, budget // max(1, cost))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))
