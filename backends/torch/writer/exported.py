"""Writes exported programs, as `torch.export` has them, and their `.pt2` files."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_unflatten

from qir.atomic import replacing
from qir.errors import InputError, Refused
from qir.ir import dims
from qir.ir.call_signature import CallSignature
from qir.ir.types import TensorType

from .called import called as called_as
from .elements import kind
from .program import FxProgram

USER = InputKind.USER_INPUT
TOLD = "qir.json"
"""The member of a file that has the names and types of inputs and results."""
_LEAST = 32
"""Sizes of examples begin here where the model leaves them open: large enough for most windows."""


def module(program: FxProgram) -> fx.GraphModule:
    """Returns a program as a module of `torch.fx`."""
    return fx.GraphModule(program.attributes, program.graph, "FxProgram")


def called(program: FxProgram) -> nn.Module:
    """Returns a program as a module that is called as the graph's call signature says."""
    return called_as(module(program), program.source)


def exported(program: FxProgram) -> ExportedProgram:
    """Returns a program as an exported one; sizes that the graph leaves open stay open.

    Raises Refused where `torch.export` does not take it.
    """
    kinds = [value.type for value in program.source.inputs]
    names = sorted(dims.names(tuple(dim for kind in kinds for dim in kind.shape)))
    sizes = {name: _LEAST + place for place, name in enumerate(names)}
    examples: tuple[Any, ...] = tuple(example(kind, sizes) for kind in kinds)
    open_ones: Any = tuple(_open(kind) for kind in kinds)
    whole, named = called(program), dict[str, Any]()
    if not isinstance(whole, fx.GraphModule):
        signature = CallSignature.of(program.source)
        examples, named = signature.arguments(examples)
        args, words = signature.without_literals().arguments(open_ones)
        places = list(inspect.signature(whole.forward).parameters)
        shapes = dict(zip(places, (*args, *words.values()), strict=True))
        open_ones = shapes if names else None
    try:
        made = torch.export.export(whole, examples, named, dynamic_shapes=open_ones)
    except Exception as error:  # whatever it is: PyTorch's own tracing failed
        said = " ".join(str(error).split())[:300]
        raise Refused(f"{program.source.name}: torch.export does not take it: {said}") from error
    for node in made.graph.nodes:  # traces of this process's own source
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            node.meta.pop(key, None)
    return made


def example(given: TensorType, sizes: dict[str, int]) -> torch.Tensor:
    """Zeros of a type; sizes that are symbols are those of the names in them."""
    bound = [dims.bind(dim, sizes) for dim in given.shape]
    shape = [dim if isinstance(dim, int) else _LEAST for dim in bound]
    return torch.zeros(shape, dtype=kind(given.dtype, "an input"))


def _open(given: TensorType) -> dict[int, Any]:
    return {axis: Dim.AUTO for axis, dim in enumerate(given.shape) if not isinstance(dim, int)}


def save(made: ExportedProgram, path: Path, told: str) -> None:
    """Writes an exported program by rename, with a text next to it that QIR reads again."""
    with replacing(path) as draft, draft.open("wb") as stream:
        torch.export.save(made, stream, extra_files={TOLD: told})


def load(path: Path) -> tuple[Any, str]:
    """Loads a file that `save` wrote, and the text next to it; raises InputError for another."""
    extra, logger = {TOLD: ""}, logging.getLogger("torch.export")
    before, logger.disabled = logger.disabled, True  # it prints a traceback of what is raised
    try:
        made = torch.export.load(str(path), extra_files=extra)
    except Exception as error:  # PyTorch raises what it likes for a damaged file
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: PyTorch does not load it: {said}") from error
    finally:
        logger.disabled = before
    return _flat(made), str(extra[TOLD])


def _flat(made: ExportedProgram) -> Callable[..., object]:
    """Returns a program that takes tensors one by one, whatever its call signature."""
    run: Any = made.module()
    kinds = [spec.arg for spec in made.graph_signature.input_specs if spec.kind == USER]
    shape: Any = made.call_spec.in_spec

    def flat(*tensors: torch.Tensor) -> object:
        rest = iter(tensors)
        held = [arg.value if isinstance(arg, ConstantArgument) else next(rest) for arg in kinds]
        args, kwargs = tree_unflatten(held, shape)
        return run(*args, **kwargs)

    return flat
