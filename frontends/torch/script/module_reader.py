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
from .shapes import Example, stated_defaults


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
    # The first input of `forward` is the module itself.
    names = [value.debugName().partition(".")[0] for value in list(graph.inputs())[1:]]
    # Arguments at the end that are not given have the values that the source states.
    defaults = (
        stated_defaults(module)[len(inputs) - len(names) :] if len(inputs) < len(names) else []
    )
    if len(inputs) + len(defaults) != len(names):
        message = f"takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}"
        raise InputError(f"{name}: {message}")
    inputs_added = [
        builder.input(label, example.tensor, example.open_axes)
        for label, example in zip(names, inputs, strict=False)
    ]
    interpreter = Interpreter(builder)
    arguments = [*inputs_added, *defaults]
    results = interpreter.call_method(ScriptModule("", module), "forward", arguments)
    builder.graph.output(
        tuple(builder.as_node(_result_node(result)) for result in _flat_results(builder, results))
    )
    attribute = builder.tensors.__getitem__
    program = TorchProgram(builder.graph, {}, attribute)
    return program, interpreter


def _flat_results(builder: ScriptBuilder, results: Any) -> list[Any]:
    """Returns the tensors of nested results, flattened in order."""
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [part for result in results for part in _flat_results(builder, result)]
    if results is None:
        return []
    return [results]


def _result_node(result: Any) -> Any:
    """Returns the node of a result; a quantized tensor is returned as typed integers."""
    return result.node if isinstance(result, (ChannelQuantizedTensor, QuantizedTensor)) else result
