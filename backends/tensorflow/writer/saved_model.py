"""SavedModel folders: a frozen graph with a signature that names its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping

from .graphdef import WrittenGraph
from .wire import TYPES, bytes_field, int_field, tensor_shape

_METHOD = "tensorflow/serving/predict"
_SIGNATURE = "serving_default"


def to_saved_model(model: WrittenGraph) -> bytes:
    """Returns the bytes of `saved_model.pb`; all weights are constants of its graph."""
    entries = _entries(1, model, model.inputs) + _entries(2, model, model.outputs)
    signature = bytes_field(1, _SIGNATURE) + bytes_field(2, entries + bytes_field(3, _METHOD))
    # MetaGraphDef: meta_info_def with the tag `serve`, the graph, and the signature.
    meta = (
        bytes_field(1, bytes_field(4, "serve"))
        + bytes_field(2, model.data)
        + bytes_field(5, signature)
    )
    return int_field(1, 1) + bytes_field(2, meta)


def _entries(field: int, model: WrittenGraph, places: Mapping[str, str]) -> bytes:
    """Returns inputs or outputs by name: a tensor, its element type and its shape."""
    out = b""
    for name, place in places.items():
        kind, sizes = model.types[place]
        info = (
            bytes_field(1, f"{place}:0")
            + int_field(2, TYPES[kind])
            + bytes_field(3, tensor_shape(sizes))
        )
        out += bytes_field(field, bytes_field(1, name) + bytes_field(2, info))
    return out
