"""Writes exported programs, as `torch.export` has them, and their `.pt2` files."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_map, tree_unflatten

from qir.atomic import replacing
from qir.errors import InputError, Refused
from qir.ir import dims
from qir.ir.call_signature import CallSignature
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.types import TensorType
from qir.temporary import temporary_attribute

from .call_signature import called as called_as
from .elements import kind
from .program import FxProgram

USER = InputKind.USER_INPUT
INTERFACE_MEMBER = "qir.json"
"""The member of a file that has the names and types of inputs and results."""
_SMALLEST_EXAMPLE_SIZE = 32
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
    # Distinct example sizes keep torch.export from taking two named dimensions for equal.
    sizes = {name: _SMALLEST_EXAMPLE_SIZE + index for index, name in enumerate(names)}
    examples: tuple[Any, ...] = tuple(example(kind, sizes) for kind in kinds)
    dynamic_shapes: Any = tuple(_open(kind) for kind in kinds)
    callable_module, keywords = called(program), dict[str, Any]()
    if not isinstance(callable_module, fx.GraphModule):
        signature = CallSignature.of(program.source)
        examples, keywords = signature.arguments(examples)
        args, keyword_shapes = signature.without_literals().arguments(dynamic_shapes)
        parameter_names = list(inspect.signature(callable_module.forward).parameters)
        shapes = dict(zip(parameter_names, (*args, *keyword_shapes.values()), strict=True))
        dynamic_shapes = shapes if names else None
    try:
        with pause_garbage_collection(), _without_stack_traces():
            result = torch.export.export(
                callable_module, examples, keywords, dynamic_shapes=dynamic_shapes
            )
    except Exception as error:  # whatever it is: PyTorch's own tracing failed
        message = " ".join(str(error).split())[:300]
        raise Refused(f"{program.source.name}: torch.export does not take it: {message}") from error
    # Notes of this process's own source would make the same graph differ between runs.
    for node in result.graph.nodes:
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom"):
            node.meta.pop(key, None)
    # Files hold the examples: as views of one zero they take no room.
    positional, by_name = result.example_inputs or ((), {})
    result.example_inputs = tree_map(_without_storage, (tuple(positional), by_name))
    return result


def _without_stack_traces() -> AbstractContextManager[None]:
    """Keeps torch.fx from taking stack traces of nodes, which are slow and not written."""
    # Imported by name: PyTorch's type stubs do not have the module.
    config = importlib.import_module("torch.fx.config")
    return temporary_attribute(config, "do_not_emit_stack_traces", True)


def _without_storage(leaf: object) -> object:
    """Returns zeros of a tensor's shape that are stored once."""
    return leaf.new_zeros(()).expand(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf


def example(given: TensorType, sizes: dict[str, int]) -> torch.Tensor:
    """Zeros of a type; sizes that are symbols are those of the names in them."""
    bound_sizes = [dims.bind(dim, sizes) for dim in given.shape]
    shape = [dim if isinstance(dim, int) else _SMALLEST_EXAMPLE_SIZE for dim in bound_sizes]
    return torch.zeros(shape, dtype=kind(given.dtype, "an input"))


def _open(input_type: TensorType) -> dict[int, Any]:
    return {axis: Dim.AUTO for axis, dim in enumerate(input_type.shape) if not isinstance(dim, int)}


def save(program: ExportedProgram, path: Path, interface: str) -> None:
    """Writes an exported program by rename, with a text next to it that QIR reads again."""
    with pause_garbage_collection(), replacing(path) as draft, draft.open("wb") as stream:
        torch.export.save(program, stream, extra_files={INTERFACE_MEMBER: interface})


def load(path: Path) -> tuple[Any, str]:
    """Loads a file that `save` wrote, and the text next to it; raises InputError for another."""
    extra, logger = {INTERFACE_MEMBER: ""}, logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # it prints a traceback of what is raised
    try:
        program = torch.export.load(str(path), extra_files=extra)
    except Exception as error:  # PyTorch raises what it likes for a damaged file
        message = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: PyTorch does not load it: {message}") from error
    finally:
        logger.disabled = was_disabled
    return _flat(program), str(extra[INTERFACE_MEMBER])


def _flat(program: ExportedProgram) -> Callable[..., object]:
    """Returns a program that takes tensors one by one, whatever its call signature."""
    run: Any = program.module()
    kinds = [spec.arg for spec in program.graph_signature.input_specs if spec.kind == USER]
    shape: Any = program.call_spec.in_spec

    def run_flat(*tensors: torch.Tensor) -> object:
        remaining = iter(tensors)
        values = [
            arg.value if isinstance(arg, ConstantArgument) else next(remaining) for arg in kinds
        ]
        args, kwargs = tree_unflatten(values, shape)
        return run(*args, **kwargs)

    return run_flat
