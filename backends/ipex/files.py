"""The file of a recipe: JSON, with the numbered calls of each module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qir.errors import InputError
from qir.json_file import read_json

STORAGES: Mapping[str, str] = {"u8": "torch.quint8", "i8": "torch.qint8"}
FLOAT = "torch.float32"
ROOT = " "
"""What recipes call the module itself."""


def is_recipe(path: Path) -> bool:
    """Returns whether a file is a recipe."""
    try:
        read_calls(path)
    except InputError:
        return False
    return True


def read_calls(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the numbered calls of a recipe by module; raises InputError for other files."""
    content = read_json(path, "recipe of IPEX")
    if not isinstance(content, dict) or ROOT not in content:
        raise InputError(f"{path}: is no recipe of IPEX: it has no entry {ROOT!r}")
    calls_by_module = {}
    for owner, entry in content.items():
        entries = entry.get("q_op_infos") if isinstance(entry, dict) else None
        if not isinstance(entries, dict) or not all(
            isinstance(row, dict) for row in entries.values()
        ):
            raise InputError(f"{path}: entry {owner!r} has no table q_op_infos")
        if list(entries) != [str(i) for i in range(len(entries))]:
            raise InputError(f"{path}: entry {owner!r} does not number its calls from 0")
        calls_by_module[owner] = entries
    return calls_by_module
