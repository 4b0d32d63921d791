"""What a target supports, as data, and how a program compares with it, op by op."""

from __future__ import annotations

from qir.capability.files import load
from qir.capability.table import (
    Capability,
    ChainCapability,
    Defect,
    Dynamic,
    OpCapability,
    OpCondition,
)
from qir.capability.verdicts import REAL, Verdict, no_row, verdicts

__all__ = [
    "REAL",
    "Capability",
    "ChainCapability",
    "Defect",
    "Dynamic",
    "OpCapability",
    "OpCondition",
    "Verdict",
    "load",
    "no_row",
    "verdicts",
]
