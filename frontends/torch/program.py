"""What is read: an exported program, from a file, from memory, or from a module and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from qir.errors import InputError

from .archive import open_archive

_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "contiguous.default dropout.default feature_dropout.default flatten.using_ints"
        " reshape.default to.device to.dtype type_as.default unflatten.int"
    ).split()
)
"""Operators that may give back their operand, or a view of it."""


def program_of(source: object, inputs: Sequence[object] | None) -> tuple[ExportedProgram, str]:
    """Returns the exported program and a name for it; InputError where there is none."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        return functional(open_archive(path)), path.stem
    if isinstance(source, ExportedProgram):
        return functional(source), "main"
    if not isinstance(source, torch.nn.Module):
        raise InputError(f"{type(source).__name__} is neither a module nor an exported program")
    name = type(source).__name__
    if inputs is None:
        raise InputError(f"{name}: a module is exported with example inputs; give inputs=(x, ...)")
    return functional(_exported(source, tuple(inputs), name)), name


def _exported(module: torch.nn.Module, inputs: tuple[Any, ...], name: str) -> ExportedProgram:
    training = [n or name for n, m in module.named_modules() if m.training]
    module.eval()
    try:
        return torch.export.export(module, inputs)
    except Exception as error:  # the user's own code runs here
        said = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
        raise InputError(f"{name}: torch.export does not take it: {said.strip()}") from error
    finally:
        for path, part in module.named_modules():
            part.training = (path or name) in training


def functional(program: ExportedProgram) -> ExportedProgram:
    """Returns a program whose in-place ops can be read as functional ones.

    An op in place whose operand has no other view only gives its result a new name, which the
    reader follows. Where a view may see the change, PyTorch's functionalization rewrites the graph.
    """
    aliased: set[str] = set()
    for node in program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        first = node.args[0] if node.args else None
        if not isinstance(first, torch.fx.Node):
            continue
        if node.target.is_view or str(node.target) in _VIEWS:
            aliased |= {first.name, node.name}
        elif node.target._schema.is_mutable and (
            first.name in aliased or first.op == "placeholder"
        ):
            rewritten: ExportedProgram = program.run_decompositions({})
            return rewritten
    return program
