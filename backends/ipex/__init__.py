"""Intel's extension for PyTorch: its numerics profile, and targets that write its recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .reader import read_recipe, read_schemes
    from .target import IpexSignedTarget, IpexSymmetricTarget, IpexTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profile of the extension is."""
_HOMES = {
    "read_recipe": f"{__name__}.reader",
    "read_schemes": f"{__name__}.reader",
    "IpexSignedTarget": f"{__name__}.target",
    "IpexSymmetricTarget": f"{__name__}.target",
    "IpexTarget": f"{__name__}.target",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = [
    "PROFILES",
    "IpexSignedTarget",
    "IpexSymmetricTarget",
    "IpexTarget",
    "read_recipe",
    "read_schemes",
]
