"""What Intel's extension for PyTorch computes: a numerics profile, no target yet."""

from pathlib import Path

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profile of the extension lies."""

__all__ = ["PROFILES"]
