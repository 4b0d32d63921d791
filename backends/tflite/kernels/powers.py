"""e to a power in float32, to the last bit as the C library of Linux has it.

It is not always the nearest float32: in one of two thousand it is the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PARTS = 32
_TURN = float.fromhex("0x1.71547652b82fep+0") * _PARTS
"""Steps of 2 to 1/32 in a step of e."""
_CUBE = tuple(
    float.fromhex(text) / _PARTS**power
    for text, power in (
        ("0x1.c6af84b912394p-5", 3),
        ("0x1.ebfce50fac4f3p-3", 2),
        ("0x1.62e42ff0c52d6p-1", 1),
    )
)
_ROOTS = 2.0 ** (np.arange(_PARTS) / _PARTS)


def expf(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """e^x by a table of 32 powers of two and a cubic in float64, rounded once."""
    # Arguments beyond these give 0 or infinity in float32 anyway.
    with np.errstate(all="ignore"):
        steps = np.clip(x.astype(np.float64), -150.0, 130.0) * _TURN
        rounded = np.rint(steps)
        remainder, number = steps - rounded, rounded.astype(np.int64)
        # 2^(number / 32) = 2^(number % 32 / 32) * 2^(number // 32)
        root = np.ldexp(_ROOTS[number % _PARTS], number // _PARTS)
        polynomial = (_CUBE[0] * remainder + _CUBE[1]) * (remainder * remainder) + (
            _CUBE[2] * remainder + 1.0
        )
        return np.asarray((polynomial * root).astype(np.float32))
