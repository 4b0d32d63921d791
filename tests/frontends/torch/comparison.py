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
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], **more: object
) -> torch.export.ExportedProgram:
    """Returns the exported program of a module in inference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), tuple(inputs), **more)  # type: ignore[arg-type]


def computed(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """Returns the results of a graph, its inputs in order."""
    given = {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
    return list(run(graph, given).values())


def wanted(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """Returns what PyTorch computes."""
    with torch.no_grad():
        return [tensor.detach().numpy() for tensor in flat(module.eval()(*inputs))]


def flat(made: object) -> list[torch.Tensor]:
    """Returns the tensors of nested results, in order."""
    if isinstance(made, torch.Tensor):
        return [made]
    parts = made.values() if isinstance(made, dict) else made
    return [tensor for part in parts for tensor in flat(part)]  # type: ignore[attr-defined]


def difference(ours: Array, theirs: Array, near: float) -> str:
    """Returns how two results differ; empty where they agree.

    Integers and truth values must be equal, floats within `near` of the largest one.
    """
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{ours.shape}, PyTorch gives {theirs.dtype}{theirs.shape}"
    if not np.issubdtype(theirs.dtype, np.floating):
        return "" if np.array_equal(ours, theirs) else "other integers"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return ""
    off = float(np.abs(np.where(same, 0, a - b)).max())
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
    return "" if off <= near * largest else f"off by {off:.3g} where the largest is {largest:.3g}"
