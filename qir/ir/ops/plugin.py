"""Ops that plugins bring: found by name when a program first speaks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError
from qir.ir.attrs import Attr
from qir.ir.ops.spec import COMPANIONS, OpSpec
from qir.records import record

KIND = "qir.ops"
"""The entry points of ops; each is named as its op."""


@record
class Elsewhere:
    """What a framework calls an op: by domain and name, operands in the order of the slots."""

    domain: str
    op: str
    version: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Attributes that have another name there."""


@record
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
    specs: Iterable[OpSpec], names_of: Callable[[OpSpec], Iterable[str]], extra: Iterable[str] = ()
) -> Set[str]:
    """Returns the names that rows have, and those of plugins' ops that are or will be loaded."""
    loaded = (plugin.spec for plugin in _adopted.values())  # a module may be imported after them
    names = {name for row in chain(specs, loaded) for name in names_of(row)} | set(extra)
    # The set is returned as a live one: `plugin_op` adds the names of plugins' ops when they are
    # loaded, since looking for them here would import every plugin.
    _gathered.append((names, names_of))
    return names


def ops_with(
    specs: Iterable[OpSpec], condition: Callable[[OpSpec], object], *extra: str
) -> Set[str]:
    """Returns the ops of whose rows something is true, and more."""
    return gather(specs, lambda row: [row.name] if condition(row) else [], extra)


def plugin_op(name: str) -> PluginOp:
    """Returns the op of that name that a plugin brings.

    Raises PluginError where there is none, or where it is not what an op of a plugin must be.
    """
    entry = registry.find(KIND, name)
    # A plugin's op is checked once, and again where its entry point now gives another object.
    if _adopted.get(name) is not entry:
        subject = f"op {name!r} of {registry.owner(KIND, name)}"
        if not isinstance(entry, PluginOp):
            raise PluginError(f"{subject} is no qir.ir.ops.PluginOp")
        if fault := _fault(name, entry):
            raise PluginError(f"{subject} {fault}")
        for names, names_of in _gathered:
            names.update(names_of(entry.spec))
        _adopted[name] = entry
    assert isinstance(entry, PluginOp)
    return entry


def _fault(name: str, plugin: PluginOp) -> str:
    """Returns why it cannot are in the table; empty where it can."""
    from qir.ir.ops import OPS

    op_spec = plugin.spec
    if OPS.own(name):
        return "has the name of an op of qir itself; give it one of its own"
    if not name.isidentifier():
        return "is no name: letters, digits and _ are"
    if op_spec.name != name:
        return f"calls itself {op_spec.name!r}; entry point and spec have one name"
    if op_spec.bodies or op_spec.inner:
        return "holds bodies or inner slots, which only ops of qir itself do"
    bad_slots = [
        s.name for s in op_spec.operands if s.name in COMPANIONS or not s.name.isidentifier()
    ]
    if bad_slots:
        return f"has a slot {bad_slots[0]!r}, which is no name or means a scale or zero"
    if any(slot.variadic for slot in op_spec.operands) and [s.name for s in op_spec.operands] != [
        "xs"
    ]:
        return "has a variadic slot; that is called xs and is the only one"
    return ""


def found_elsewhere(framework: str, domain: str, op: str) -> PluginOp | None:
    """Returns the op of a plugin that a framework calls so; those that do not load are passed
    over."""
    # A plugin that does not load must not keep a model from being read that does not need it.
    for name in registry.names(KIND):
        try:
            plugin = plugin_op(name)
        except PluginError:
            continue
        name_there = plugin.elsewhere.get(framework)
        if name_there is not None and (name_there.domain, name_there.op) == (domain, op):
            return plugin
    return None
