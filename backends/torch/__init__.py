"""PyTorch: its engines for quantized tensors as targets, and the profiles of what they compute."""

from .target import FbgemmTarget, OnednnTarget, QnnpackTarget, X86Target
from .versions import PROFILES

__all__ = ["PROFILES", "FbgemmTarget", "OnednnTarget", "QnnpackTarget", "X86Target"]
