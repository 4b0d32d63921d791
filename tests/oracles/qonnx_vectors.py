"""Records what qonnx's Quant gives; the cases need NumPy alone, recording needs `qonnx`.

python -m venv lab && lab/bin/pip install qonnx==1.0.0
lab/bin/python -m tests.oracles.qonnx_vectors
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VECTORS = Path(__file__).parents[1] / "differential" / "vectors" / "qonnx"
MODES = ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP")
F = np.float32


@dataclass(frozen=True, eq=False)
class Case:
    """Floats, and how they are quantized."""

    x: NDArray[np.float32]
    scale: float
    zero: int
    bits: int
    signed: bool
    narrow: bool
    mode: str

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest code."""
        if self.signed:
            return -(2 ** (self.bits - 1)) + self.narrow, 2 ** (self.bits - 1) - 1
        return 0, 2**self.bits - 1 - self.narrow


def cases() -> Iterator[Case]:
    """Every mode, width, sign and narrowness: on ties, beside them, and beyond the ends."""
    number = 0
    for mode in MODES:
        for bits in (2, 3, 4, 8):
            for signed, narrow in ((True, False), (True, True), (False, False), (False, True)):
                seed = np.random.default_rng(number)
                scale = 2.0 ** -float(seed.integers(1, 6))
                scale = scale if number % 2 else float(F(seed.uniform(0.01, 0.5)))
                reach = 2**bits
                steps = seed.uniform(-reach, reach, 1000)
                steps[::2] = np.floor(steps[::2]) + 0.5
                zero = 0 if number % 3 == 0 else int(seed.integers(0, 2 ** (bits - 1)))
                x = (steps * scale).astype(F)
                yield Case(x, scale, zero, bits, signed, narrow, mode)
                number += 1


def digest() -> str:
    """A hash of all inputs."""
    state = hashlib.sha256()
    for case in cases():
        state.update(repr((case.scale, case.zero, case.bounds, case.mode)).encode())
        state.update(case.x.tobytes())
    return state.hexdigest()[:32]


def record() -> None:
    """Writes the results of all cases, one after the other."""
    from qonnx.custom_op.general.intquant import int_quant

    found = [
        int_quant(
            case.x,
            F(case.scale),
            F(case.zero),
            np.array(case.bits, F),
            case.signed,
            case.narrow,
            case.mode,
        )
        for case in cases()
    ]
    VECTORS.mkdir(parents=True, exist_ok=True)
    y = np.stack(found).astype(F)
    np.savez_compressed(VECTORS / "quant.npz", y=y, inputs=digest(), runtime="qonnx 1.0.0")
    print(f"{y.size} results")


if __name__ == "__main__":
    record()
