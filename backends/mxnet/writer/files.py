"""The two files of a model: their names, the bytes of parameters, and how they are put in place."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.atomic import replacing

Parameters = Mapping[str, NDArray[Any]]
_MAGIC, _V2 = 0x112, 0xF993FAC9
FLAGS: Mapping[np.dtype[Any], int] = {
    np.dtype(kind): flag
    for kind, flag in (
        (np.float32, 0),
        (np.float64, 1),
        (np.float16, 2),
        (np.uint8, 3),
        (np.int32, 4),
        (np.int8, 5),
        (np.int64, 6),
        (ml_dtypes.bfloat16, 12),
    )
}
"""MXNet's flag of each element type that its operators compute with."""


def parameters_path(symbol: Path) -> Path:
    """Returns where the parameters of a symbol are: NAME-0000.params for NAME-symbol.json."""
    return symbol.with_name(symbol.stem.removesuffix("-symbol") + "-0000.params")


def write(path: Path, symbol: str, parameters: Parameters) -> None:
    """Writes a symbol and its parameters, each by rename once both are whole."""
    with replacing(path) as draft, replacing(parameters_path(path)) as parameter_draft:
        draft.write_text(symbol, encoding="utf-8")
        with parameter_draft.open("wb") as stream:
            for part in parameter_bytes(parameters):
                stream.write(part)


def copy(source: tuple[Path, Path], path: Path) -> None:
    """Copies the two files of a model, each by rename once both are whole."""
    targets = path, parameters_path(path)
    if all(p.exists() and p.samefile(old) for p, old in zip(targets, source, strict=True)):
        return
    with replacing(targets[0]) as draft, replacing(targets[1]) as more:
        shutil.copyfile(source[0], draft)
        shutil.copyfile(source[1], more)


def parameter_bytes(parameters: Parameters) -> Iterator[bytes]:
    """Yields the bytes of a `.params` file: dense arrays of version V2, then their names."""
    # The list header: a magic number, a reserved zero, and the count of arrays.
    yield struct.pack("<QQQ", _MAGIC, 0, len(parameters))
    for data in parameters.values():
        shape = data.shape
        # Each array: version, storage type 0 (dense), rank and sizes; then the device and the type.
        yield struct.pack(f"<Iii{len(shape)}q", _V2, 0, len(shape), *shape)
        yield struct.pack("<iii", 1, 0, FLAGS[data.dtype])
        yield np.ascontiguousarray(data).tobytes()
    yield struct.pack("<Q", len(parameters))
    for name in parameters:
        yield struct.pack("<Q", len(name.encode())) + name.encode()
