"""The parameters that methods take, and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from qir.numerics.fields import Method

Value: TypeAlias = "str | int | float | bool"


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a method."""

    values: tuple[Value, ...] = ()
    """All it may be; whole numbers from `least` on where none is named."""
    needed: bool = False
    """Whether the method says nothing without it."""
    least: int = 0

    def takes(self, value: Value) -> bool:
        """Whether it may be that."""
        if not self.values:
            return isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        return any(value == v and type(value) is type(v) for v in self.values)

    @property
    def said(self) -> str:
        """What it may be, as errors say it."""
        if not self.values:
            return f"a whole number, {self.least} or more"
        return " or ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in self.values)


_FLAG = Param((False, True))
_SIGN = Param((1, -1))
PARAMS: Mapping[str, Mapping[str, Param]] = {
    "fixed_sum": {"sign": _SIGN},
    "aligned_sum": {"sign": _SIGN},
    "mean_before": {"round": Param(("away", "even"))},
    "total_before": {"round": Param(("away", "even"))},
    "logistic_between": {"newton": _FLAG},
    "tanh_between": {"newton": _FLAG},
    "fixed_resize": {"bits": Param((10, 11))},
    "vectors": {"lanes": Param(needed=True)},
    "channel_vectors": {"lanes": Param(needed=True, least=1)},
    "bilinear": {"lanes": Param()},
    "mean_of_steps": {"lanes": Param(), "fused": _FLAG, "raw": _FLAG, "divide": _FLAG},
}
"""Of the methods that take any: their parameters by name."""


def fault(method: Method, of: Mapping[str, Param] | None = None) -> str:
    """What is wrong with a method's parameters, in a line; nothing where all is well."""
    known = PARAMS.get(method.name, {}) if of is None else of
    for name, value in method.params.items():
        if name not in known:
            has = f"; it has {', '.join(known)}" if known else ""
            return f"method {method.name} has no parameter {name!r}{has}"
        if not known[name].takes(value):
            return f"method {method.name}: {name} = {value!r}; it is {known[name].said}"
    lacks = [name for name, one in known.items() if one.needed and name not in method.params]
    if lacks:
        return f"method {method.name} needs {lacks[0]}, which is {known[lacks[0]].said}"
    return ""
