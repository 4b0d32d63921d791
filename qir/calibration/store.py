"""The file of calibration statistics: safetensors arrays under one JSON header.

The header lists batches and tensors in order, and the arrays hold them one after the other, so
equal statistics give equal bytes. A digest over both refuses damage.
"""

from __future__ import annotations

import hashlib
import json
from array import array as Packed
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from qir._kernels._statistics import SUM_WORDS
from qir.atomic import replacing
from qir.calibration import header
from qir.calibration.consistency import require_summary, require_trace
from qir.calibration.header import StatisticsHeader, TensorHead
from qir.calibration.record import StatisticsContents, StatisticsEntry, Trace
from qir.calibration.rows import first_line
from qir.calibration.summary import Summary
from qir.errors import InputError

Arrays = Mapping[str, NDArray[np.generic]]
TYPES = {
    "counts": np.uint64,
    "extremes": np.float32,
    "bins": np.uint64,
    "channel.low": np.float32,
    "channel.high": np.float32,
    "channel.sum": np.uint8,
    "log.batch": np.uint32,
    "log.low": np.float32,
    "log.high": np.float32,
}
SUM_BYTES = 4 * SUM_WORDS
"""Of a channel's sum: 2**62 float32 numbers in units of 2**-149 have 340 bits."""


def pack(contents: StatisticsContents) -> bytes:
    """Returns the bytes of the file: equal for equal statistics, in whatever order their batches
    came."""
    # Threads end in any order: sorted, equal statistics are equal bytes.
    batches = sorted(contents.batches)
    number = {batch: i for i, batch in enumerate(batches)}
    columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in TYPES}
    tensors: list[TensorHead] = []
    for key, summary, trace in contents.entries:
        log = trace.log(contents.batches)
        parts: Arrays = {
            "counts": summary.counts(),
            "extremes": summary.extremes,
            "bins": summary.bins,
            "channel.low": summary.channel_low,
            "channel.high": summary.channel_high,
            "channel.sum": sum_bytes(summary.channel_totals or ()),
            "log.batch": np.array([number[batch] for batch in log.batches], np.uint32),
            "log.low": log.low,
            "log.high": log.high,
        }
        for name, part in parts.items():
            columns[name].append(part)
        tensors.append(
            {
                "tensor": key.tensor,
                "axis": key.axis,
                # Integers of hundreds of bits: many readers of JSON would take them for floats.
                "total": hex(summary.total),
                "squares": hex(summary.total_squares),
                "bins": summary.bins.size,
                "channels": summary.channel_low.size,
                "sums": len(summary.channel_totals or ()),
                "log": log.low.size,
            }
        )
    arrays = {
        name: np.concatenate([np.empty(0, TYPES[name]), *parts]) for name, parts in columns.items()
    }
    head: StatisticsHeader = {
        "format": header.FORMAT,
        "version": header.VERSION,
        "model": contents.model,
        "batches": header.intervals(batches),
        "tensors": tensors,
    }
    if contents.unfinished:
        head["unfinished"] = True
    # The digest covers the text of the header as it was written, so it need not be formatted again.
    text = json.dumps(head, sort_keys=True)
    # One entry only: safetensors writes several in no fixed order.
    metadata = {"qir": json.dumps({"digest": digest(text, arrays), "head": text})}
    return safetensors.numpy.save(arrays, metadata)


