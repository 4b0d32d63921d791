"""Exchanges plain values and arrays with a child process over a pipe.

A message is JSON and the arrays that it names, in NumPy's own format; nothing in it is run.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

Plain: TypeAlias = Union[
    "NDArray[np.generic]",
    np.generic,
    str,
    int,
    float,
    bool,
    list["Plain"],
    tuple["Plain", ...],
    dict[str, "Plain"],
    None,
]
"""What a message may hold."""
_SIZE = 8  # bytes of a length


def pack(value: Plain) -> bytes:
    """Returns the bytes of a message; raises TypeError for what none may hold."""
    arrays: list[NDArray[np.generic]] = []
    parts = [json.dumps(_encode_value(value, arrays)).encode()]
    for array in arrays:
        block = io.BytesIO()
        # NumPy's format without pickles: what is read runs no code.
        np.lib.format.write_array(block, array, allow_pickle=False)
        parts.append(block.getvalue())
    count = len(parts).to_bytes(_SIZE, "little")
    return count + b"".join(len(p).to_bytes(_SIZE, "little") + p for p in parts)


def receive(stream: IO[bytes]) -> Plain:
    """Returns the next message of a stream; raises EOFError where it ends."""
    count = int.from_bytes(_read(stream, _SIZE), "little")
    parts = [_read(stream, int.from_bytes(_read(stream, _SIZE), "little")) for _ in range(count)]
    blocks = map(io.BytesIO, parts[1:])
    return _decode_value(
        json.loads(parts[0]), [np.lib.format.read_array(b, allow_pickle=False) for b in blocks]
    )


def ask(child: subprocess.Popen[bytes], question: Plain) -> Plain:
    """Returns the answer of a child process that serves; raises EOFError where it has ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pack(question))
        child.stdin.flush()
    except BrokenPipeError as error:
        raise EOFError("the process has ended") from error
    return receive(child.stdout)


def close(child: subprocess.Popen[bytes]) -> None:
    """Ends a child process that serves, by ending its input."""
    assert child.stdin is not None
    child.stdin.close()
    child.wait(60)


REFUSALS = (LookupError, RuntimeError, TypeError, ValueError)
"""Errors by which a kernel refuses a question."""


def serve(
    answer: Callable[[Any], Plain],
    stream: IO[bytes],
    refusals: tuple[type[Exception], ...] = REFUSALS,
) -> None:
    """Answers each message of standard input until it ends, by a value or a text of why not.

    An error among `refusals` is such a text; one of any other kind is the program's own, and ends
    it.
    """
    while True:
        try:
            question = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = answer(question)
        except refusals as error:
            reply = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        stream.write(pack(reply))
        stream.flush()


def _read(stream: IO[bytes], count: int) -> bytes:
    out = stream.read(count)
    if len(out) < count:
        raise EOFError("the stream ends within a message")
    return out


def _encode_value(value: Plain, arrays: list[NDArray[np.generic]]) -> object:
    """Returns a value as JSON has it: what is no list, text or number is an object of one key."""
    match value:
        case np.ndarray() | np.generic():
            arrays.append(np.asarray(value))
            return {"array": len(arrays) - 1}
        case tuple():
            return {"tuple": [_encode_value(v, arrays) for v in value]}
        case dict():
            return {"dict": {name: _encode_value(v, arrays) for name, v in value.items()}}
        case list():
            return [_encode_value(v, arrays) for v in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{type(value).__name__} goes through no pipe")


def _decode_value(encoded: object, arrays: list[NDArray[np.generic]]) -> Plain:
    match encoded:
        case {"array": int() as i}:
            return arrays[i]
        case {"tuple": list() as items}:
            return tuple(_decode_value(v, arrays) for v in items)
        case {"dict": dict() as items}:
            return {name: _decode_value(v, arrays) for name, v in items.items()}
        case list():
            return [_decode_value(v, arrays) for v in encoded]
        case None | bool() | int() | float() | str():
            return encoded
    raise TypeError(f"{type(encoded).__name__} came through a pipe")
