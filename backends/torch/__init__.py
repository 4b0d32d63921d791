"""What PyTorch's quantized engines compute: numerics profiles, no target yet."""

from pathlib import Path

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of PyTorch lie."""

__all__ = ["PROFILES"]
