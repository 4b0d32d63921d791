"""Saves model files by rename; large models have external data.

Elements are streamed from where they are, and never part of a message in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import onnx

from qir.atomic import replacing
from qir.ir.types import Array

from .elements import element_bytes, stored_size

PROTOBUF_LIMIT = 2_000_000_000
"""Bytes of initializers that fit into one protobuf file (2 GB), with room for the rest of the
model."""
_ALIGN = 64
_MIN_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the model."""
_GRAPH_FIELD, _INITIALIZER_FIELD, _RAW_DATA_FIELD = 7, 5, 9
Large: TypeAlias = "Mapping[str, Array]"


def save(
    model: onnx.ModelProto, path: Path, large: Large | None = None, *, limit: int = PROTOBUF_LIMIT
) -> None:
    """Writes a model by rename; `large` has the arrays of initializers without elements.

    Raises InputError where the system refuses.
    """
    held = dict(large or {})
    inside = sum(len(t.raw_data) for t in model.graph.initializer)
    if inside + sum(map(stored_size, held.values())) > limit:
        _move_to_data_file(model, path.with_name(f"{path.name}.data"), held)
        held = {}
    with replacing(path) as draft, draft.open("wb") as stream:
        if held:
            _write_message(model, held, stream)
        else:
            stream.write(model.SerializeToString(deterministic=True))


def _move_to_data_file(model: onnx.ModelProto, beside: Path, large: Large) -> None:
    """Moves the tensors of a model to a file of external data."""
    with replacing(beside) as draft, draft.open("wb") as stream:
        for tensor in model.graph.initializer:
            array = large.get(tensor.name)
            length = len(tensor.raw_data) if array is None else stored_size(array)
            if length < _MIN_EXTERNAL_BYTES:
                continue
            stream.write(bytes(-stream.tell() % _ALIGN))
            place = {
                "location": beside.name,
                "offset": str(stream.tell()),
                "length": str(length),
            }
            for run in [tensor.raw_data] if array is None else element_bytes(array):
                stream.write(run)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)


def _write_message(model: onnx.ModelProto, large: Large, stream: BinaryIO) -> None:
    """Writes the model as one message, with the initializers after everything else."""
    # Protobuf fields may come in any order, so that the graph is written as its small part and
    # then each initializer.
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    del shell.graph.initializer[:]
    inner = shell.graph.SerializeToString(deterministic=True)
    shell.ClearField("graph")
    heads: list[tuple[bytes, Array | None]] = []
    size = len(inner)
    for tensor in model.graph.initializer:
        said, array, length = tensor.SerializeToString(deterministic=True), None, 0
        if tensor.name in large:
            array = large[tensor.name]
            length = stored_size(array)
            said += _varint(_RAW_DATA_FIELD << 3 | 2) + _varint(length)
        start = _varint(_INITIALIZER_FIELD << 3 | 2) + _varint(len(said) + length)
        heads.append((start + said, array))
        size += len(start) + len(said) + length
    stream.write(shell.SerializeToString(deterministic=True))
    stream.write(_varint(_GRAPH_FIELD << 3 | 2) + _varint(size))
    stream.write(inner)
    for head, array in heads:
        stream.write(head)
        for run in () if array is None else element_bytes(array):
            stream.write(run)


def _varint(value: int) -> bytes:
    """Returns a number as protobuf encodes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
