"""What MXNet is given: integers, ranges as it holds them, weights that sums mean exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

F = np.float32
Codes = {"int8": (np.int8, 127.5, -128), "uint8": (np.uint8, 255.5, 0)}


def random_integers(rng: np.random.RandomState, kind: str, *shape: int) -> Any:
    dtype, _, low = Codes[kind]
    return rng.randint(low, low + 256, shape).astype(dtype)


def printed(value: float) -> float:
    """A range as MXNet's files hold it: six decimals, then a float32."""
    return float(F(float(f"{value:f}")))


def on_grid(x: Any, w: Any, spans: Any) -> Any:
    """Data and weights whose sums mean what they are computed of, and are few.

    The weight that reaches farthest lies between two integers: its data are 0.
    """
    x = x.copy()
    x[:, 0] = 0
    step = (spans / 127.5).reshape(-1, *(1,) * (w.ndim - 1))
    near = np.round(w / step / 5) * step
    near[:, 0] = w[:, 0]
    return x, near.astype(F)
