"""TensorFlow: the numerics of its kernels, and the target that writes and runs its graphs."""

from pathlib import Path

from .target import TensorFlowTarget

PROFILES = Path(__file__).with_name("profiles")
"""The folder of the numerics profiles of TensorFlow."""

__all__ = ["PROFILES", "TensorFlowTarget"]
