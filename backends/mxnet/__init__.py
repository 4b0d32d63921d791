"""MXNet: numerics profiles, and the target that writes its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .target import MxnetTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of MXNet are."""
_HOMES = {
    "MxnetTarget": f"{__name__}.target",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = ["PROFILES", "MxnetTarget"]
