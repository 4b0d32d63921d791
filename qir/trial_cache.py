"""Numbers that a search measured, in a file from which an interrupted search continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from qir.atomic import write_text


class TrialCache:
    """What was measured, in a file that is written after each measurement."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self.numbers: dict[str, float] = {}
        if path is not None and path.exists():
            self.numbers = _numbers(path, key)

    def get(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self.numbers:
            self.numbers[name] = measure()
            if self._path is not None:
                # After each measurement, as one may take minutes and the run may end at any time.
                write_text(self._path, json.dumps({"key": self._key, "numbers": self.numbers}))
        return self.numbers[name]


def _numbers(path: Path, key: str) -> dict[str, float]:
    """Returns the numbers of a cache file; none where it is of other data, or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("key") != key:
        return {}
    numbers = data.get("numbers")
    if not isinstance(numbers, dict) or not all(isinstance(n, float) for n in numbers.values()):
        return {}
    return numbers


__all__ = ["TrialCache"]
