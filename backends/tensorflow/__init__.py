"""What TensorFlow's kernels compute: numerics profiles, no target yet."""

from pathlib import Path

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of TensorFlow lie."""

__all__ = ["PROFILES"]
