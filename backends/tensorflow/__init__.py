"""TensorFlow: the numerics of its kernels, and the target that writes and runs its graphs."""

from pathlib import Path

from .target import TensorFlowTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of TensorFlow lie."""

__all__ = ["PROFILES", "TensorFlowTarget"]
