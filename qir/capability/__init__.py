"""What a target can run, as data; and how a program, op by op, stands against it."""

from __future__ import annotations

from qir.capability.table import Capability, ChainCapability, Defect, OpCapability, load
from qir.capability.verdicts import REAL, Verdict, no_row, verdicts

__all__ = [
    "REAL",
    "Capability",
    "ChainCapability",
    "Defect",
    "OpCapability",
    "Verdict",
    "load",
    "no_row",
    "verdicts",
]
