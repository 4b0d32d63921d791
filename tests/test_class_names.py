"""Each class name stands for one class, private ones too, so that a search for it finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def classes(source: str) -> list[str]:
    """The classes at the top of a file."""
    return [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]


def shared(sources: dict[str, str]) -> dict[str, list[str]]:
    """The names that several files define, each with the files."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for name in classes(source):
            places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_class_name_is_used_once() -> None:
    paths = [p for f in ("qir", "frontends", "backends") for p in sorted((ROOT / f).rglob("*.py"))]
    assert len(paths) > 500
    assert not shared({str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths})


@pytest.mark.parametrize(("name", "found"), [("Kernel", True), ("_Kernel", True), ("Other", False)])
def test_a_second_use_of_a_name_is_found(name: str, found: bool) -> None:
    both = {"a.py": "class Kernel: ...\nclass _Kernel: ...", "b.py": f"class {name}: ..."}
    assert bool(shared(both)) is found
