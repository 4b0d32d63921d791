"""Weights by a seed, the same on both sides: needs NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SEED = 20261126


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Returns parameters by name; outputs keep their size from layer to layer."""
    rng, made = np.random.RandomState(SEED), {}
    for name, shape in shapes.items():
        if name.endswith(("var", "gamma")):
            data = rng.uniform(0.5, 1.5, shape)
        else:
            reach = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
            data = rng.standard_normal(tuple(shape)) * reach
        made[name] = data.astype(np.float32)
    return made


def images(count: int, side: int) -> Any:
    """Returns images of random colours."""
    rng = np.random.RandomState(SEED + 1)
    return rng.standard_normal((count, 3, side, side)).astype(np.float32)
