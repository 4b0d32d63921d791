"""Protobuf messages broken at random: still messages, and no longer what they were."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from tests.fuzzing.breaking import break_bytes

_MOST = 4000
"""Messages of a model that are looked at."""
_WHOLE = (0, 1, -1, 2, 3, 7, 8, 16, 127, 255, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
_REAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, 1e38, float("inf"), float("-inf"), float("nan"))
_TEXT = (
    *("", "x", "y", "a b", "\0", "a\0b", "é", "a\nb", '"', "\\", "../x", "/etc/passwd", "N" * 90),
    *("If", "Loop", "Scan", "Constant", "com.microsoft", "ai.onnx", "qir", "mine", "body", "axis"),
    *("SCALE_TENSOR", "location", "offset", "length", "9" * 30, "-1", "linear", "ROUND", "int8"),
)
_INTS: Final = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


def break_messages(rng: random.Random, model: onnx.ModelProto, times: int) -> None:
    """Some fields of some messages get other contents."""
    for _ in range(times):
        found = list(within(model))
        held = [m for m in found if m.ListFields()]
        if held:
            _break(rng, rng.choice(held), found)


def within(message: Message) -> Iterator[Message]:
    """A message and those in it, outer ones first."""
    waiting, count = [message], 0
    while waiting and count < _MOST:
        one = waiting.pop()
        count += 1
        yield one
        for field, value in one.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting.extend(value if _several(field) else [value])


def _several(field: Any) -> bool:
    said = getattr(field, "is_repeated", None)
    return bool(said) if said is not None else field.label == FieldDescriptor.LABEL_REPEATED


def _break(rng: random.Random, message: Message, found: list[Message]) -> None:
    fields = [field for field, _ in message.ListFields()]
    if rng.random() < 0.2:  # one that says nothing so far
        fields = list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif _several(field):
        _break_several(rng, message, field, found)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        into = getattr(message, field.name)
        like = [m for m in found if m.DESCRIPTOR is field.message_type]
        into.CopyFrom(_copied(rng.choice(like)) if like else type(into)())
    else:
        setattr(message, field.name, _other(rng, field, getattr(message, field.name), found))


def _break_several(rng: random.Random, message: Message, field: Any, found: list[Message]) -> None:
    held = getattr(message, field.name)
    values = list(held)
    at = rng.randrange(len(values)) if values else 0
    make: Callable[[], Any]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        values = [_copied(v) for v in values]
        like = [m for m in found if m.DESCRIPTOR is field.message_type]

        def make() -> Any:
            return _copied(rng.choice(like)) if like else None
    else:

        def make() -> Any:
            return _other(rng, field, values[at] if values else None, found)

    match rng.randrange(5):
        case 0 if values:
            del values[at]
        case 1 if values:
            values.insert(rng.randrange(len(values) + 1), values[at])
        case 2 if values:
            values.append(values.pop(at))
        case 3 if values:
            values[at : at + 1] = [made] if (made := make()) is not None else []
        case _:
            values.insert(at, made) if (made := make()) is not None else None
    message.ClearField(field.name)
    getattr(message, field.name).extend(values)


def _copied(message: Message) -> Message:
    """A copy, since what holds a message lets it go when it is cleared."""
    out = type(message)()
    out.CopyFrom(message)
    return out


def _other(rng: random.Random, field: Any, now: Any, found: list[Message]) -> Any:
    """Another content of a field that holds no message."""
    if field.type == FieldDescriptor.TYPE_STRING:
        names = [n for m in found if isinstance(m, onnx.NodeProto) for n in (*m.input, *m.output)]
        return rng.choice(names if names and rng.random() < 0.6 else _TEXT)
    if field.type == FieldDescriptor.TYPE_BYTES:
        some = now if now and rng.random() < 0.7 else rng.choice(_TEXT).encode()
        return break_bytes(rng, bytes(some))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice(sorted(field.enum_type.values_by_number))
    if field.type in _INTS:
        low, high = _INTS[field.type]
        near = [now - 1, now + 1, -now] if isinstance(now, int) else []
        wanted = rng.choice([*near, *_WHOLE, rng.randrange(40)])
        return min(max(wanted, low), high)
    return rng.choice(_REAL)
