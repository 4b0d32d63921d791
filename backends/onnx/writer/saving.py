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
    arrays = dict(large or {})
    # The limit is checked before anything is written, as a message cannot be split later.
    inline_bytes = sum(len(t.raw_data) for t in model.graph.initializer)
    if inline_bytes + sum(map(stored_size, arrays.values())) > limit:
        _move_to_data_file(model, path.with_name(f"{path.name}.data"), arrays)
        arrays = {}
    with replacing(path) as draft, draft.open("wb") as stream:
        if arrays:
            _write_message(model, arrays, stream)
        else:
            stream.write(model.SerializeToString(deterministic=True))


def _move_to_data_file(model: onnx.ModelProto, data_file: Path, large: Large) -> None:
    """Moves the tensors of a model to a file of external data."""
    with replacing(data_file) as draft, draft.open("wb") as stream:
        for tensor in model.graph.initializer:
            array = large.get(tensor.name)
            length = len(tensor.raw_data) if array is None else stored_size(array)
            if length < _MIN_EXTERNAL_BYTES:
                continue
            # Offsets are aligned, so that a runtime can map the file into memory.
            stream.write(bytes(-stream.tell() % _ALIGN))
            location = {
                "location": data_file.name,
                "offset": str(stream.tell()),
                "length": str(length),
            }
            for piece in [tensor.raw_data] if array is None else element_bytes(array):
                stream.write(piece)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in location.items():
                tensor.external_data.add(key=key, value=value)


def _write_message(model: onnx.ModelProto, large: Large, stream: BinaryIO) -> None:
    """Writes the model as one message, with the initializers after everything else."""
    # Protobuf fields may come in any order, so that the graph is written as its small part and
    # then each initializer.
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    del shell.graph.initializer[:]
    graph_bytes = shell.graph.SerializeToString(deterministic=True)
    shell.ClearField("graph")
    headers: list[tuple[bytes, Array | None]] = []
    size = len(graph_bytes)
    for tensor in model.graph.initializer:
        # The serialized tensor without elements, then the tag and length of its raw_data field.
        header, array, length = tensor.SerializeToString(deterministic=True), None, 0
        if tensor.name in large:
            array = large[tensor.name]
            length = stored_size(array)
            header += _varint(_RAW_DATA_FIELD << 3 | 2) + _varint(length)
        prefix = _varint(_INITIALIZER_FIELD << 3 | 2) + _varint(len(header) + length)
        headers.append((prefix + header, array))
        size += len(prefix) + len(header) + length
    stream.write(shell.SerializeToString(deterministic=True))
    # Wire type 2 (length-delimited) needs the length first: the sum of all parts.
    stream.write(_varint(_GRAPH_FIELD << 3 | 2) + _varint(size))
    stream.write(graph_bytes)
    for head, array in headers:
        stream.write(head)
        for piece in () if array is None else element_bytes(array):
            stream.write(piece)


def _varint(value: int) -> bytes:
    """Returns a number as protobuf encodes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
