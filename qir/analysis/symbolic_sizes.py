"""Infers facts about shapes from symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.dims import Dim, Shape, Sym
from qir.ir.node import Node, Value
from qir.ir.ops import spec

SizeBounds: TypeAlias = "Mapping[Value, Mapping[int, Dim]]"
"""Upper bounds of unknown sizes, by value and axis; where the bound is 1, the size is 1."""

BROADCASTING = frozenset(
    "add sub mul div min max where equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor".split()
)
"""Ops that broadcast their operands."""


def reshaped_shape(x: Shape, wanted: list[Dim], node: Node) -> Shape | None:
    """Returns the shape that a reshape makes: 0 copies a size of x, -1 is inferred."""
    made: list[Dim] = []
    for i, size in enumerate(wanted):
        if size == 0 and not node.attrs["allow_zero"]:
            made.append(x[i] if i < len(x) else None)
        else:
            made.append(size if not isinstance(size, int) or size >= 0 else None)
    if wanted.count(-1) == 1:
        rest = dims.product(tuple(size for size in made if size is not None))
        if made.count(None) == 1 and _positive(rest):
            found = dims.divide(dims.product(x), rest)
            made = [found if size is None else size for size in made]
    return tuple(made)


def _positive(size: Dim) -> bool:
    return size is not None and size != 0


def expanded_shape(x: Shape, wanted: list[Dim]) -> Shape | None:
    """Returns the shape of an expand: x broadcast with the wanted sizes."""
    rank = max(len(x), len(wanted))
    one: Shape = (*(1,) * (rank - len(x)), *x)
    other: Shape = (*(1,) * (rank - len(wanted)), *wanted)
    return tuple(_broadcast_size(a, b) for a, b in zip(one, other, strict=True))


def _broadcast_size(a: Dim, b: Dim) -> Dim:
    """Returns the size of two sizes that are broadcast, or None where that is open."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    return next((size for size in (a, b) if isinstance(size, int) and size > 1), None)


def slice_bounds(
    node: Node,
    starts: NDArray[np.object_] | None,
    ends: NDArray[np.object_] | None,
    within: SizeBounds,
) -> dict[int, Dim]:
    """Returns the upper bounds of a slice's sizes, where it takes the first n of an axis.

    The first n elements are n or fewer. The axis must have at least one element, so that n = 1
    gives exactly one.
    """
    axes, steps = node.attrs["axes"], node.attrs["steps"]
    x = node.operands["x"]
    found = dict(within.get(x, {}))
    if starts is None or ends is None or not isinstance(axes, tuple):
        return {}
    where = axes or tuple(range(len(starts)))
    by = steps if isinstance(steps, tuple) and steps else (1,) * len(where)
    for axis, start, end, step in zip(where, starts, ends, by, strict=False):
        if not isinstance(axis, int):
            return {}
        size = x.type.shape[axis % x.type.rank]
        found.pop(axis % x.type.rank, None)
        first = start == 0 and step == 1 and isinstance(size, int) and size > 0
        if first and isinstance(end, Sym) and all(count > 0 for _, count in end.terms):
            found[axis % x.type.rank] = end
    return found


def carried_bounds(node: Node, within: SizeBounds) -> dict[int, Dim]:
    """Returns the bounds of an elementwise op's or unsqueeze's result, from its bounded operand."""
    given = {slot: v for slot, v in node.operands.items() if v in within}
    if len(given) != 1:
        return {}
    value = next(iter(given.values()))
    rank = node.result.type.rank
    if node.op == "unsqueeze":
        axes = node.attrs["axes"]
        new = {a % rank for a in axes if isinstance(a, int)} if isinstance(axes, tuple) else set()
        left = [i for i in range(rank) if i not in new]
        return {left[axis]: size for axis, size in within[value].items()}
    alone = spec(node.op).traits.elementwise or node.op in ("cast", "identity")
    others = [v for v in node.operands.values() if v is not value]
    if not alone and node.op not in BROADCASTING:
        return {}
    if any(set(v.type.shape) - {1} for v in others):
        return {}
    lead = rank - value.type.rank
    return {axis + lead: size for axis, size in within[value].items()}


def broadcast_within_bounds(node: Node, within: SizeBounds) -> Shape | None:
    """Returns the shape of broadcast operands, where an unknown size is bounded by a known one.

    An unknown size that is at most n, and 1 if n is 1, broadcasts with n to n.
    """
    if not any(value in within for value in node.operands.values()):
        return None
    rank = node.result.type.rank
    made: list[Dim] = []
    for axis in range(rank):
        sizes: set[Dim] = set()
        kept: set[Dim] = set()
        for value in node.operands.values():
            at = axis - rank + value.type.rank
            if at < 0:
                continue
            size = value.type.shape[at]
            if size is None and value in within and at in within[value]:
                kept.add(within[value][at])
            elif size != 1:
                sizes.add(size)
        made.append(next(iter(sizes)) if len(sizes) == 1 and kept <= sizes else None)
    return tuple(made)
