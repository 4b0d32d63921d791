"""Methods: how a runtime computes an op on quantized values, under a name for profiles.

All are found by entry point, those of QIR's own backends too. An entry point names one
`PluginMethod`, or a table of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError
from qir.ir.ops import OPS
from qir.numerics.fields import BLOCKS, MethodField
from qir.records import record

Value: TypeAlias = "str | int | float | bool"
KIND = "qir.methods"
"""The entry points of methods."""
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "reals": ("quantize", "dequantize"),
    "move": ("quantize", "dequantize"),
}
"""Names that need no function, and the blocks of a rule that they work by: `reals` is dequantize,
the op in float, quantize; `move` is the op on integers of the result's quantized type."""


@record
class Param:
    """One parameter of a method."""

    values: tuple[Value, ...] = ()
    """All it may be; whole numbers from `least` on where none is named."""
    needed: bool = False
    """Whether the method says nothing without it."""
    least: int = 0

    def takes(self, value: Value) -> bool:
        """Returns whether it may be that."""
        if not self.values:
            return isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        return any(value == v and type(value) is type(v) for v in self.values)

    @property
    def description(self) -> str:
        """What it may be, as errors say it."""
        if not self.values:
            return f"a whole number, {self.least} or more"
        return " or ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values)


FLAG = Param((False, True))
"""A parameter that is true or false."""


@record
class Taps:
    """Along one axis of a resize, two neighbours of each result and their whole weights."""

    neighbours: tuple[NDArray[np.int64], NDArray[np.int64]]
    weights: tuple[NDArray[np.int64], NDArray[np.int64]]
    bits: int
    """The weights of both add up to 2^bits; a result is divided by that of both axes."""
    away: bool
    """Whether halves are rounded away from zero; else up."""


