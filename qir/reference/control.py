"""Control: running the bodies that a node holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.types import TensorType
from qir.reference.operands import Array, normalize_axis

# A loop whose condition never turns false would run for ever: 16 million rounds are refused
# instead.
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
    return bodies["then" if _as_bool("if", operands["cond"]) else "else"](
        _variadic_operands(operands, "xs")
    )


def loop(operands: Operands, attrs: Attrs, bodies: Bodies) -> list[Array]:
    """Returns the carried values after the last round, then what the rounds gave, stacked.

    Raises OpError for a loop that does not end.
    """
    body, captured = bodies["body"], _variadic_operands(operands, "xs")
    carried = _variadic_operands(operands, "vs")
    carried_count, max_rounds = len(carried), _MAX_ROUNDS
    if "count" in operands:
        max_rounds = min(max_rounds, int(operands["count"].reshape(())))
    condition = _as_bool("loop", operands["cond"]) if "cond" in operands else True
    rounds: list[list[Array]] = []
    while condition and len(rounds) < max_rounds:
        counters = [np.array(len(rounds), np.int64), np.array(condition)]
        # A body may state its counter and condition as scalars or as tensors of one element.
        counter_inputs = [
            x.reshape((1,) * t.rank) for x, t in zip(counters, body.takes, strict=False)
        ]
        results = body([*counter_inputs, *carried, *captured])
        condition = _as_bool("loop", results[0])
        carried = results[1 : 1 + carried_count]
        rounds.append(results[1 + carried_count :])
    if condition and max_rounds == _MAX_ROUNDS:
        raise OpError(f"loop: its condition still holds after {max_rounds} rounds")
    # A loop of no rounds still has results: empty tensors of the types that the body states.
    kinds = body.kinds[1 + carried_count :]
    parts = [[results[i] for results in rounds] for i in range(len(kinds))]
    return [*carried, *(_stack("loop", p, k, 0) for p, k in zip(parts, kinds, strict=True))]


def scan(operands: Operands, attrs: Attrs, bodies: Bodies) -> list[Array]:
    """Returns the carried values after the last entry, then what the rounds gave, stacked.

    Raises OpError for sequences of different lengths.
    """
    body, captured = bodies["body"], _variadic_operands(operands, "xs")
    carried, sequences = _variadic_operands(operands, "vs"), _variadic_operands(operands, "ss")
    carried_count = len(carried)
    axes, reverse = _sequence_axes(attrs, "axes", "reverse", len(sequences))
    along = [normalize_axis("scan", a, s.ndim) for a, s in zip(axes, sequences, strict=True)]
    lengths = {s.shape[axis] for s, axis in zip(sequences, along, strict=True)}
    if len(lengths) != 1:
        raise OpError(f"scan: the sequences have {sorted(lengths)} entries")
    count = lengths.pop()
    rounds: list[list[Array]] = []
    for i in range(count):
        # A reversed sequence is read from its end; results are stacked in reverse below.
        positions = [count - 1 - i if back else i for back in reverse]
        entries = [np.take(s, k, a) for s, k, a in zip(sequences, positions, along, strict=True)]
        results = body([*carried, *entries, *captured])
        carried = results[:carried_count]
        rounds.append(results[carried_count:])
    kinds = body.kinds[carried_count:]
    out_axes, backwards = _sequence_axes(attrs, "out_axes", "out_reverse", len(kinds))
    stacked: list[Array] = []
    for i, kind in enumerate(kinds):
        parts = [results[i] for results in (reversed(rounds) if backwards[i] else rounds)]
        stacked.append(_stack("scan", parts, kind, out_axes[i]))
    return [*carried, *stacked]


FUNCTIONS: dict[str, Callable[[Operands, Attrs, Bodies], list[Array]]] = {
    "if": branch,
    "loop": loop,
    "scan": scan,
}


def _as_bool(op: str, x: Array) -> bool:
    if x.size != 1 or x.dtype != np.bool_:
        raise OpError(f"{op}: the condition is {x.dtype} {list(x.shape)}, it takes one bool")
    return bool(x.reshape(()))


def _variadic_operands(operands: Operands, prefix: str) -> list[Array]:
    """Returns the operands of a variadic slot, in order."""
    slots = [slot for slot in operands if slot.startswith(f"{prefix}.")]
    return [operands[slot] for slot in sorted(slots, key=lambda s: int(s.rpartition(".")[2]))]


def _sequence_axes(
    attrs: Attrs, axes: str, reverse: str, count: int
) -> tuple[list[int], list[bool]]:
    """Returns the axis of each sequence, and whether it runs backwards."""
    axis_list, directions = attrs[axes], attrs[reverse]
    assert isinstance(axis_list, tuple)
    assert isinstance(directions, tuple)
    axis_numbers = [a for a in axis_list if isinstance(a, int)] or [0] * count
    return axis_numbers, [bool(b) for b in directions] or [False] * count


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
