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

INTERFACE_MEMBER = "qir.json"
"""The member of a file that has the names and types of inputs and results."""
_FREED = re.compile(r";\s+(?:\w+ = )+None$", re.MULTILINE)
"""What a graph's source says of values that nobody reads any more; no TorchScript."""
_NO_NUMBER = re.compile(r"(?<![\w.])(inf|nan)\b")
"""Numbers that a graph's source reads as globals, which TorchScript lacks."""


def scripted(program: FxProgram) -> torch.jit.ScriptModule:
    """Returns a program compiled by TorchScript."""
    # fx prints `; x = None` after the last use, and inf and nan as globals: TorchScript has
    # neither.
    source = _FREED.sub("", program.graph.python_code("self").src)
    source = _NO_NUMBER.sub(r'float("\1")', source)
    types = {
        name: torch._C._jit_try_infer_type(value).type() for name, value in _attributes(program)
    }
    attributes = tuple((name, str(kind)) for name, kind in types.items())
    cpp_module = torch._C._create_module_with_type(
        _type(source, attributes, _AttributeTypes(types)).jit_type
    )
    for name, value in _attributes(program):
        cpp_module.setattr(name, value)
    wrap_module: Any = torch.jit._recursive.wrap_cpp_module
    module: torch.jit.ScriptModule = wrap_module(cpp_module)
    return module


def _attributes(program: FxProgram) -> list[tuple[str, Any]]:
    return list(program.attributes.items())


class _AttributeTypes(dict[str, Any]):
    """The types of attributes; the texts next to them tell programs apart."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AttributeTypes)


@cache
def _type(source: str, attributes: tuple[tuple[str, str], ...], kinds: _AttributeTypes) -> Any:
    """Returns the class of modules with a program's source and attributes, compiled once in a
    process.

    Its name follows from both: PyTorch numbers classes of one name, and files would differ.
    """
    digest = hashlib.sha256(repr((source, attributes)).encode()).hexdigest()[:12]
    python_class = type(f"Program_{digest}", (torch.nn.Module,), {"__module__": "qir"})
    builder: Any = torch._C.ConcreteModuleTypeBuilder(python_class)
    for name, kind in kinds.items():
        builder.add_attribute(name, kind, False, kind.isSubtypeOf(torch._C.TensorType.get()))
    concrete_type = builder.build()
    module: Any = torch._C._create_module_with_type(concrete_type.jit_type)
    scope = {"torch": torch}
    module._define(concrete_type, source, scope.get)
    return concrete_type


def save(module: torch.jit.ScriptModule, path: Path, interface: str) -> None:
    """Writes a module by rename, with a text next to it that QIR reads again.

    The bytes do not depend on the file's name.
    """
    with replacing(path) as draft, draft.open("wb") as stream:
        torch.jit.save(module, stream, _extra_files={INTERFACE_MEMBER: interface})


def load(path: Path) -> tuple[torch.jit.ScriptModule, str]:
    """Loads a file that `save` wrote, and the text next to it; raises InputError for another."""
    extra = {INTERFACE_MEMBER: ""}
    try:
        jit_load: Any = torch.jit.load
        module = jit_load(str(path), map_location="cpu", _extra_files=extra).eval()
    except (RuntimeError, ValueError, OSError) as error:
        message = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: PyTorch does not load it: {message}") from error
    stored: object = extra[INTERFACE_MEMBER]
    return module, stored.decode() if isinstance(stored, bytes) else str(stored)
