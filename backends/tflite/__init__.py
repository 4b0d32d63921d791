"""What TensorFlow Lite computes: numerics profiles, no target yet."""

from pathlib import Path

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of TensorFlow Lite are."""

__all__ = ["PROFILES"]
