"""Names that a new package may have, and writing it."""

from __future__ import annotations

import ast
import keyword
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from qir import registry
from qir.errors import InputError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_TAKEN = ("qir", "none", "true", "false")
"""What stands for something else where names of plugins are written."""
_GROUPS = {short: group for group, short in registry.KINDS.items()}


def check_name(kind: str, name: str) -> None:
    """UsageError for a name that is none, or that another plugin of the kind has."""
    from qir.cli.templates import entry, package
    from qir.ir.ops import OPS

    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        said = f"small letters, digits and hyphens, at most {_LONGEST}, such as drop-twice"
        raise UsageError(f"{name[:60]!r} is no name for a plugin: {said}")
    called, taken = entry(kind, name), registry.names(_GROUPS[kind])
    if called in taken or (kind == "op" and called in OPS):
        owner = registry.owner(_GROUPS[kind], called) if called in taken else "QIR's language"
        raise UsageError(
            f"there is {'an' if kind[0] == 'o' else 'a'} {kind} {called!r}: {owner} has it"
        )
    if keyword.iskeyword(name) or name in _TAKEN or not _reads(package(kind, name)):
        raise UsageError(f"{name!r} is a word of Python or of qir; take another, such as my-{name}")


def _reads(files: Mapping[str, str]) -> bool:
    """Whether the modules are Python, and define nothing under the name of what they import."""
    for path, text in files.items():
        if not path.endswith(".py"):
            continue
        try:
            body = ast.parse(text).body
        except SyntaxError:
            return False
        imported = {
            alias.asname or alias.name
            for line in body
            if isinstance(line, ast.Import | ast.ImportFrom)
            for alias in line.names
        }
        if imported & {line.name for line in body if isinstance(line, ast.ClassDef)}:
            return False
    return True


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes a package, as a whole or not at all.

    Raises UsageError for a folder that holds something, InputError where the system refuses.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "holds something" if folder.is_dir() else "is a file"
            raise UsageError(f"{folder} {what}; give another folder with -o")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as draft:
            made = Path(draft, "package")
            for path, text in files.items():
                place = made / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            with suppress(FileNotFoundError):
                folder.rmdir()
            made.rename(folder)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
