"""Runs any graph by the reference: reals by the float functions, codes by the profile's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError, QirError
from qir.frontend import frontend
from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.reference.quantized import run_chain, run_quantized
from qir.reference.table import Operands, compute_all

Tensor = NDArray[np.generic]
MEASURES = frozenset({"shape", "size"})
"""Ops that ask how large a tensor is and not what it holds."""


def profile_of(graph: Graph, node: Node) -> str:
    """Whose arithmetic a node follows: its own profile, else the graph's."""
    return node.profile or graph.profile


def run(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    *,
    values: Iterable[str] | None = None,
    profile: str | None = None,
    observe: Callable[[Value, Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """Runs a graph; gives its outputs by name, or the named values.

    `profile` replaces the graph's; `observe` sees every value as it is made. Values are dropped
    after their last use. Raises DataError for inputs that do not fit, OpError where an op cannot
    compute, naming the node.
    """
    wanted = None if values is None else {graph[name].name for name in values}
    live: dict[Value, Tensor] = {}
    left = {value: len(value.uses) for value in graph.values.values()}
    kept: dict[str, Tensor] = {}
    bind_inputs(graph, inputs)
    for node in graph:
        if node.op == "output":
            continue
        operands = {slot: live[value] for slot, value in node.operands.items()}
        results = _results(graph, node, operands, inputs, profile)
        for value, data in zip(node.results, results, strict=True):
            live[value] = data
            if wanted is not None and value.name in wanted:
                kept[value.name] = data
            if observe is not None:
                observe(value, data)
        for value in node.operands.values():
            left[value] -= 1
            if not left[value]:
                del live[value]
    if wanted is not None:
        return kept
    return {name: live[value] for name, value in graph.outputs.items()}


def _results(
    graph: Graph,
    node: Node,
    operands: Operands,
    inputs: Mapping[str, Tensor],
    profile: str | None,
) -> tuple[Tensor, ...]:
    if node.op == "input":
        return (np.asarray(inputs[node.name]),)
    try:
        return run_node(node, operands, profile or profile_of(graph, node))
    except QirError as error:
        where = f" ({node.origins[0]})" if node.origins else ""
        raise type(error)(f"{node.name}{where}: {error}") from error


def run_node(node: Node, operands: Operands, profile: str) -> tuple[Tensor, ...]:
    """One node on arrays by slot: reals as reals, codes as codes."""
    if node.op == "constant":
        data = node.result.constant
        assert data is not None
        return (data.data,)
    if node.op == "foreign":
        return frontend(str(node.attrs["framework"])).run_foreign(node, operands)
    if node.stages:
        return (run_chain(node, operands, profile),)
    types = [v.type for v in (*node.operands.values(), *node.results)]
    if node.op not in MEASURES and any(t.quant for t in types):
        return (run_quantized(node, operands, profile),)
    return compute_all(node.op, operands, node.attrs)


def bind_inputs(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes that inputs give to named dimensions; DataError for inputs that do not fit."""
    sizes: dict[str, int] = {}
    known = {value.name: value for value in graph.inputs}
    for name in inputs:
        if name not in known:
            raise DataError(f"no input {name!r}; the model takes {', '.join(known) or 'none'}")
    for name, value in known.items():
        if name not in inputs:
            raise DataError(f"input {name!r} is missing")
        _check(value, np.asarray(inputs[name]), sizes)
    return sizes


def _check(value: Value, data: Tensor, sizes: dict[str, int]) -> None:
    kind = value.type
    wanted = "x".join("?" if d is None else str(d) for d in kind.shape)
    if data.dtype != kind.dtype.carrier:
        raise DataError(f"input {value.name!r} is {data.dtype}, the model takes {kind.dtype}")
    if data.ndim != kind.rank:
        raise DataError(f"input {value.name!r} is {list(data.shape)}, the model takes {wanted}")
    for dim, size in zip(kind.shape, data.shape, strict=True):
        if not _fits(dim, size, sizes):
            raise DataError(f"input {value.name!r} is {list(data.shape)}, the model takes {wanted}")


def _fits(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    bound = dims.bind(dim, sizes)
    if isinstance(bound, dims.Sym) and str(bound).isidentifier():
        sizes[str(bound)] = size
        return True
    return not isinstance(bound, int) or bound == size
