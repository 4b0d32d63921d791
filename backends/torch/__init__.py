"""PyTorch: its engines for quantized tensors as targets, and the profiles of what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

from .versions import PROFILES

if TYPE_CHECKING:
    from .target import ExportedTarget, FbgemmTarget, OnednnTarget, QnnpackTarget, X86Target

FBGEMM_SYMMETRIC = Path(__file__).with_name("fbgemm_symmetric.toml")
"""The target file of FBGEMM with symmetric activations."""
_HOMES = {
    "ExportedTarget": f"{__name__}.target",
    "FbgemmTarget": f"{__name__}.target",
    "OnednnTarget": f"{__name__}.target",
    "QnnpackTarget": f"{__name__}.target",
    "X86Target": f"{__name__}.target",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = [
    "FBGEMM_SYMMETRIC",
    "PROFILES",
    "ExportedTarget",
    "FbgemmTarget",
    "OnednnTarget",
    "QnnpackTarget",
    "X86Target",
]
