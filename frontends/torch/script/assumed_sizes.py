"""Finds which open sizes of guessed inputs a program fixes or branches by.

PyTorch records a guard whenever an operator or a branch depends on a symbolic size.
"""

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
    """Returns the open axes whose sizes an operator has fixed, alone or as a product."""
    axes = {
        (node.name, axis)
        for node, open_axes in _inputs(builder)
        for axis in open_axes
        # An operator that needs a size replaces its symbol by a number in the shape itself.
        if _is_single_size(node.meta["val"].shape[axis])
    }
    return frozenset(
        axes | _axes_in_conditions(builder, filter(_fixes_sizes, _conditions(builder.guards)))
    )


def branching_axes(builder: ScriptBuilder) -> frozenset[Axis]:
    """Returns the axes whose sizes decided a branch, without the fixed ones."""
    conditions = (
        condition
        for condition in _conditions(builder.branch_guards)
        if not _compares_with_zero_or_one(condition)
    )
    return _axes_in_conditions(builder, conditions) - fixed_axes(builder)


def with_fixed_axes(
    inputs: Iterable[Example], names: Iterable[str], closed: frozenset[Axis]
) -> list[Example]:
    """Returns the examples with some axes no longer open."""
    return [
        Example(
            example.tensor,
            example.open_axes - {axis for axis in example.open_axes if (name, axis) in closed},
        )
        for example, name in zip(inputs, names, strict=True)
    ]


def assumptions(builder: ScriptBuilder, closed: frozenset[Axis]) -> tuple[str, ...]:
    """Returns a line for the ledger for each input with an assumed size."""
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
    """Returns the open axes whose symbols occur in conditions."""
    symbols: Mapping[Any, Axis] = {
        size.node.expr: (node.name, axis)
        for node, open_axes in _inputs(builder)
        for axis in open_axes
        if isinstance(size := node.meta["val"].shape[axis], torch.SymInt)
    }
    mentioned = {symbol for condition in conditions for symbol in condition.free_symbols}
    return frozenset(axis for symbol, axis in symbols.items() if symbol in mentioned)


def _is_single_size(size: Any) -> bool:
    """Returns whether a size is a number, as a symbol becomes when it is fixed."""
    return isinstance(size, int) or bool(size.node.expr.is_number)


def _fixes_sizes(condition: Any) -> bool:
    """Returns whether a condition fixes sizes, such as `8 * h * w = 7200`; remainders do not."""
    if getattr(condition, "rel_op", "") != "==":
        return False
    sides = condition.args
    expression = next((side for side in sides if not side.is_number), None)
    # `Mod(h, 2) == 0` holds for many sizes: it is no reason to fix one.
    is_remainder = type(expression).__name__ in ("Mod", "PythonMod")
    return any(side.is_number for side in sides) and not is_remainder


def _compares_with_zero_or_one(condition: Any) -> bool:
    """Returns whether a condition compares with 0 or 1: PyTorch never makes such sizes symbolic."""
    numbers = [side for side in condition.args if side.is_number]
    return getattr(condition, "rel_op", "") in ("==", "!=") and numbers in ([0], [1])
