"""Frozen records: what `@dataclass(frozen=True, slots=True)` makes, in a fifth of the time.

A dataclass compiles six functions for each class, and finds each field of a new instance by its
name. A first result needs hundreds of records: here a class compiles one function, which sets
fields by their slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, Never, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")


class _Missing:
    """What stands for an argument whose default is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_MISSING = _Missing()


class KeptHash:
    """A base of records that are asked for their hash often: each computes it once."""

    __slots__ = ("_hash",)
    _hash: int


@overload
def record(kind: type[_T], /) -> type[_T]: ...


@overload
def record(*, eq: bool) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    kind: type[_T] | None = None, /, *, eq: bool = True
) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Makes a class a frozen dataclass with slots; without `eq` it is compared by identity."""
    return (lambda each: _record(each, eq)) if kind is None else _record(kind, eq)


def _record(kind: type[_T], eq: bool) -> type[_T]:
    own = vars(kind)
    kind.__doc__ = kind.__doc__ or kind.__name__  # else a signature is made, which takes long
    # `frozen` compiles two functions more; who extends a frozen class must say it.
    extends = any(map(is_dataclass, kind.__bases__))
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, frozen=extends)(kind)
    made.__dataclass_params__.frozen, made.__dataclass_params__.eq = True, eq
    every: tuple[Field[Any], ...] = fields(made)
    made.__init__ = _initializer(made, every)
    made.__setattr__, made.__delattr__ = _refuse_assignment, _refuse_deletion
    made.__getstate__, made.__setstate__ = _state, _set_state
    if "__repr__" not in own:
        made.__repr__ = _representation
    if eq:
        if "__eq__" not in own:
            made.__eq__ = _equality([f.name for f in every if f.compare])
        if own.get("__hash__") is None:  # a class that states `__eq__` alone has None
            hashed = (f.name for f in every if (f.compare if f.hash is None else f.hash))
            made.__hash__ = _hash(made, list(hashed))
    return made  # type: ignore[no-any-return]


def _initializer(kind: type, every: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Compiles the only function that depends on the names of the fields."""
    scope: dict[str, Any] = {"MISSING": _MISSING}
    parameters, body = ["self"], []
    for i, one in enumerate(every):
        if one.kw_only:
            raise TypeError(f"{kind.__qualname__}.{one.name}: records have no keyword-only fields")
        given = one.name
        scope |= {f"set_{i}": getattr(kind, one.name).__set__, f"default_{i}": one.default}
        if one.default_factory is not MISSING:
            scope[f"default_{i}"] = _MISSING
            scope[f"make_{i}"] = one.default_factory
            given = f"make_{i}() if {given} is MISSING else {given}" if one.init else f"make_{i}()"
        elif not one.init and one.default is MISSING:
            continue  # `__post_init__` sets it
        elif not one.init:
            given = f"default_{i}"
        body.append(f" set_{i}(self, {given})")
        if one.init:
            is_required = one.default is MISSING and one.default_factory is MISSING
            parameters.append(one.name if is_required else f"{one.name}=default_{i}")
    if hasattr(kind, "__post_init__"):
        body.append(" self.__post_init__()")
    source = f"def __init__({', '.join(parameters)}):\n" + ("\n".join(body) or " pass")
    exec(source, scope)  # names of fields alone, which are those of Python's own source
    made: Callable[..., None] = scope["__init__"]
    made.__module__, made.__qualname__ = kind.__module__, f"{kind.__qualname__}.__init__"
    made.__annotations__ = {one.name: one.type for one in every if one.init} | {"return": None}
    return made


def _values_of(names: list[str]) -> Callable[[object], object]:
    """Returns what gives the named fields as a tuple, which finds equal what is identical."""
    # Of one name alone, `attrgetter` gives no tuple.
    return attrgetter(*(names * 2 if len(names) == 1 else names)) if names else lambda one: ()


def _equality(names: list[str]) -> Callable[[object, object], bool]:
    values = _values_of(names)

    def __eq__(self: object, other: object) -> bool:
        if other is self:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(kind: Any, names: list[str]) -> Callable[[Any], int]:
    values = _values_of(names)
    if not issubclass(kind, KeptHash):
        return lambda self: hash(values(self))
    keep = kind._hash.__set__

    def __hash__(self: Any) -> int:
        try:
            return self._hash  # type: ignore[no-any-return]
        except AttributeError:
            keep(self, found := hash(values(self)))
            return found

    return __hash__


@recursive_repr()
def _representation(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: object, name: str, value: object) -> Never:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> Never:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


__all__ = ["KeptHash", "record"]
