"""Finds the external data files that a model names, without loading its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import onnx

from .files import parse_if_external_data, resolve_external_path


def files(path: Path) -> tuple[Path, ...]:
    """Returns a model's file and its external data files, each once."""
    model = parse_if_external_data(path) if path.is_file() else None
    if model is None:
        return (path,)
    locations = dict.fromkeys(_named_locations(model))
    return (
        path,
        *dict.fromkeys(
            file for location in locations for file in _existing_file(path.parent, location)
        ),
    )


def _existing_file(folder: Path, location: str) -> tuple[Path, ...]:
    try:
        return (resolve_external_path(folder, location),)
    except ValueError:  # reading the model refuses such a path
        return ()


def _named_locations(model: onnx.ModelProto) -> Iterator[str]:
    graphs = [model.graph]
    nodes = chain(
        _all_nodes(model.graph, graphs), *(_all_nodes(f, graphs) for f in model.functions)
    )
    attributes = [a for node in nodes for a in node.attribute]
    tensors = chain(*((a.t, *a.tensors) for a in attributes), *(g.initializer for g in graphs))
    sparse = chain(*((a.sparse_tensor, *a.sparse_tensors) for a in attributes))
    sparse_tensors = chain(sparse, *(g.sparse_initializer for g in graphs))
    for tensor in chain(
        tensors,
        *((sparse_tensor.values, sparse_tensor.indices) for sparse_tensor in sparse_tensors),
    ):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (e.value for e in tensor.external_data if e.key == "location")


def _all_nodes(
    holder: onnx.GraphProto | onnx.FunctionProto, graphs: list[onnx.GraphProto]
) -> Iterator[onnx.NodeProto]:
    """Yields all nodes of a graph or function; appends the subgraphs inside to `graphs`."""
    for node in holder.node:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
                graphs.append(inner)
                yield from _all_nodes(inner, graphs)
