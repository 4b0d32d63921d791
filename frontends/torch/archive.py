"""Opens `.pt2` files without running what they may hide.

`torch.export.load` falls back to full unpickling for example inputs that are not plain tensors,
unpickles weights that are marked so, and hands the text of symbolic sizes to SymPy, which evaluates
it. A file is opened only where none of the three can happen.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from qir.errors import InputError

from .export_errors import first_line
from .suppressed_logs import logged_errors

_SIZE_FUNCTIONS = frozenset(
    "Abs Add And CeilToInt CleanDiv Eq FloorDiv FloorToInt Ge Gt Identity IntTrueDiv Integer"
    " IsNonOverlappingAndDenseIndicator Le Lt Max Min Mod ModularIndexing Mul Ne Not Or Piecewise"
    " Pow PowByNatural PythonMod Rational RoundDecimal RoundToInt ToFloat TruncToInt ceiling floor"
    " False True int_oo oo zoo".split()
)
"""SymPy names that a symbolic size may contain, besides symbols such as `s0` and `u3`."""
_SYMBOL_WITH_ASSUMPTIONS = re.compile(r"Symbol\('([a-z]+\d+)'(?:, [a-z]+=(?:True|False))*\)")
"""A symbol in SymPy's `srepr` form, with its assumptions."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_SYMBOL = re.compile(r"[a-z]+\d+")
_ARITHMETIC_TEXT = re.compile(r"[\w\s+\-*/(),<>=&|~]*")

_WRITE_AGAIN = "copy the file again, or write it anew with torch.export.save"
"""The remedy for files that are damaged or hold something else."""
_UNREGISTERED = re.compile(r"Unsupported target type for node Node\(target='torch\.ops\.([^']+)'")
"""How PyTorch reports an operator of a file that no library has registered."""
_LATER_FORM = re.compile(r"file with version (\d+), but the maximum supported version .* is (\d+)")
"""How PyTorch reports an archive of a form that it does not know."""
_ADVICE = " This is an internal miniz error."
"""Where PyTorch's message ends, and general advice begins."""

_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # encrypted; its NotImplementedError: a later zip version or compression
    LookupError,
    OverflowError,
    MemoryError,
)
"""Exceptions of `zipfile` and `json` for a damaged archive."""


def require_intact(path: Path) -> None:
    """Raises InputError if a member of an archive does not match its checksum.

    PyTorch does not verify the checksums of weights.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # Reads all members; `torch.jit.load` and `torch.export.load` would go on with wrong
            # weights.
            damaged = archive.testzip()
    except _ARCHIVE_ERRORS as error:
        message = str(error) or type(error).__name__
        raise InputError(
            f"{path}: is a damaged archive: {message}; copy or write it again"
        ) from error
    if damaged is not None:
        message = "does not have the checksum that the archive states"
        raise InputError(f"{path}: is damaged: {damaged} {message}; copy or write the file again")


def open_archive(path: Path) -> ExportedProgram:
    """Loads a `.pt2` file; raises InputError if it is damaged or would have to be unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            # All members are checked before PyTorch opens any.
            for member in archive.namelist():
                _check_member(path, archive, member)
            _require_program(path, archive.namelist())
    except InputError:
        raise
    except _ARCHIVE_ERRORS as error:
        message = f"is no .pt2 archive: {str(error) or type(error).__name__}"
        if isinstance(error, zipfile.BadZipFile) and not path.stat().st_size:
            message = "is empty"
        raise InputError(f"{path}: {message}; {_WRITE_AGAIN}") from error
    with logged_errors("torch.export") as errors:  # it logs what is wrong, and raises less
        try:
            if path.suffix.lower() == ".pt2":
                return torch.export.load(path)
            with path.open("rb") as file:  # by path, torch.export.load requires the suffix .pt2
                return torch.export.load(io.BytesIO(file.read()))
        except Exception as error:  # PyTorch raises what it likes for a damaged file
            raise InputError(_why_not_loaded(path, errors[0] if errors else error)) from error


def _require_program(path: Path, members: Sequence[str]) -> None:
    """Raises InputError for an archive that lacks what every exported program has."""
    if any(member.endswith("serialized_exported_program.json") for member in members):
        return  # the form before torch 2.8
    remedy, inner = _WRITE_AGAIN, [member.partition("/")[2] for member in members]
    if any(member.startswith("models/") and member.endswith(".json") for member in inner):
        missing = [f for f in ("archive_format", "archive_version") if f not in inner]
        if not missing:
            return
        message = f"has no member {missing[0]}"
    elif "data.pkl" in inner:
        message = "holds a state dict or a pickled object of torch.save, and no program"
        remedy = (
            "write the module with torch.export.save(torch.export.export(module, inputs), path)"
        )
    else:
        message = "has no models/ folder, so holds no program"
    raise InputError(f"{path}: {message}; {remedy}")


def _why_not_loaded(path: Path, error: BaseException) -> str:
    """Returns the line for a file that PyTorch does not load."""
    remedy = _WRITE_AGAIN
    message = first_line(error).partition(_ADVICE)[0].rstrip(".")
    if isinstance(error, (TypeError, KeyError, AttributeError)):
        message = f"models/ holds no program in its form ({message})"
    if (called := _UNREGISTERED.search(str(error))) is not None:
        message = f"it calls {called[1]}, which PyTorch does not know"
        remedy = "import the library that registers it first"
    if (form := _LATER_FORM.search(str(error))) is not None:
        message = f"its archive states version {form[1]}, and this PyTorch reads up to {form[2]}"
        remedy = "read it with the PyTorch that wrote it, or copy the file again if it is damaged"
    return f"{path}: PyTorch {torch.__version__} cannot read it: {message[:300]}; {remedy}"


def _check_member(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Raises InputError for a member that `torch.export.load` would unpickle or evaluate."""
    if member.endswith(".json"):
        try:
            content = json.loads(archive.read(member))
        except ValueError as error:
            message = f"is damaged: {member} is no JSON: {error}"
            raise InputError(f"{path}: {message}; {_WRITE_AGAIN}") from error
        for key, value in _entries(content):
            if key == "use_pickle" and value:
                raise InputError(
                    f"{path}: {member} holds pickled objects, which are not opened;"
                    " load it in PyTorch and pass the exported program instead"
                )
            if key == "expr_str" and not _is_size_expression(str(value)):
                raise InputError(f"{path}: {member} holds {str(value)[:60]!r}, which is no size")
    elif "/sample_inputs/" in member and member.endswith(".pt"):
        try:
            torch.load(io.BytesIO(archive.read(member)), weights_only=True)
        except Exception as error:  # whatever it is, PyTorch would fall back to full unpickling
            raise InputError(
                f"{path}: its example inputs hold more than plain tensors, and are not unpickled;"
                " load it in PyTorch and pass the exported program instead"
            ) from error


def _entries(content: Any) -> Iterator[tuple[str, object]]:
    """Yields all keys and values of nested JSON."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield key, value
            yield from _entries(value)
    elif isinstance(content, list):
        for value in content:
            yield from _entries(value)


def _is_size_expression(text: str) -> bool:
    """Returns whether a text is arithmetic on symbols and integers, safe for SymPy to evaluate."""
    # Only the name of a symbol is left: its assumptions are keyword arguments.
    text = _SYMBOL_WITH_ASSUMPTIONS.sub(r"\1", text)
    words = _WORD.findall(text)
    known = all(w in _SIZE_FUNCTIONS or _SYMBOL.fullmatch(w) for w in words)
    return known and _ARITHMETIC_TEXT.fullmatch(text) is not None
