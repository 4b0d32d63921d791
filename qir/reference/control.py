"""Control: running the bodies that a node holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.types import TensorType
from qir.reference.operands import Array, normalize_axis

_MAX_ROUNDS = 1 << 24


class RunnableBody(Protocol):
    """A body that can be run: values in their order to values in their order."""

    @property
    def takes(self) -> Sequence[TensorType]:
        """What it takes."""

    @property
    def kinds(self) -> Sequence[TensorType]:
        """What it gives."""

    def __call__(self, given: Sequence[Array]) -> list[Array]: ...


Operands: TypeAlias = Mapping[str, Array]
Attrs: TypeAlias = Mapping[str, Attr]
Bodies: TypeAlias = Mapping[str, RunnableBody]


def branch(operands: Operands, attrs: Attrs, bodies: Bodies) -> list[Array]:
    """Returns what the branch that the condition picks makes of xs."""
    return bodies["then" if _true("if", operands["cond"]) else "else"](_many(operands, "xs"))


def loop(operands: Operands, attrs: Attrs, bodies: Bodies) -> list[Array]:
    """Returns the carried values after the last round, then what the rounds gave, stacked.

    Raises OpError for a loop that does not end.
    """
    body, given = bodies["body"], _many(operands, "xs")
    carried = _many(operands, "vs")
    n, most = len(carried), _MAX_ROUNDS
    if "count" in operands:
        most = min(most, int(operands["count"].reshape(())))
    go = _true("loop", operands["cond"]) if "cond" in operands else True
    rounds: list[list[Array]] = []
    while go and len(rounds) < most:
        first = [np.array(len(rounds), np.int64), np.array(go)]
        count = [x.reshape((1,) * t.rank) for x, t in zip(first, body.takes, strict=False)]
        made = body([*count, *carried, *given])
        go = _true("loop", made[0])
        carried = made[1 : 1 + n]
        rounds.append(made[1 + n :])
    if go and most == _MAX_ROUNDS:
        raise OpError(f"loop: its condition still holds after {most} rounds")
    kinds = body.kinds[1 + n :]
    parts = [[made[i] for made in rounds] for i in range(len(kinds))]
    return [*carried, *(_stack("loop", p, k, 0) for p, k in zip(parts, kinds, strict=True))]


def scan(operands: Operands, attrs: Attrs, bodies: Bodies) -> list[Array]:
    """Returns the carried values after the last entry, then what the rounds gave, stacked.

    Raises OpError for sequences of different lengths.
    """
    body, given = bodies["body"], _many(operands, "xs")
    carried, sequences = _many(operands, "vs"), _many(operands, "ss")
    n = len(carried)
    axes, reverse = _ways(attrs, "axes", "reverse", len(sequences))
    along = [normalize_axis("scan", a, s.ndim) for a, s in zip(axes, sequences, strict=True)]
    lengths = {s.shape[axis] for s, axis in zip(sequences, along, strict=True)}
    if len(lengths) != 1:
        raise OpError(f"scan: the sequences have {sorted(lengths)} entries")
    count = lengths.pop()
    rounds: list[list[Array]] = []
    for i in range(count):
        at = [count - 1 - i if back else i for back in reverse]
        entries = [np.take(s, k, a) for s, k, a in zip(sequences, at, along, strict=True)]
        made = body([*carried, *entries, *given])
        carried = made[:n]
        rounds.append(made[n:])
    kinds = body.kinds[n:]
    out_axes, backwards = _ways(attrs, "out_axes", "out_reverse", len(kinds))
    stacked: list[Array] = []
    for i, kind in enumerate(kinds):
        parts = [made[i] for made in (reversed(rounds) if backwards[i] else rounds)]
        stacked.append(_stack("scan", parts, kind, out_axes[i]))
    return [*carried, *stacked]


FUNCTIONS: dict[str, Callable[[Operands, Attrs, Bodies], list[Array]]] = {
    "if": branch,
    "loop": loop,
    "scan": scan,
}


def _true(op: str, x: Array) -> bool:
    if x.size != 1 or x.dtype != np.bool_:
        raise OpError(f"{op}: the condition is {x.dtype} {list(x.shape)}, it takes one bool")
    return bool(x.reshape(()))


def _many(operands: Operands, prefix: str) -> list[Array]:
    """Returns the operands of a variadic slot, in order."""
    found = [slot for slot in operands if slot.startswith(f"{prefix}.")]
    return [operands[slot] for slot in sorted(found, key=lambda s: int(s.rpartition(".")[2]))]


def _ways(attrs: Attrs, axes: str, reverse: str, count: int) -> tuple[list[int], list[bool]]:
    """Returns the axis of each sequence, and whether it runs backwards."""
    along, back = attrs[axes], attrs[reverse]
    assert isinstance(along, tuple)
    assert isinstance(back, tuple)
    places = [a for a in along if isinstance(a, int)] or [0] * count
    return places, [bool(b) for b in back] or [False] * count


def _stack(op: str, parts: Sequence[Array], kind: TensorType, axis: int) -> Array:
    """Returns the parts along a new axis; none of them: an empty tensor of their type."""
    if not parts:
        shape = [d if isinstance(d, int) else 0 for d in kind.shape]
        shape.insert(normalize_axis(op, axis, kind.rank + 1), 0)
        return np.zeros(shape, kind.dtype.carrier)
    first = parts[0]
    for part in parts:
        if part.shape != first.shape:
            sizes = f"{list(first.shape)} and {list(part.shape)}"
            raise OpError(f"{op}: the parts of two rounds are {sizes} and cannot be stacked")
    return np.stack(parts, normalize_axis(op, axis, first.ndim + 1))
