"""Model files that arrive whole; large ones keep their tensors beside them."""

from __future__ import annotations

from pathlib import Path

import onnx

from qir.atomic import replacing

LIMIT = 2_000_000_000
"""Bytes that one file of protobuf can hold, with room for the rest of the model."""
_ALIGN = 64


def save(model: onnx.ModelProto, path: Path, *, limit: int = LIMIT) -> None:
    """Writes a model by rename; InputError where the system refuses."""
    if sum(len(t.raw_data) for t in model.graph.initializer) > limit:
        _split(model, path.with_name(f"{path.name}.data"))
    with replacing(path) as draft:
        draft.write_bytes(model.SerializeToString(deterministic=True))


def _split(model: onnx.ModelProto, beside: Path) -> None:
    """Moves the tensors of a model to a file of their own."""
    with replacing(beside) as draft, draft.open("wb") as stream:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < 1024:
                continue
            stream.write(bytes(-stream.tell() % _ALIGN))
            place = {
                "location": beside.name,
                "offset": str(stream.tell()),
                "length": str(len(tensor.raw_data)),
            }
            stream.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
