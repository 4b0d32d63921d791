"""Intel's extension for PyTorch: its numerics profile, and targets that write its recipes."""

from pathlib import Path

from .reader import read_recipe, read_schemes
from .target import IpexSignedTarget, IpexSymmetricTarget, IpexTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profile of the extension is."""

__all__ = [
    "PROFILES",
    "IpexSignedTarget",
    "IpexSymmetricTarget",
    "IpexTarget",
    "read_recipe",
    "read_schemes",
]
