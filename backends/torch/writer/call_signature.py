"""Writes the call signature of a program: nesting and names of arguments."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from qir.ir.call_signature import CallSignature
from qir.ir.graph import Graph

from .program import argument_names


class Called(nn.Module):
    """Takes and returns what a call signature declares, and runs a program of plain tensors."""

    def __init__(self, program: nn.Module, signature: CallSignature) -> None:
        super().__init__()
        self.program = program
        self._call = signature

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program."""
        tensors = [held for held in tree_leaves((args, kwargs)) if isinstance(held, torch.Tensor)]
        outputs = self.program(*tensors)
        return self._call.result(outputs if isinstance(outputs, (tuple, list)) else (outputs,))


def called(program: fx.GraphModule, graph: Graph) -> nn.Module:
    """Returns a program as the graph's call signature has it; a plain one as it is."""
    signature = CallSignature.of(graph)
    if signature.plain or signature.counts() != (len(graph.inputs), len(graph.outputs)):
        return program
    # A class of its own, because torch.export reads the signature of the class's `forward`.
    kind = type("Program", (Called,), {"forward": _forward_with_signature(graph, signature)})
    module: nn.Module = kind(program, signature)
    return module.eval()


class _Argument(str):
    """The name of an input, next to literals that are text too."""


def _forward_with_signature(graph: Graph, signature: CallSignature) -> Any:
    """Returns `forward` with the names of the arguments, by which exporting names inputs."""

    def forward(self: Called, *args: Any, **kwargs: Any) -> Any:
        return Called.forward(self, *args, **kwargs)

    args, _ = signature.arguments(map(_Argument, argument_names(graph.inputs)))
    names = [_argument_name(value, index) for index, value in enumerate(args)]
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(w, inspect.Parameter.POSITIONAL_OR_KEYWORD) for w in names]
    parameters += [inspect.Parameter(w, inspect.Parameter.KEYWORD_ONLY) for w in signature.kwargs]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward


def _argument_name(value: Any, index: int) -> str:
    """Returns the name of an argument: exporting adds the place within it to its tensors' names."""
    # For a nested argument, the suffix is the path to its first tensor.
    suffix = ""
    while isinstance(value, (tuple, list, dict)) and value:
        key: Any = next(iter(value)) if isinstance(value, dict) else 0
        suffix, value = f"{suffix}_{key}", value[key]
    name = value.removesuffix(suffix) if isinstance(value, _Argument) else ""
    return name if name.isidentifier() else f"args_{index}"
