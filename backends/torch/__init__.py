"""PyTorch: its engines for quantized tensors as targets, and the profiles of what they compute."""

from pathlib import Path

from .target import ExportedTarget, FbgemmTarget, OnednnTarget, QnnpackTarget, X86Target
from .versions import PROFILES

FBGEMM_SYMMETRIC = Path(__file__).with_name("fbgemm_symmetric.toml")
"""The target file of FBGEMM with symmetric activations."""

__all__ = [
    "FBGEMM_SYMMETRIC",
    "PROFILES",
    "ExportedTarget",
    "FbgemmTarget",
    "OnednnTarget",
    "QnnpackTarget",
    "X86Target",
]