@record
class PluginMethod:
    """How a runtime computes a quantized op, to the last bit.

    `function(call, arrays)` is given the op, its attributes, types and rule (`qir.reference.method.
    Call`), the integers by slot, and parameters by name; it returns the integers of the result. It
    must be a function of these alone, and leave them as they are.
    """

    function: Callable[..., NDArray[np.generic]]
    ops: tuple[str, ...]
    """The ops that it computes; none: any."""
    reads: tuple[str, ...] = ()
    """Blocks of the rule that it works by, such as `requant`; others may not be set next to it."""
    params: Mapping[str, Param] = field(default_factory=dict)
    within: int = 1
    """The most steps by which a result may differ from the op in float, rounded once."""
    slots: tuple[str, ...] | None = None
    """Where these are named, `function` is given the integers of these operands, their quantized
    types, that of the result, and by name the attributes in `attrs`, parameters, and the rule if it
    reads it."""
    attrs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Operands that are not quantized, given by name where there are any."""
    bits: int | None = None
    """The most bits of the quantized values that it takes; None: any."""
    any_map: bool = False
    """Whether it takes quantized types of every kind, and dequantizes them."""
    tails: bool = False
    """Whether it clamps floats itself where a relu follows, before it quantizes them."""
    reals: bool = False
    """Whether it may return floats where the result is not quantized."""
    pointwise: bool = False
    """Whether a result depends on the elements at its own place alone, wherever that is: then an
    engine may look it up in a table of all bytes, or of all pairs of bytes."""
    of_sums: Callable[..., NDArray[np.generic]] | None = None
    """Where a result depends on the sum of its operand's integers in a window and on their number
    alone: `of_sums(sums, count, type of x, type of the result)` returns the results of such sums,
    int64 without the zero point taken off. It is given parameters by name, and the rule if the
    method reads it. An engine may then look results up by their sums."""
    sums_alone: Callable[..., bool] | None = None
    """Whether that is so of a call, `sums_alone(call, shape of x)`; None: of all."""
    terms: Callable[..., NDArray[np.float32]] | None = None
    """Of a softmax whose terms a table holds: `terms(type of x)` returns them, by how far an
    integer is below the greatest of its row, from 0 to 255. They are added in float32 in the order
    of the axis, and multiplied by 1 / (sum * scale of the result), rounded halves up."""
    taps: Callable[..., Taps] | None = None
    """Of a bilinear resize in whole numbers: `taps(size, size of the result, coordinates)`, given
    parameters by name, returns the neighbours along an axis, their weights, and the rounding."""
    every_result: Callable[..., tuple[NDArray[np.generic], ...]] | None = None
    """Makes all results of an op that has several: `every_result(call, arrays, result types)`."""


def plugin_method(name: str) -> PluginMethod | None:
    """Returns the method of that name; None if there is none.

    Raises PluginError for one that is not what a method must be.
    """
    if name in BUILT_IN:
        return None
    entry = registry.entry(KIND, object, name)
    if entry is None and name in registry.names(KIND):
        entry = registry.find(KIND, name)
    if entry is None or isinstance(entry, Mapping):
        return None
    owner = registry.owner(KIND, name)
    return checked(entry, f"method {name!r} of {owner}" if owner else f"method {name!r}")


def checked(entry: object, subject: str) -> PluginMethod:
    """Raises PluginError for what is no method, or reads blocks that no rule has."""
    if not isinstance(entry, PluginMethod):
        raise PluginError(f"{subject} is no qir.profiles.PluginMethod")
    if unknown_blocks := [block for block in entry.reads if block not in BLOCKS]:
        raise PluginError(f"{subject} reads {unknown_blocks[0]!r}; blocks are {', '.join(BLOCKS)}")
    return entry


def reads(name: str) -> tuple[str, ...]:
    """Returns the blocks of a rule that a method looks at."""
    return BUILT_IN[name] if name in BUILT_IN else _known_method(name).reads


def computes(name: str) -> tuple[str, ...]:
    """Returns the ops that a method computes; nothing for one that computes any."""
    if name in BUILT_IN:
        return moving() if name == "move" else ()
    return _known_method(name).ops


def moving() -> tuple[str, ...]:
    """Returns the ops whose results are quantized values of their operands, moved or picked by
    comparison."""
    moving_ops = (op for op, op_spec in OPS.items() if op_spec.traits.value_preserving)
    # Comparisons pick one of their operands: on one quantized type they need no arithmetic.
    return (*moving_ops, "max", "min", "reduce_max", "reduce_min", "relu", "where")


def tabled() -> Mapping[str, PluginMethod]:
    """Returns the methods that are used, of tables and single ones, by name."""
    return registry.entries(KIND, PluginMethod)


class _MethodNames(Collection[str]):
    """All that a profile may name; to look for one loads no more plugins than are needed."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in BUILT_IN
            or name in tabled()
            or (name in registry.names(KIND) and _is_single_method(name))
        )

    def __iter__(self) -> Iterator[str]:
        rows = tabled()
        others = (n for n in registry.names(KIND) if n not in rows and _is_single_method(n))
        return iter((*BUILT_IN, *rows, *others))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def method_names() -> Collection[str]:
    """Returns all that a profile may name."""
    return _MethodNames()


def params(name: str) -> Mapping[str, Param]:
    """Returns the parameters that a method takes."""
    method = plugin_method(name)
    return {} if method is None else method.params


def widest(name: str) -> int | None:
    """Returns the most bits of the quantized values that a method takes; None: any."""
    method = plugin_method(name)
    return None if method is None else method.bits


def fault(method: MethodField) -> str:
    """Returns what is wrong with a method's parameters, in a line; nothing where all is well."""
    known = params(method.name)
    for name, value in method.params.items():
        if name not in known:
            has = f"; it has {', '.join(known)}" if known else ""
            return f"method {method.name} has no parameter {name!r}{has}"
        if not known[name].takes(value):
            return f"method {method.name}: {name} = {value!r}; it is {known[name].description}"
    missing = [name for name, param in known.items() if param.needed and name not in method.params]
    if missing:
        return f"method {method.name} needs {missing[0]}, which is {known[missing[0]].description}"
    return ""


def _known_method(name: str) -> PluginMethod:
    method = plugin_method(name)
    if method is None:
        raise PluginError(f"no method {name!r}")
    return method


def _is_single_method(name: str) -> bool:
    try:
        return not isinstance(registry.find(KIND, name), Mapping)
    except PluginError:
        return True  # it is known by name; asked for, it says why it does not load
