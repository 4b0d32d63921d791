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
    """How often a window fits; None where it does not, or where it lies in padding alone."""
    found = []
    for i in range(len(size)):
        room = size[i] + pads[i] + pads[i + len(size)] - (kernel[i] - 1) * dilation[i] - 1
        if room < 0:
            return None
        count = (-(-room // stride[i]) if ceil else room // stride[i]) + 1
        if ceil and (count - 1) * stride[i] >= size[i] + pads[i]:
            # onnxruntime drops this window when it runs, and counts it when it infers shapes.
            return None
        found.append(count)
    return tuple(found)


def broadcasts(small: tuple[int, ...], big: tuple[int, ...]) -> bool:
    """Whether a shape goes with another and leaves it as it is."""
    if len(small) > len(big):
        return False
    return all(s in (1, b) for s, b in zip(small[::-1], big[::-1], strict=False))


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of both together."""
    return tuple(np.broadcast_shapes(a, b))
