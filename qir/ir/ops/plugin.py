"""Ops that plugins bring: found by name when a program first speaks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError
from qir.ir.attrs import Attr
from qir.ir.ops.spec import COMPANIONS, OpSpec

KIND = "qir.ops"
"""The entry points of ops; each is named as its op."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a framework calls an op: by domain and name, operands in the order of the slots."""

    domain: str
    op: str
    version: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Attributes that have another name there."""


@dataclass(frozen=True, slots=True)
class PluginOp:
    """An op of a plugin: its row in the table, and the function that says what it computes.

    The function takes arrays by slot and attributes by name, as `reference(x=..., alpha=...)`, a
    variadic slot as a list that comes first; it gives an array, or a tuple where there are several
    results. It must be a function of these alone, and leave them as they are.
    """

    spec: OpSpec
    reference: Callable[..., object]
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)
    """By the name of a frontend: what its framework calls the op."""
    examples: Sequence[tuple[Mapping[str, NDArray[np.generic]], Mapping[str, Attr]]] = ()
    """Operands by slot, and attributes, for the checks: where a guess would never find any."""


class OpTable(dict[str, OpSpec]):
    """Rows by name. It goes through the core's own; a plugin's are there when asked for."""

    def __missing__(self, name: str) -> OpSpec:
        if name not in registry.names(KIND):
            raise KeyError(name)
        return plugin_op(name).spec

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in registry.names(KIND)

    def own(self, name: str) -> bool:
        """Returns whether the core itself has the op, and no plugin brings it."""
        return super().__contains__(name)


_gathered: list[tuple[set[str], Callable[[OpSpec], Iterable[str]]]] = []
_adopted: dict[str, PluginOp] = {}


def gather(
    rows: Iterable[OpSpec], of: Callable[[OpSpec], Iterable[str]], more: Iterable[str] = ()
) -> Set[str]:
    """Returns the names that rows have, which those of plugins add to when they are first asked
    for."""
    found = {name for row in rows for name in of(row)} | set(more)
    _gathered.append((found, of))
    return found


def ops_with(rows: Iterable[OpSpec], asked: Callable[[OpSpec], object], *more: str) -> Set[str]:
    """Returns the ops of whose rows something is true, and more."""
    return gather(rows, lambda row: [row.name] if asked(row) else [], more)


def plugin_op(name: str) -> PluginOp:
    """Returns the op of that name that a plugin brings.

    Raises PluginError where there is none, or where it is not what an op of a plugin must be.
    """
    found = registry.find(KIND, name)
    if _adopted.get(name) is not found:
        said = f"op {name!r} of {registry.owner(KIND, name)}"
        if not isinstance(found, PluginOp):
            raise PluginError(f"{said} is no qir.ir.ops.PluginOp")
        if fault := _fault(name, found):
            raise PluginError(f"{said} {fault}")
        for names, of in _gathered:
            names.update(of(found.spec))
        _adopted[name] = found
    assert isinstance(found, PluginOp)
    return found


def _fault(name: str, found: PluginOp) -> str:
    """Returns why it cannot are in the table; empty where it can."""
    from qir.ir.ops import OPS

    row = found.spec
    if OPS.own(name):
        return "has the name of an op of qir itself; give it one of its own"
    if not name.isidentifier():
        return "is no name: letters, digits and _ are"
    if row.name != name:
        return f"calls itself {row.name!r}; entry point and spec have one name"
    if row.bodies or row.inner:
        return "holds bodies or inner slots, which only ops of qir itself do"
    wrong = [s.name for s in row.operands if s.name in COMPANIONS or not s.name.isidentifier()]
    if wrong:
        return f"has a slot {wrong[0]!r}, which is no name or means a scale or zero"
    if any(slot.variadic for slot in row.operands) and [s.name for s in row.operands] != ["xs"]:
        return "has a variadic slot; that is called xs and is the only one"
    return ""


def found_elsewhere(framework: str, domain: str, op: str) -> PluginOp | None:
    """Returns the op of a plugin that a framework calls so; those that do not load are passed
    over."""
    for name in registry.names(KIND):
        try:
            found = plugin_op(name)
        except PluginError:
            continue
        known = found.elsewhere.get(framework)
        if known is not None and (known.domain, known.op) == (domain, op):
            return found
    return None
