"""Parses the attributes of a node: texts such as `(3, 3)`, `True` and `0.5`."""

from __future__ import annotations

import re
from collections.abc import Mapping

WITHOUT_EFFECT = frozenset(
    "cudnn_algo_verbose cudnn_algo_verbose_bwd cudnn_algo_bwd_data cudnn_algo_bwd_filter"
    " cudnn_algo_fwd cudnn_off cudnn_tensor_core_only cudnn_tune ctx_group force_mirroring"
    " lr_mult wd_mult mirror_stage weight_lr_mult workspace".split()
)
"""Attributes that affect training or memory only, and no result."""
_INTEGER = re.compile(r"[+-]?\d{1,18}L?")
_LIST = re.compile(r"[(\[](.*)[)\]]", re.DOTALL)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
NONE_TEXT = "None"


class BadAttribute(Exception):
    """Raised for an attribute whose text is not of the type that its operator expects."""


class Attributes:
    """The attributes of one node, and which of them a converter has read.

    An attribute that no converter reads might change a result, so that the reader refuses it.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.read: set[str] = set()

    def is_given(self, name: str) -> bool:
        """Returns whether an attribute is present and not None."""
        return self.texts.get(name, NONE_TEXT) != NONE_TEXT

    def text(self, name: str, default: str = "") -> str:
        """Returns an attribute as text."""
        self.read.add(name)
        stated = self.texts.get(name, default)
        return default if stated == NONE_TEXT else stated

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer; raises BadAttribute for another text, or without text and default."""
        stated = self.text(name)
        if not stated and default is not None:
            return default
        return self._parse_integer(name, stated)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a float; raises BadAttribute for another text, or without text and default."""
        stated = self.text(name)
        if not stated and default is not None:
            return default
        try:
            return float(stated)
        except ValueError:
            raise self._error(name, stated, "a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a boolean."""
        stated = self.text(name)
        if not stated:
            return default
        if stated.lower() not in _BOOLEANS:
            raise self._error(name, stated, "True or False")
        return _BOOLEANS[stated.lower()]

    def optional_integers(self, name: str) -> tuple[int | None, ...]:
        """Returns a list of integers or None; a single item is a list of one."""
        stated = self.text(name).strip()
        bracketed = _LIST.fullmatch(stated)
        items = [item.strip() for item in (bracketed[1] if bracketed else stated).split(",")]
        present = [item for item in items if item]
        return tuple(
            None if item == NONE_TEXT else self._parse_integer(name, item) for item in present
        )

    def integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Returns a list of integers; the default if it is empty or missing."""
        items_found = self.optional_integers(name)
        if any(item is None for item in items_found):
            raise self._error(name, self.texts[name], "a list of integers")
        return tuple(item for item in items_found if item is not None) or default

    def unread_names(self) -> list[str]:
        """Returns the attributes that no converter read and that may change a result."""
        return sorted(
            name
            for name, text in self.texts.items()
            if name not in self.read | WITHOUT_EFFECT
            # Double underscores mark attributes of variables, such as __shape__ and __dtype__.
            and not name.startswith("__")
            and text != NONE_TEXT
        )

    def _parse_integer(self, name: str, text: str) -> int:
        if not _INTEGER.fullmatch(text.strip()):
            raise self._error(name, text, "an integer of at most 18 digits")
        return int(text.strip().rstrip("L"))

    def _error(self, name: str, text: str, expected: str) -> BadAttribute:
        text_shown = text if len(text) < 40 else f"{text[:40]}..."
        return BadAttribute(f"attribute {name} is {text_shown!r}, it must be {expected}")
