"""MXNet: numerics profiles, and the target that writes its files."""

from pathlib import Path

from .target import MxnetTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of MXNet are."""

__all__ = ["PROFILES", "MxnetTarget"]
