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
from qir.capability.verdicts import COMPUTES_IN_FLOAT, Verdict, unsupported_op_text, verdicts

__all__ = [
    "COMPUTES_IN_FLOAT",
    "Capability",
    "ChainCapability",
    "Defect",
    "Dynamic",
    "OpCapability",
    "OpCondition",
    "Verdict",
    "load",
    "unsupported_op_text",
    "verdicts",
]
