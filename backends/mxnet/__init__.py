"""What MXNet's kernels compute: numerics profiles, no target yet."""

from pathlib import Path

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of MXNet lie."""

__all__ = ["PROFILES"]
