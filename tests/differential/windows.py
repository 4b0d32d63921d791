"""Sizes: how often a window fits, and which shapes go with others."""

from __future__ import annotations

import numpy as np


def window(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    pads: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil: bool = False,
) -> tuple[int, ...] | None:
    """Returns how often a window fits; None where it does not, or lies in padding alone."""
    counts = []
    for i in range(len(size)):
        free = size[i] + pads[i] + pads[i + len(size)] - (kernel[i] - 1) * dilation[i] - 1
        if free < 0:
            return None
        count = (-(-free // stride[i]) if ceil else free // stride[i]) + 1
        if ceil and (count - 1) * stride[i] >= size[i] + pads[i]:
            # onnxruntime drops this window when it runs, and counts it when it infers shapes.
            return None
        counts.append(count)
    return tuple(counts)


def broadcasts(small: tuple[int, ...], big: tuple[int, ...]) -> bool:
    """Returns whether a shape can be broadcast to another one without changing it."""
    if len(small) > len(big):
        return False
    return all(s in (1, b) for s, b in zip(small[::-1], big[::-1], strict=False))


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that both are broadcast to."""
    return tuple(np.broadcast_shapes(a, b))
