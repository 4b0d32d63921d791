"""Which sizes a program was read for, where its inputs were read with open sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from .builder import ScriptBuilder
from .shapes import Example

Axis = tuple[str, int]
"""An input and one of its axes."""


def fixed_axes(builder: ScriptBuilder) -> frozenset[Axis]:
    """Returns the open axes whose sizes an operator has found to be one number, or to make one."""
    found = {
        (node.name, axis)
        for node, open_axes in _inputs(builder)
        for axis in open_axes
        if _is_single_size(node.meta["val"].shape[axis])
    }
    return frozenset(
        found | _axes_in_conditions(builder, filter(_fixes_sizes, _conditions(builder.guards)))
    )


def branching_axes(builder: ScriptBuilder) -> frozenset[Axis]:
    """Returns the axes whose sizes have decided a branch, but those known otherwise."""
    whole = (
        held for held in _conditions(builder.branch_guards) if not _compares_with_zero_or_one(held)
    )
    return _axes_in_conditions(builder, whole) - fixed_axes(builder)


def with_fixed_axes(
    inputs: Iterable[Example], names: Iterable[str], closed: frozenset[Axis]
) -> list[Example]:
    """Returns examples of which some axes are as large as they are there, and no longer open."""
    return [
        Example(
            held.tensor,
            held.open_axes - {axis for axis in held.open_axes if (name, axis) in closed},
        )
        for held, name in zip(inputs, names, strict=True)
    ]


def assumptions(builder: ScriptBuilder, closed: frozenset[Axis]) -> tuple[str, ...]:
    """Returns what to say of inputs that were read for one size alone, a text an input."""
    names = dict.fromkeys(name for name, _ in sorted(closed))
    shapes = {node.name: node.meta["val"].shape for node, _ in _inputs(builder)}
    return tuple(
        f"input {name}: its sizes are assumed to be"
        f" {'x'.join(str(size) if _is_single_size(size) else 'n' for size in shapes[name])},"
        " which its layers take; --shape or inputs= sets others"
        for name in names
    )


def _inputs(builder: ScriptBuilder) -> list[tuple[fx.Node, frozenset[int]]]:
    return [
        (n, builder.open_axes.get(n.name, frozenset()))
        for n in builder.graph.nodes
        if n.op == "placeholder"
    ]


def _conditions(guards: Iterable[Any]) -> Iterable[Any]:
    return (guard.expr for guard in guards)


def _axes_in_conditions(builder: ScriptBuilder, conditions: Iterable[Any]) -> frozenset[Axis]:
    """Returns the open axes that conditions speak of."""
    symbols: Mapping[Any, Axis] = {
        size.node.expr: (node.name, axis)
        for node, open_axes in _inputs(builder)
        for axis in open_axes
        if isinstance(size := node.meta["val"].shape[axis], torch.SymInt)
    }
    spoken = {symbol for held in conditions for symbol in held.free_symbols}
    return frozenset(axis for symbol, axis in symbols.items() if symbol in spoken)


def _is_single_size(size: Any) -> bool:
    """Returns whether a size is one number, as a symbol may have been found to be."""
    return isinstance(size, int) or bool(size.node.expr.is_number)


def _fixes_sizes(held: Any) -> bool:
    """Returns whether a condition is that sizes make a number, such as `8 * h * w = 7200`."""
    if getattr(held, "rel_op", "") != "==":
        return False
    sides = held.args
    other = next((side for side in sides if not side.is_number), None)
    remainder = type(other).__name__ in ("Mod", "PythonMod")
    return any(side.is_number for side in sides) and not remainder


def _compares_with_zero_or_one(held: Any) -> bool:
    """Returns whether a condition is that a size is none or one, or not: those never are open."""
    other = [side for side in held.args if side.is_number]
    return getattr(held, "rel_op", "") in ("==", "!=") and other in ([0], [1])
