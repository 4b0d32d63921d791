"""SavedModel folders: a frozen graph with a signature that names its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping

from .graphdef import WrittenGraph
from .wire import TYPES, held, shape, whole

_METHOD = "tensorflow/serving/predict"
_SIGNATURE = "serving_default"


def to_saved_model(model: WrittenGraph) -> bytes:
    """Returns the bytes of `saved_model.pb`; all weights are constants of its graph."""
    given = _entries(1, model, model.inputs) + _entries(2, model, model.outputs)
    signature = held(1, _SIGNATURE) + held(2, given + held(3, _METHOD))
    meta = held(1, held(4, "serve")) + held(2, model.data) + held(5, signature)
    return whole(1, 1) + held(2, meta)


def _entries(field: int, model: WrittenGraph, places: Mapping[str, str]) -> bytes:
    """Returns inputs or outputs by name: a tensor, its element type and its shape."""
    out = b""
    for name, place in places.items():
        kind, sizes = model.types[place]
        info = held(1, f"{place}:0") + whole(2, TYPES[kind]) + held(3, shape(sizes))
        out += held(field, held(1, name) + held(2, info))
    return out
