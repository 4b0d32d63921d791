"""Sums of float64 in one documented order, which QIR's kernels follow too.

Lane l adds the numbers l, l + 16, l + 32 ... of a row in order, from 0 on; then the upper half of
the lanes is added to the lower, until one number is left.
"""

from __future__ import annotations

import numpy as np

from qir.reference.operands import Float64Array

LANES = 16


def lane_sum(x: Float64Array) -> Float64Array:
    """Returns the sums along the last axis, which is kept as 1."""
    width = x.shape[-1]
    total = np.zeros((*x.shape[:-1], LANES))
    for start in range(0, width - LANES + 1, LANES):
        total += x[..., start : start + LANES]
    # The last, incomplete run goes into the first lanes.
    if rest := width % LANES:
        total[..., :rest] += x[..., width - rest :]
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        total = total[..., :lanes] + total[..., lanes:]
    return total
