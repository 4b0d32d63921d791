"""The attributes of a node: texts such as `(3, 3)`, `True` and `0.5`, read without evaluating."""

from __future__ import annotations

import re
from collections.abc import Mapping

IGNORED = frozenset(
    "cudnn_algo_verbose cudnn_algo_verbose_bwd cudnn_algo_bwd_data cudnn_algo_bwd_filter"
    " cudnn_algo_fwd cudnn_off cudnn_tensor_core_only cudnn_tune ctx_group force_mirroring"
    " lr_mult wd_mult mirror_stage weight_lr_mult workspace".split()
)
"""Attributes that steer training or memory and change no result."""
_WHOLE = re.compile(r"[+-]?\d{1,18}L?")
_ROW = re.compile(r"[(\[](.*)[)\]]", re.DOTALL)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
NONE = "None"


class BadAttribute(Exception):
    """An attribute has a text that its operator does not take."""


class Attributes:
    """The attributes of one node, and which of them were asked for."""

    def __init__(self, held: Mapping[str, str]) -> None:
        self.held = held
        self.asked: set[str] = set()

    def given(self, name: str) -> bool:
        """Returns whether an attribute is there and not None."""
        return self.held.get(name, NONE) != NONE

    def text(self, name: str, default: str = "") -> str:
        """Returns an attribute as it is written."""
        self.asked.add(name)
        found = self.held.get(name, default)
        return default if found == NONE else found

    def whole(self, name: str, default: int | None = None) -> int:
        """Returns an integer; BadAttribute where it is none, or missing without a default."""
        found = self.text(name)
        if not found and default is not None:
            return default
        return self._whole(name, found)

    def real(self, name: str, default: float | None = None) -> float:
        """Returns a number; BadAttribute where it is none, or missing without a default."""
        found = self.text(name)
        if not found and default is not None:
            return default
        try:
            return float(found)
        except ValueError:
            raise self._bad(name, found, "a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a truth value."""
        found = self.text(name)
        if not found:
            return default
        if found.lower() not in _TRUTH:
            raise self._bad(name, found, "True or False")
        return _TRUTH[found.lower()]

    def row(self, name: str) -> tuple[int | None, ...]:
        """Returns a list of integers or None; one alone is a list of one."""
        found = self.text(name).strip()
        inside = _ROW.fullmatch(found)
        items = [item.strip() for item in (inside[1] if inside else found).split(",")]
        held = [item for item in items if item]
        return tuple(None if item == NONE else self._whole(name, item) for item in held)

    def wholes(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Returns a list of integers; the default where it is empty or missing."""
        found = self.row(name)
        if any(item is None for item in found):
            raise self._bad(name, self.held[name], "a list of integers")
        return tuple(item for item in found if item is not None) or default

    def unread(self) -> list[str]:
        """Returns the attributes that nobody asked for and that may change a result."""
        return sorted(
            name
            for name, text in self.held.items()
            if name not in self.asked | IGNORED and not name.startswith("__") and text != NONE
        )

    def _whole(self, name: str, text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()):
            raise self._bad(name, text, "an integer of at most 18 digits")
        return int(text.strip().rstrip("L"))

    def _bad(self, name: str, text: str, wanted: str) -> BadAttribute:
        shown = text if len(text) < 40 else f"{text[:40]}..."
        return BadAttribute(f"attribute {name} is {shown!r}, it must be {wanted}")
