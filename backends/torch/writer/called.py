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
    """Takes and gives back what a call signature says, and runs a program of plain tensors."""

    def __init__(self, program: nn.Module, signature: CallSignature) -> None:
        super().__init__()
        self.program = program
        self._call = signature

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program."""
        given = [held for held in tree_leaves((args, kwargs)) if isinstance(held, torch.Tensor)]
        made = self.program(*given)
        return self._call.result(made if isinstance(made, (tuple, list)) else (made,))


def called(program: fx.GraphModule, graph: Graph) -> nn.Module:
    """Returns a program as the graph's call signature has it; a plain one as it is."""
    signature = CallSignature.of(graph)
    if signature.plain or signature.counts() != (len(graph.inputs), len(graph.outputs)):
        return program
    kind = type("Program", (Called,), {"forward": _named(graph, signature)})
    made: nn.Module = kind(program, signature)
    return made.eval()


class _Argument(str):
    """The name of an input, next to literals that are text too."""


def _named(graph: Graph, signature: CallSignature) -> Any:
    """Returns `forward` with the names of the arguments, by which exporting names inputs."""

    def forward(self: Called, *args: Any, **kwargs: Any) -> Any:
        return Called.forward(self, *args, **kwargs)

    args, _ = signature.arguments(map(_Argument, argument_names(graph.inputs)))
    words = [_word(held, place) for place, held in enumerate(args)]
    places = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    places += [inspect.Parameter(w, inspect.Parameter.POSITIONAL_OR_KEYWORD) for w in words]
    places += [inspect.Parameter(w, inspect.Parameter.KEYWORD_ONLY) for w in signature.kwargs]
    forward.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
    return forward


def _word(held: Any, place: int) -> str:
    """Returns the name of an argument: exporting adds the place within it to its tensors' names."""
    suffix = ""
    while isinstance(held, (tuple, list, dict)) and held:
        first: Any = next(iter(held)) if isinstance(held, dict) else 0
        suffix, held = f"{suffix}_{first}", held[first]
    word = held.removesuffix(suffix) if isinstance(held, _Argument) else ""
    return word if word.isidentifier() else f"args_{place}"
