"""Parses and checks the JSON header of a statistics file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby, pairwise
from typing import NotRequired, TypedDict, cast

from qir.calibration.record import MAX_BATCHES, BatchId, Key, sort_key

FORMAT, VERSION = "qir.statistics", 2
SUPPORTED_VERSIONS = (1, VERSION)
"""Versions that are read; those before 2 hold no sums of channels."""
MAX_AXES = 64
"""No array of NumPy's has more axes."""
MAX_CHARACTERS = 128
"""Of a digest; ours have 32."""
MAX_DIGITS = 256
"""Hexadecimal digits of a sum; a sum of 2**62 squares has 154."""


class TensorHead(TypedDict):
    """One tensor in the header: its integers, and how much of each array is its own."""

    tensor: str
    axis: int | None
    total: str
    squares: str
    bins: int
    channels: int
    sums: int
    """Channels whose sums are held: all, or none where a file of version 1 is included."""
    log: int


class StatisticsHeader(TypedDict):
    """The header; batches are half-open intervals for each data digest."""

    format: str
    version: int
    model: str
    batches: dict[str, list[list[int]]]
    tensors: list[TensorHead]
    unfinished: NotRequired[bool]


OPTIONAL = frozenset({"unfinished"})
"""Fields of the header that may be left out."""


def parse(text: str) -> StatisticsHeader:
    """Reads a header; ValueError says which field is missing, unknown, or of the wrong kind."""
    head = load_json(text, "the header")
    if head.get("format") != FORMAT:
        raise ValueError(f"the format is {shown(head.get('format'))}, not {FORMAT!r}")
    version = head.get("version")
    # `True` is an instance of int, and equals 1.
    if type(version) is not int or version not in SUPPORTED_VERSIONS:
        raise ValueError(f"format version {shown(version)}, this QIR reads up to {VERSION}")
    require_fields(head, StatisticsHeader.__annotations__.keys() - OPTIONAL, OPTIONAL, "the header")
    require(is_digest(head["model"]), "model", head["model"])
    # The field is written only where it is true, so equal statistics have equal bytes.
    require(head.get("unfinished", True) is True, "unfinished", head.get("unfinished"))
    require(isinstance(head["batches"], dict), "batches", head["batches"])
    require(isinstance(head["tensors"], list), "tensors", head["tensors"])
    for number, tensor in enumerate(cast("list[object]", head["tensors"])):
        if version == 1 and isinstance(tensor, dict):
            # Files of version 1 hold no sums of channels.
            tensor.setdefault("sums", 0)
        require_tensor(tensor, f"tensor {number}")
    checked = cast("StatisticsHeader", head)
    keys = [sort_key(key_of(tensor)) for tensor in checked["tensors"]]
    if any(a >= b for a, b in pairwise(keys)):
        raise ValueError("the tensors are not in order, or one is listed twice")
    return checked


def load_json(text: str, what: str) -> dict[str, object]:
    """Returns a JSON object; raises ValueError for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{what} is no JSON object")
    return found


def require_tensor(tensor: object, what: str) -> None:
    """Raises ValueError unless the header of one tensor has its fields, each of its kind."""
    if not isinstance(tensor, dict):
        raise ValueError(f"{what} is {shown(tensor)}, not an object")
    require_fields(tensor, TensorHead.__annotations__, (), what)
    name, axis = tensor["tensor"], tensor["axis"]
    require(isinstance(name, str), f"{what}: tensor", name)
    require(axis is None or (is_count(axis) and axis < MAX_AXES), f"{what}: axis", axis)
    for field in ("bins", "channels", "sums", "log"):
        require(is_count(tensor[field]), f"{what}: {field}", tensor[field])
    for field in ("total", "squares"):
        number(tensor[field], f"{what}: {field}")


def require_fields(
    found: Mapping[str, object], wanted: Collection[str], optional: Collection[str], what: str
) -> None:
    """Raises ValueError for a field that is missing, or is not known."""
    for name in sorted(wanted):
        if name not in found:
            raise ValueError(f"{what} has no {name!r}")
    for name in found:
        if name not in wanted and name not in optional:
            raise ValueError(f"{what} has an unknown field {shown(name)}")


def require(holds: bool, what: str, value: object) -> None:
    """Raises ValueError with the value unless it is as it should be."""
    if not holds:
        raise ValueError(f"{what} is {shown(value)}")


def is_count(value: object) -> bool:
    """Tells integers from 0 to 2**62 from all else; True and False are none."""
    return type(value) is int and 0 <= value < 1 << 62


def is_digest(value: object) -> bool:
    """Tells texts that are short enough for the digest of a model, or of data."""
    return isinstance(value, str) and len(value) <= MAX_CHARACTERS


def number(text: object, what: str) -> int:
    """Returns the integer that `hex` wrote; raises ValueError for any other text."""
    if isinstance(text, str) and len(text) <= MAX_DIGITS:
        try:
            value = int(text, 16)
        except ValueError:
            value = 0
        # Only as `hex` writes it: equal statistics have equal bytes, so there is one way to write
        # each.
        if hex(value) == text:
            return value
    raise ValueError(f"{what} is {shown(text)}, not a hexadecimal integer")


def shown(value: object) -> str:
    """Returns a value for a message, cut off where it is long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def key_of(tensor: TensorHead) -> Key:
    """Returns the tensor and axis that an entry of the header describes."""
    return Key(tensor["tensor"], tensor["axis"])


def batches_of(spans: Mapping[str, object]) -> tuple[BatchId, ...]:
    """Returns the batches that the intervals of each data digest list, in order.

    ValueError where an interval is none, where they overlap or are out of order, and for more than
    `MOST_BATCHES`: a few bytes could ask for any number.
    """
    if list(spans) != sorted(spans):
        raise ValueError("the data of the batches are not in order")
    found: list[tuple[str, int, int]] = []
    for data, listed in spans.items():
        require(is_digest(data), "the digest of data", data)
        require(isinstance(listed, list) and bool(listed), "the list of batches", listed)
        # Ends are exclusive, and touching intervals would be one: a start equal to the last end is
        # refused.
        end = -1
        for span in cast("list[object]", listed):
            start, stop = bounds(span)
            if start <= end:
                raise ValueError(f"batches {start} to {stop} are out of order, or listed twice")
            found.append((data, start, stop))
            end = stop
    count = sum(stop - start for _, start, stop in found)
    if count > MAX_BATCHES:
        raise ValueError(f"it lists {count} batches, statistics hold at most {MAX_BATCHES}")
    return tuple(BatchId(data, n) for data, start, stop in found for n in range(start, stop))


def bounds(span: object) -> tuple[int, int]:
    """Returns the two ends of an interval; raises ValueError unless the second is larger."""
    if isinstance(span, list) and len(span) == 2 and all(map(is_count, span)):
        start, stop = span
        if start < stop:
            return start, stop
    raise ValueError(f"{shown(span)} is no interval of batches")


def intervals(batches: Iterable[BatchId]) -> dict[str, list[list[int]]]:
    """Returns sorted batches as half-open intervals for each data digest."""
    spans: dict[str, list[list[int]]] = {}
    for data, group in groupby(batches, key=lambda batch: batch.data):
        for batch in group:
            mine = spans.setdefault(data, [])
            if mine and mine[-1][1] == batch.number:
                mine[-1][1] += 1
            else:
                mine.append([batch.number, batch.number + 1])
    return spans
