"""TensorFlow: the numerics of its kernels, and the target that writes and runs its graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .target import TensorFlowTarget

PROFILES = Path(__file__).with_name("profiles")
"""The folder of the numerics profiles of TensorFlow."""
INTEL = Path(__file__).with_name("intel.toml")
"""The target of Intel's last public wheel."""
_HOMES = {
    "TensorFlowTarget": f"{__name__}.target",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = ["INTEL", "PROFILES", "TensorFlowTarget"]
