"""Writes TorchScript: source text that PyTorch compiles, and its file."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qir.atomic import replacing
from qir.errors import InputError

from .program import FxProgram

TOLD = "qir.json"
"""The member of a file that has the names and types of inputs and results."""
_FREED = re.compile(r";\s+(?:\w+ = )+None$", re.MULTILINE)
"""What a graph's source says of values that nobody reads any more; no TorchScript."""
_NO_NUMBER = re.compile(r"(?<![\w.])(inf|nan)\b")
"""Numbers that a graph's source reads as globals, which TorchScript lacks."""


def scripted(program: FxProgram) -> torch.jit.ScriptModule:
    """Returns a program compiled by TorchScript."""
    source = _FREED.sub("", program.graph.python_code("self").src)
    source = _NO_NUMBER.sub(r'float("\1")', source)
    kinds = {name: torch._C._jit_try_infer_type(thing).type() for name, thing in _held(program)}
    attributes = tuple((name, str(kind)) for name, kind in kinds.items())
    made = torch._C._create_module_with_type(_type(source, attributes, _Kinds(kinds)).jit_type)
    for name, thing in _held(program):
        made.setattr(name, thing)
    wrap: Any = torch.jit._recursive.wrap_cpp_module
    module: torch.jit.ScriptModule = wrap(made)
    return module


def _held(program: FxProgram) -> list[tuple[str, Any]]:
    return list(program.attributes.items())


class _Kinds(dict[str, Any]):
    """The types of attributes; the texts next to them tell programs apart."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kinds)


@cache
def _type(source: str, attributes: tuple[tuple[str, str], ...], kinds: _Kinds) -> Any:
    """Returns the class of modules with a program's source and attributes, compiled once in a
    process.

    Its name follows from both: PyTorch numbers classes of one name, and files would differ.
    """
    digest = hashlib.sha256(repr((source, attributes)).encode()).hexdigest()[:12]
    named = type(f"Program_{digest}", (torch.nn.Module,), {"__module__": "qir"})
    builder: Any = torch._C.ConcreteModuleTypeBuilder(named)
    for name, kind in kinds.items():
        builder.add_attribute(name, kind, False, kind.isSubtypeOf(torch._C.TensorType.get()))
    made = builder.build()
    module: Any = torch._C._create_module_with_type(made.jit_type)
    scope = {"torch": torch}
    module._define(made, source, scope.get)
    return made


def save(module: torch.jit.ScriptModule, path: Path, told: str) -> None:
    """Writes a module by rename, with a text next to it that QIR reads again.

    The bytes do not depend on the file's name.
    """
    with replacing(path) as draft, draft.open("wb") as stream:
        torch.jit.save(module, stream, _extra_files={TOLD: told})


def load(path: Path) -> tuple[torch.jit.ScriptModule, str]:
    """Loads a file that `save` wrote, and the text next to it; raises InputError for another."""
    extra = {TOLD: ""}
    try:
        opened: Any = torch.jit.load
        made = opened(str(path), map_location="cpu", _extra_files=extra).eval()
    except (RuntimeError, ValueError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: PyTorch does not load it: {said}") from error
    found: object = extra[TOLD]
    return made, found.decode() if isinstance(found, bytes) else str(found)
