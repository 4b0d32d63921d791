"""The file of calibration statistics: safetensors arrays under one JSON header.

The header lists batches and tensors in order, and the arrays hold them one after the other, so
equal statistics give equal bytes. A digest over both refuses damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from array import array as Packed
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from qir.calibration.record import BatchId, Contents, Entry, Key, Trace
from qir.calibration.rows import first_line
from qir.calibration.summary import Summary
from qir.errors import DataError, InputError

FORMAT, VERSION = "qir.statistics", 1

Arrays = Mapping[str, NDArray[np.generic]]
TYPES = {
    "counts": np.uint64,
    "extremes": np.float32,
    "bins": np.uint64,
    "channel.low": np.float32,
    "channel.high": np.float32,
    "log.batch": np.uint32,
    "log.low": np.float32,
    "log.high": np.float32,
}


class TensorHead(TypedDict):
    """One tensor in the header: its integers, and how much of each array is its own."""

    tensor: str
    axis: int | None
    total: str
    squares: str
    bins: int
    channels: int
    log: int


class Head(TypedDict):
    """The header; batches are half-open intervals for each data digest."""

    format: str
    version: int
    model: str
    batches: dict[str, list[list[int]]]
    tensors: list[TensorHead]
    unfinished: NotRequired[bool]


def pack(contents: Contents) -> bytes:
    """The bytes of the file: equal for equal statistics, in whatever order their batches came."""
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
                "total": hex(summary.total),
                "squares": hex(summary.total_squares),
                "bins": summary.bins.size,
                "channels": summary.channel_low.size,
                "log": log.low.size,
            }
        )
    arrays = {
        name: np.concatenate([np.empty(0, TYPES[name]), *parts]) for name, parts in columns.items()
    }
    head: Head = {
        "format": FORMAT,
        "version": VERSION,
        "model": contents.model,
        "batches": intervals(batches),
        "tensors": tensors,
    }
    if contents.unfinished:
        head["unfinished"] = True
    text = json.dumps(head, sort_keys=True)
    # One entry only: safetensors writes several in no fixed order.
    metadata = {"qir": json.dumps({"digest": digest(text, arrays), "head": text})}
    return safetensors.numpy.save(arrays, metadata)


def write(content: bytes, path: Path) -> None:
    """Write the file, which appears at once; DataError when it cannot be written."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)  # a temporary file is private, this one is not
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> Contents:
    """Read a file; InputError when it is not one of statistics, or is damaged or newer."""
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
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
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise InputError(f"{path}: damaged statistics: {first_line(error)}") from None


def unpack(metadata: str, arrays: Arrays) -> Contents:
    """What the parts of a file say; ValueError, TypeError or KeyError for damage."""
    outer = json.loads(metadata)
    text = outer["head"]
    head: Head = json.loads(text)
    if head["format"] != FORMAT:
        raise ValueError(f"the format is {head['format']!r}, not {FORMAT!r}")
    if head["version"] != VERSION:
        raise ValueError(f"format version {head['version']}, this QIR reads {VERSION}")
    if outer["digest"] != digest(text, arrays):
        raise ValueError("the content does not have the digest that was written with it")
    batches = tuple(
        BatchId(data, number)
        for data, spans in head["batches"].items()
        for start, stop in spans
        for number in range(start, stop)
    )
    unfinished = head.get("unfinished", False)
    return Contents(head["model"], batches, tuple(entries(head["tensors"], arrays)), unfinished)


def entries(heads: Iterable[TensorHead], arrays: Arrays) -> Iterable[Entry]:
    """Each tensor's part of the arrays."""
    used = dict.fromkeys(TYPES, 0)

    def take(name: str, count: int) -> NDArray[np.generic]:
        start = used[name]
        used[name] += count
        return arrays[name][start : start + count]

    for head in heads:
        summary = Summary.restore(
            head["axis"],
            take("counts", 5).astype(np.uint64),
            take("extremes", 2).astype(np.float32),
            take("bins", head["bins"]).astype(np.uint64),
            (int(head["total"], 16), int(head["squares"], 16)),
            (
                take("channel.low", head["channels"]).astype(np.float32),
                take("channel.high", head["channels"]).astype(np.float32),
            ),
        )
        trace = Trace(
            Packed("L", take("log.batch", head["log"]).tolist()),
            Packed("f", take("log.low", head["log"]).tolist()),
            Packed("f", take("log.high", head["log"]).tolist()),
        )
        yield Entry(Key(head["tensor"], head["axis"]), summary, trace)


def intervals(batches: Iterable[BatchId]) -> dict[str, list[list[int]]]:
    """Sorted batches as half-open intervals for each data digest."""
    spans: dict[str, list[list[int]]] = {}
    for data, group in groupby(batches, key=lambda batch: batch.data):
        for batch in group:
            mine = spans.setdefault(data, [])
            if mine and mine[-1][1] == batch.number:
                mine[-1][1] += 1
            else:
                mine.append([batch.number, batch.number + 1])
    return spans


def digest(text: str, arrays: Arrays) -> str:
    """A hash over the header and all arrays."""
    state = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        state.update(f"{name} {values.dtype} {values.shape}".encode())
        state.update(values.reshape(-1).view(np.uint8).data)
    return state.hexdigest()
