"""Program files (`.qirp`): the steps of a compiled model and its arrays, which are memory-mapped.

A file holds the calls that built a plan, and the arrays as they were given. Loading repeats the
calls: the plan checks each one again, and packs weights for the processor at hand. So a file runs
on any machine, and a forged one is refused.

Layout: a head of fixed size with a checksum of all that follows it; a table in JSON; the arrays,
each at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir.atomic import claim, replacing
from qir.errors import InputError, Refused
from qir.records import record

if TYPE_CHECKING:  # a file is read without the compiler
    from .builder import Buffer, PendingStep
    from .sizes import Sizes

SUFFIX = ".qirp"
VERSION = 1
"""The version of the format; no other is read."""
_MAGIC = b"QIRPROG\0"
_HEAD = struct.Struct("<8sIIQQ")
"""Magic, version, zero, bytes of the table, sum of all after the head."""
_ALIGN = 64
STEPS = frozenset(
    name
    for part in _cpu.Plan.__mro__[:-1]
    for name in vars(part)
    if not name.startswith("_") and name not in ("call", "run", "profile", "steps", "work")
)
"""Methods of a plan that add a step of compiled code."""

Tensor: TypeAlias = NDArray[np.generic]


@record
class External:
    """A buffer outside the arena: an input, a result, or an array of the program."""

    kind: str
    name: str = ""
    data: Tensor | None = None


@record
class RecordedStep:
    """A step: the method of the plan that adds it, its arguments, and what tables show of it."""

    method: str
    args: Sequence[object]
    options: Mapping[str, object]
    shape: Sizes
    bytes: int


@record
class ProgramListing:
    """Everything that a file holds of a program."""

    arena: int
    places: Sequence[tuple[int, int]]
    externals: Sequence[External]
    inputs: Mapping[str, tuple[np.dtype[np.generic], Sizes]]
    results: Mapping[str, tuple[np.dtype[np.generic], Sizes]]
    steps: Sequence[RecordedStep]


@dataclass(slots=True)
class _Recorder:
    """Stands in for a plan and records the calls."""

    calls: list[tuple[str, Sequence[object], Mapping[str, object]]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def keep(*args: object, **options: object) -> None:
            self.calls.append((method, args, options))

        return keep


def recorded_steps(
    steps: Sequence[PendingStep], number: Callable[[Buffer], int]
) -> list[RecordedStep]:
    """Returns the calls that add steps to a plan; raises Refused for a step that is a Python
    call."""
    recorder = _Recorder()
    for step in steps:
        # The recorder takes each call that the step would make on a plan.
        step.add(cast("_cpu.Plan", recorder), number)
    out = []
    for step, (method, args, options) in zip(steps, recorder.calls, strict=True):
        if method == "call":
            reason = "runs in Python, and program files hold compiled steps alone; keep the model"
            raise Refused(f"{step.name}: it {reason}")
        size = sum(b.size for b in (*step.reads, *step.writes))
        out.append(RecordedStep(method, args, options, step.shape, size))
    return out


def write(path: Path, listing: ProgramListing, *, force: bool = False) -> None:
    """Writes a file, by rename; raises UsageError where one is there, unless `force`."""
    claim(path, force=force)
    arrays: list[Tensor] = []

    def as_reference(value: object) -> object:
        if isinstance(value, np.ndarray) and value.ndim:
            arrays.append(np.ascontiguousarray(value))
            return {"array": len(arrays) - 1}
        if isinstance(value, np.ndarray | np.generic):
            return value.item()
        return [as_reference(v) for v in value] if isinstance(value, tuple | list) else value

    table = {
        "arena": listing.arena,
        "places": [list(place) for place in listing.places],
        "externals": [[e.kind, e.name, as_reference(e.data)] for e in listing.externals],
        "inputs": [[name, kind.name, shape] for name, (kind, shape) in listing.inputs.items()],
        "results": [[name, kind.name, shape] for name, (kind, shape) in listing.results.items()],
        "steps": [
            [
                s.method,
                as_reference(s.args),
                {k: as_reference(v) for k, v in s.options.items()},
                s.shape,
                s.bytes,
            ]
            for s in listing.steps
        ],
    }
    # Arrays start at multiples of 64 bytes, so that they can be mapped and read by vectors.
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGN) * _ALIGN
    array_entries = [[a.dtype.name, a.shape, at] for a, at in zip(arrays, starts, strict=True)]
    text = json.dumps({**table, "arrays": array_entries}, separators=(",", ":")).encode()
    # Spaces fill the table up, so that the arrays after it are aligned too.
    text += b" " * (-(_HEAD.size + len(text)) % _ALIGN)
    body = bytearray(len(text) + end)
    body[: len(text)] = text
    for array, at in zip(arrays, starts, strict=True):
        start = len(text) + at
        body[start : start + array.nbytes] = array.reshape(-1).view(np.uint8).data
    head = _HEAD.pack(_MAGIC, VERSION, 0, len(text), _cpu.checksum(memoryview(body)))
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(head)
        file.write(body)


def _each(function: Callable[[object], object], values: Mapping[str, object]) -> dict[str, object]:
    return {name: function(value) for name, value in values.items()}


def read(path: Path) -> ProgramListing:
    """Reads a file, its arrays mapped; raises InputError for one that is none, or damaged."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if head[:8] != _MAGIC:
                raise InputError(f"{path}: no program file of QIR")
            if len(head) < _HEAD.size:
                raise InputError(f"{path}: cut off")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    _, version, zero, length, checksum = _HEAD.unpack(head)
    if version != VERSION:
        message = f"version {version}, this QIR reads {VERSION}; compile the model again"
        raise InputError(f"{path}: a program file of {message}")
    # The checksum covers table and arrays; the table is parsed only if it matches.
    content = data[_HEAD.size :]
    if zero or length > len(content) or _cpu.checksum(content) != checksum:
        raise InputError(f"{path}: damaged or cut off; compile the model again")
    try:
        return _listing(json.loads(bytes(content[:length])), content[length:])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError,
            OverflowError, MemoryError):  # fmt: skip
        raise InputError(f"{path}: damaged: its table is none") from None


