"""Conditions of groups: what must hold of a chain of ops for a runtime to have one kernel for it.

A group asks for them with `needs = [...]`. They are found by the entry point `qir.conditions`:
those of one runtime are in its backend's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qir import registry
from qir.records import record

KIND = "qir.conditions"
"""The entry points of conditions; each names a `GroupCondition` or a table of them by name."""


@record
class GroupCondition:
    """A question about a chain of ops between dequantize and quantize."""

    description: str
    """What must hold, as it follows "needs that" in messages."""
    met: Callable[[Any], bool]
    """Answers it for a `qir.rewrite.fusing.Match`."""
    of_types: bool = True
    """Whether it asks about quantized types, so that a float graph has no answer yet."""
    keeps_map: bool = False
    """Whether the result then has the quantized type of the operands."""
    drops_activations: bool = False
    """Whether the runtime drops activations that cut no quantized value of the result."""


def conditions() -> Mapping[str, GroupCondition]:
    """Returns all conditions that groups may name."""
    return registry.entries(KIND, GroupCondition)
