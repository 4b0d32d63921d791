"""Methods that plugins bring: how a runtime computes an op on codes, under a name for profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError
from qir.ir.ops import OPS
from qir.numerics.fields import BLOCKS, READS
from qir.profiles.method_parameters import COMPUTES, PARAMS, Param

KIND = "qir.methods"
"""The entry points of methods; each is named as profiles name it."""


@dataclass(frozen=True, slots=True)
class PluginMethod:
    """What a runtime does for an op on codes, to the last bit.

    `function(call, arrays)` is given the op, its attributes, types and rule (`qir.reference.method.
    Call`) and the codes by slot, and parameters by name; it gives the codes of the result. It must
    be a function of these alone, and leave them as they are.
    """

    function: Callable[..., NDArray[np.generic]]
    ops: tuple[str, ...]
    """The ops that it computes."""
    reads: tuple[str, ...] = ()
    """Blocks of the rule that it works by, such as `requant`; others may not be set beside it."""
    params: Mapping[str, Param] = field(default_factory=dict)
    within: int = 1
    """It never lies further than so many codes from the op in reals, rounded once."""


def plugin_method(name: str) -> PluginMethod | None:
    """The method of that name that a plugin brings; None if there is none.

    Raises PluginError for one that is not what a method of a plugin must be.
    """
    if name in READS or name not in registry.names(KIND):
        return None
    found = registry.find(KIND, name)
    said = f"method {name!r} of {registry.owner(KIND, name)}"
    if not isinstance(found, PluginMethod):
        raise PluginError(f"{said} is no qir.numerics.PluginMethod")
    if strange := [block for block in found.reads if block not in BLOCKS]:
        raise PluginError(f"{said} reads {strange[0]!r}; blocks are {', '.join(BLOCKS)}")
    return found


def reads(name: str) -> tuple[str, ...]:
    """The blocks of a rule that a method looks at."""
    found = plugin_method(name)
    return found.reads if found is not None else READS[name]


def computes(name: str) -> tuple[str, ...]:
    """The ops that a method computes; nothing for one that computes any."""
    if name == "move":
        return moving()
    found = plugin_method(name)
    return found.ops if found is not None else COMPUTES.get(name, ())


def moving() -> tuple[str, ...]:
    """The ops whose codes are codes of their operands, moved or picked by comparison."""
    held = (op for op, row in OPS.items() if row.traits.value_preserving)
    return (*held, "max", "min", "reduce_max", "reduce_min", "relu", "where")


def method_names() -> tuple[str, ...]:
    """All that a profile may name."""
    return (*READS, *registry.names(KIND))


def params(name: str) -> Mapping[str, Param]:
    """The parameters that a method takes."""
    found = plugin_method(name)
    return found.params if found is not None else PARAMS.get(name, {})