def write(content: bytes, path: Path) -> None:
    """Writes the file by rename; raises InputError when it cannot be written."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def read(path: Path) -> StatisticsContents:
    """Reads a file; raises InputError when it is not one of statistics, or is damaged or newer."""
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file of statistics") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not a file of statistics, or cut off: {first_line(error)}"
        ) from None
    if "qir" not in metadata:
        raise InputError(f"{path}: holds no calibration statistics")
    try:
        return unpack(metadata["qir"], arrays)
    except ValueError as error:
        raise InputError(f"{path}: damaged statistics: {first_line(error)}") from None


def unpack(metadata: str, arrays: Arrays) -> StatisticsContents:
    """Returns what the parts of a file say; raises ValueError where they are damaged, or contradict
    each other."""
    outer = header.load_json(metadata, "the metadata")
    header.require_fields(outer, ("digest", "head"), (), "the metadata")
    text = outer["head"]
    header.require(isinstance(text, str), "head", text)
    head = header.parse(str(text))
    if outer["digest"] != digest(str(text), arrays):
        raise ValueError("the content does not have the digest that was written with it")
    # Version 1 had no sums of channels, and so no array of them.
    if head["version"] == 1:
        header.require("channel.sum" not in arrays, "version", 1)
        arrays = {**arrays, "channel.sum": np.empty(0, np.uint8)}
    batches = header.batches_of(head["batches"])
    found = tuple(entries(head["tensors"], arrays, len(batches)))
    return StatisticsContents(head["model"], batches, found, head.get("unfinished", False))


def entries(heads: Sequence[TensorHead], arrays: Arrays, batches: int) -> Iterator[StatisticsEntry]:
    """Returns each tensor's part of the arrays; raises ValueError where they do not fit."""
    used = dict.fromkeys(TYPES, 0)
    require_arrays(arrays)

    def take(name: str, count: int) -> NDArray[Any]:
        start = used[name]
        used[name] += count
        if used[name] > arrays[name].size:
            raise ValueError(f"array {name} ends too early")
        return arrays[name][start : used[name]]

    for head in heads:
        try:
            yield entry(head, take, batches)
        except ValueError as error:
            raise ValueError(f"tensor {header.shown(head['tensor'])}: {error}") from None
    for name, end in used.items():
        if end != arrays[name].size:
            raise ValueError(f"array {name} holds more than the tensors of the header")


def entry(
    head: TensorHead, take: Callable[[str, int], NDArray[Any]], batches: int
) -> StatisticsEntry:
    """Returns one tensor, of the parts that `take` gives in order; raises ValueError where they do
    not fit."""
    counts, extremes = take("counts", 5), take("extremes", 2)
    channels, sums = head["channels"], head["sums"]
    if sums not in (0, channels):
        raise ValueError(f"{sums} sums of {channels} channels")
    summary = Summary.restore(
        head["axis"],
        counts,
        extremes,
        take("bins", head["bins"]),
        (int(head["total"], 16), int(head["squares"], 16)),
        (take("channel.low", channels), take("channel.high", channels)),
        sums_of(take("channel.sum", sums * SUM_BYTES)) if sums == channels else None,
    )
    require_summary(summary, counts, extremes)
    trace = Trace(
        Packed("L", take("log.batch", head["log"]).tolist()),
        Packed("f", take("log.low", head["log"]).tolist()),
        Packed("f", take("log.high", head["log"]).tolist()),
    )
    require_trace(trace, summary, batches)
    return StatisticsEntry(header.key_of(head), summary, trace)


def sum_bytes(sums: Sequence[int]) -> NDArray[np.uint8]:
    """Returns sums as little-endian integers of `SUM_BYTES` bytes."""
    return np.frombuffer(b"".join(s.to_bytes(SUM_BYTES, "little", signed=True) for s in sums), "B")


def sums_of(data: NDArray[np.uint8]) -> tuple[int, ...]:
    """Returns the sums that `sum_bytes` wrote."""
    rows = data.reshape(-1, SUM_BYTES)
    return tuple(int.from_bytes(row.tobytes(), "little", signed=True) for row in rows)


def require_arrays(arrays: Arrays) -> None:
    """Raises ValueError unless there are the arrays of the format, in its types."""
    header.require_fields(arrays, TYPES, (), "the file")
    for name, kind in TYPES.items():
        if arrays[name].dtype != kind or arrays[name].ndim != 1:
            dtype, shape = arrays[name].dtype, list(arrays[name].shape)
            raise ValueError(f"array {name} is {dtype} of shape {header.shown(shape)}")


def digest(text: str, arrays: Arrays) -> str:
    """Returns a hash over the header and all arrays."""
    state = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {values.dtype} {values.shape}".encode())
        state.update(values.reshape(-1).view(np.uint8).data)
    return state.hexdigest()
