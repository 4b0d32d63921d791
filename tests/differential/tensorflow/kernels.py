"""TensorFlow's own kernels, run op by op in a process of their own, with oneDNN or without it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

if TYPE_CHECKING:
    from backends.tensorflow import kernel_runs
else:
    from qir.backends.tensorflow import kernel_runs

Array = NDArray[Any]
KINDS = {"qint8": "i8", "quint8": "u8", "qint32": "i32"}
BOUNDS = {"qint8": (-128, 127), "quint8": (0, 255), "qint32": (-(2**31), 2**31 - 1)}
SETTINGS = {"tf-2.21.onednn": True, "tf-2.21.core": False}
"""The profiles that differ by whether oneDNN is on."""
CPU = Path("/proc/cpuinfo")
HAS_VNNI = not CPU.exists() or "vnni" in CPU.read_text()
"""Whether oneDNN adds products of bytes without saturating pairs, as the profiles say it does."""
_CARRIERS = {"qint8": np.int8, "quint8": np.uint8, "qint32": np.int32}
Asked, Attr, Kind, Kinds = (
    kernel_runs.GraphRequest,
    kernel_runs.Attr,
    kernel_runs.RequestedType,
    kernel_runs.RequestedTypes,
)


class TensorFlow(kernel_runs.TensorFlow):
    """A child process in which TensorFlow runs what it is asked for."""

    def __init__(self, *, onednn: bool) -> None:
        if importlib.util.find_spec("tensorflow") is None:
            pytest.skip("TensorFlow is not installed: its kernels are not compared")
        super().__init__(onednn=onednn)


@contextmanager
def started() -> Iterator[dict[str, TensorFlow]]:
    """A runtime for each profile, which ends with the block."""
    by_profile = {name: TensorFlow(onednn=has_onednn) for name, has_onednn in SETTINGS.items()}
    try:
        yield by_profile
    finally:
        for runtime in by_profile.values():
            runtime.close()


def random_integers(rng: np.random.Generator, kind: str, *shape: int) -> Array:
    """Any integers of a type."""
    low, high = BOUNDS[kind]
    return rng.integers(low, high, shape, endpoint=True).astype(_CARRIERS[kind])
