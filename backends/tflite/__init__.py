"""TensorFlow Lite: the numerics of its kernels, and the target that writes and runs its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .target import TfliteTarget

PROFILES = Path(__file__).with_name("profiles")
"""The folder of the numerics profiles of TensorFlow Lite."""
SIXTEEN = Path(__file__).with_name("sixteen.toml")
"""The target file of data of 16 bits and weights of 8."""
_HOMES = {
    "TfliteTarget": f"{__name__}.target",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = ["PROFILES", "SIXTEEN", "TfliteTarget"]
