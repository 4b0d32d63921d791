"""Turns a TorchScript module into calls of operators, with its tensors and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qir.errors import InputError

from ..program import TorchProgram
from .builder import ScriptBuilder
from .interpreter import Interpreter, ScriptModule
from .quantized_tensors import ChannelQuantizedTensor, QuantizedTensor
from .shapes import Example


def script_program(
    module: torch.jit.ScriptModule,
    name: str,
    inputs: Sequence[Example],
) -> tuple[TorchProgram, Interpreter]:
    """Reads `forward` of a module; returns the program and the interpreter that read it."""
    builder = ScriptBuilder(name)
    if not hasattr(module, "forward"):
        raise InputError(f"{name}: has no method forward; wrap it in a module that has one")
    graph: Any = module.forward.graph  # type: ignore[attr-defined]
    names = [value.debugName().partition(".")[0] for value in list(graph.inputs())[1:]]
    if len(inputs) != len(names):
        said = f"takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}"
        raise InputError(f"{name}: {said}")
    given = [
        builder.input(label, example.tensor, example.open_axes)
        for label, example in zip(names, inputs, strict=True)
    ]
    interpreter = Interpreter(builder)
    made = interpreter.call_method(ScriptModule("", module), "forward", given)
    builder.graph.output(
        tuple(builder.as_node(_result_node(held)) for held in _flat_results(builder, made))
    )
    attribute = builder.tensors.__getitem__
    program = TorchProgram(builder.graph, {}, attribute)
    return program, interpreter


def _flat_results(builder: ScriptBuilder, made: Any) -> list[Any]:
    """Returns the tensors of nested results, flattened in order."""
    if isinstance(made, dict):
        made = list(made.values())
    if isinstance(made, (list, tuple)):
        return [part for held in made for part in _flat_results(builder, held)]
    if made is None:
        return []
    return [made]


def _result_node(held: Any) -> Any:
    """Returns the node of a result; a quantized tensor is returned as typed integers."""
    return held.node if isinstance(held, (ChannelQuantizedTensor, QuantizedTensor)) else held
