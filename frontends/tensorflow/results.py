"""What a node is read as: a value, or what stands for a list of tensors or a complex one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from qir.ir.node import Value


@dataclass(frozen=True, eq=False)
class ComplexPair:
    """A complex tensor: its real and its imaginary part."""

    real: Value
    imag: Value


@dataclass(frozen=True, eq=False)
class EmptyList:
    """A list without elements so far; its size if it is known."""

    size: int | None


@dataclass(frozen=True, eq=False)
class WrittenList:
    """A list of which an iteration set one element."""

    size: int | None
    index: Value
    value: Value


ValueOrList: TypeAlias = "Value | EmptyList | WrittenList | ComplexPair"
