"""Saves model files by rename; large models have external data.

Elements go from where they are to the file, and are never part of a message in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import onnx

from qir.atomic import replacing
from qir.ir.types import Array

from .elements import element_bytes, stored_size

LIMIT = 2_000_000_000
"""Bytes that one file of protobuf can hold, with room for the rest of the model."""
_ALIGN = 64
_LEAST = 1024
"""Bytes of a tensor that is worth a place next to the model."""
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
Large: TypeAlias = "Mapping[str, Array]"


def save(
    model: onnx.ModelProto, path: Path, large: Large | None = None, *, limit: int = LIMIT
) -> None:
    """Writes a model by rename; `large` has the elements of initializers that stand without.

    Raises InputError where the system refuses.
    """
    held = dict(large or {})
    inside = sum(len(t.raw_data) for t in model.graph.initializer)
    if inside + sum(map(stored_size, held.values())) > limit:
        _split(model, path.with_name(f"{path.name}.data"), held)
        held = {}
    with replacing(path) as draft, draft.open("wb") as stream:
        if held:
            _whole(model, held, stream)
        else:
            stream.write(model.SerializeToString(deterministic=True))


def _split(model: onnx.ModelProto, beside: Path, large: Large) -> None:
    """Moves the tensors of a model to a file of their own."""
    with replacing(beside) as draft, draft.open("wb") as stream:
        for tensor in model.graph.initializer:
            array = large.get(tensor.name)
            length = len(tensor.raw_data) if array is None else stored_size(array)
            if length < _LEAST:
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


def _whole(model: onnx.ModelProto, large: Large, stream: BinaryIO) -> None:
    """Writes the model as one message, its tensors in their order after all else."""
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
            said += _number(_RAW << 3 | 2) + _number(length)
        start = _number(_INITIALIZER << 3 | 2) + _number(len(said) + length)
        heads.append((start + said, array))
        size += len(start) + len(said) + length
    stream.write(shell.SerializeToString(deterministic=True))
    stream.write(_number(_GRAPH << 3 | 2) + _number(size))
    stream.write(inner)
    for head, array in heads:
        stream.write(head)
        for run in () if array is None else element_bytes(array):
            stream.write(run)


def _number(value: int) -> bytes:
    """Returns a number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