def _listing(table: Mapping[str, list[list[object]]], data: memoryview) -> ProgramListing:
    arrays = [_array(row, data) for row in table["arrays"]]

    def resolve(value: object) -> object:
        if isinstance(value, dict):
            return arrays[_natural_number(value["array"])]
        return tuple(resolve(v) for v in value) if isinstance(value, list) else value

    def kinds(rows: list[list[object]]) -> dict[str, tuple[np.dtype[np.generic], Sizes]]:
        return {str(name): (np.dtype(str(kind)), _sizes(shape)) for name, kind, shape in rows}

    def step(
        method: object, args: object, options: object, shape: object, size: object
    ) -> RecordedStep:
        if method not in STEPS or not isinstance(args, list) or not isinstance(options, dict):
            raise ValueError
        arguments_by_name = {str(name): resolve(value) for name, value in options.items()}
        return RecordedStep(
            str(method),
            [resolve(a) for a in args],
            arguments_by_name,
            _sizes(shape),
            _natural_number(size),
        )

    def external(kind: object, name: object, data: object) -> External:
        array = resolve(data)
        if kind not in ("input", "result", "array") or isinstance(array, np.ndarray) != (
            kind == "array"
        ):
            raise ValueError
        return External(str(kind), str(name), array if isinstance(array, np.ndarray) else None)

    return ProgramListing(
        _natural_number(table["arena"]),
        [(int(str(at)), _natural_number(size)) for at, size in table["places"]],
        [external(*row) for row in table["externals"]],
        kinds(table["inputs"]),
        kinds(table["results"]),
        [step(*row) for row in table["steps"]],
    )


def _array(row: list[object], data: memoryview) -> Tensor:
    kind, shape, start = np.dtype(str(row[0])), _sizes(row[1]), _natural_number(row[2])
    end = start + math.prod(shape) * kind.itemsize
    # A forged table may name bytes beyond the file, or Python objects.
    if end > len(data) or kind.hasobject or not kind.itemsize:
        raise ValueError
    return np.frombuffer(data[start:end], kind).reshape(shape)


def _sizes(value: object) -> Sizes:
    if not isinstance(value, list):
        raise ValueError
    return tuple(map(_natural_number, value))


def _natural_number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value
