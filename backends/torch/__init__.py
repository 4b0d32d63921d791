"""PyTorch: its engines for quantized tensors as targets, and the profiles of what they compute."""

from .target import ExportedTarget, FbgemmTarget, OnednnTarget, QnnpackTarget, X86Target
from .versions import PROFILES

__all__ = [
    "PROFILES",
    "ExportedTarget",
    "FbgemmTarget",
    "OnednnTarget",
    "QnnpackTarget",
    "X86Target",
]
