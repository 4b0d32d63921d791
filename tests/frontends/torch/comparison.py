"""Compares what QIR computes of an exported program with what PyTorch computes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.reference.interpreter import run

Array = NDArray[np.generic]


def export(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], **options: object
) -> torch.export.ExportedProgram:
    """Returns the exported program of a module in inference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), tuple(inputs), **options)  # type: ignore[arg-type]


def run_graph(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """Returns the results of a graph, its inputs in order."""
    by_name = {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
    return list(run(graph, by_name).values())


def run_module(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """Returns what PyTorch computes."""
    with torch.no_grad():
        return [tensor.detach().numpy() for tensor in flatten_tensors(module.eval()(*inputs))]


def flatten_tensors(results: object) -> list[torch.Tensor]:
    """Returns the tensors of nested results, in order."""
    if isinstance(results, torch.Tensor):
        return [results]
    parts = results.values() if isinstance(results, dict) else results
    return [tensor for part in parts for tensor in flatten_tensors(part)]  # type: ignore[attr-defined]
