"""The files of data that a model names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import onnx

from .files import beside, naming


def files(path: Path) -> tuple[Path, ...]:
    """Returns a model's file, and those next to it that hold its data, each once."""
    model = naming(path) if path.is_file() else None
    if model is None:
        return (path,)
    named = dict.fromkeys(_places(model))
    return (path, *dict.fromkeys(file for place in named for file in _there(path.parent, place)))


def _there(folder: Path, place: str) -> tuple[Path, ...]:
    try:
        return (beside(folder, place),)
    except ValueError:  # nothing reads it, so it is no part of the model
        return ()


def _places(model: onnx.ModelProto) -> Iterator[str]:
    graphs = [model.graph]
    nodes = chain(_nodes(model.graph, graphs), *(_nodes(f, graphs) for f in model.functions))
    attributes = [a for node in nodes for a in node.attribute]
    tensors = chain(*((a.t, *a.tensors) for a in attributes), *(g.initializer for g in graphs))
    sparse = chain(*((a.sparse_tensor, *a.sparse_tensors) for a in attributes))
    held = chain(sparse, *(g.sparse_initializer for g in graphs))
    for tensor in chain(tensors, *((each.values, each.indices) for each in held)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (e.value for e in tensor.external_data if e.key == "location")


def _nodes(
    holder: onnx.GraphProto | onnx.FunctionProto, graphs: list[onnx.GraphProto]
) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph or function and of all within, whose graphs are added to the
    list."""
    for node in holder.node:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
                graphs.append(inner)
                yield from _nodes(inner, graphs)
