"""Means over windows whose padding does not count, by means over whole windows.

Runtimes that pad both sides of an axis alike pad unevenly by an operator of its own, whose zeros
then count. The mean over a whole window times the window's size over the elements that count is the
mean that was meant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node


@dataclass(frozen=True)
class WholeWindows:
    """Padding that makes every window whole, and what the means are multiplied by."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    gains: NDArray[np.float32]
    """Shaped to go with the result, channels second."""


def whole_windows(node: Node) -> WholeWindows | None:
    """Returns how an average pool that counts no padding is computed by whole windows.

    None for images of unknown size.
    """
    shape, result_shape = node.operands["x"].type.shape, node.result.type.shape
    last = node.attrs.get("layout") == "NHWC"
    axes = range(1, len(shape) - 1) if last else range(2, len(shape))
    kernel, stride, pad = (_int_attribute(node, name) for name in ("kernel", "stride", "pad"))
    before, after, gains = pad[: len(axes)], list[int](), np.ones((1, 1), np.float64)
    for at, axis in enumerate(axes):
        size, count = shape[axis], result_shape[axis]
        if not isinstance(size, int) or not isinstance(count, int):
            return None
        # seen[i]: how many elements of window i are data, not padding.
        starts = np.arange(count) * stride[at] - before[at]
        seen = np.minimum(starts + kernel[at], size) - np.maximum(starts, 0)
        # A window of padding alone has no mean, and no factor makes one of the zeros in it.
        if not count or int(seen.min()) < 1:
            return None
        # Padding after the end, so that the last window is complete.
        after.append(max(0, int(starts[-1]) + kernel[at] - size))
        # A window's share is the product of its shares along each axis.
        gains = gains[..., None] * (kernel[at] / seen)
    return WholeWindows(before, tuple(after), gains.astype(np.float32))


def _int_attribute(node: Node, name: str) -> tuple[int, ...]:
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))
