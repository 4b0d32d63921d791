"""Wrong arguments of public functions, refused before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from itertools import islice
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from qir.errors import ArgumentError, UsageError

P = ParamSpec("P")
R = TypeVar("R")
Check = tuple[type, ...] | Callable[[object], bool]
"""The classes of which an argument may be, or what says whether it is of the type that its
annotation names."""
_MAX_CHECKED = 64
"""So many elements of a list or a mapping are looked at."""
_BUILT_IN = (dict, list, tuple, set, frozenset)
"""Asked first: an abstract class asks Python whether these are of it."""
_ACCEPTED_ALSO: Mapping[type, tuple[type, ...]] = {
    int: (np.integer,),
    float: (int, np.floating, np.integer),
    bool: (np.bool_,),
    np.ndarray: (np.generic,),
}
"""Types that do as well as the one that is named."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuses arguments of other types than the function's annotations name.

    Raises ArgumentError, which names the function and the argument. Annotations that say more than
    a class, a union, a list or a mapping of these are not checked.
    """
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = names[: code.co_argcount]
    if len(names) == (1 if names[:1] == ("self",) else 0):
        return function
    known: dict[str, Check] = {}
    in_order: list[tuple[str, Check | None]] = []

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if not in_order:  # annotations may name what is defined after the function
            known.update(_checks_of(function))
            in_order.extend((name, known.get(name)) for name in positional or ("",))
        # Not `Signature.bind`: wrong counts of arguments are left to Python's own message.
        # What `_passes` does stands here in full: graphs are built by tens of thousands of calls.
        for (name, check), argument in zip(in_order, args, strict=False):
            if isinstance(check, tuple):
                if not isinstance(argument, check):
                    raise _refused(function, name, argument)
            elif check is not None and not check(argument):
                raise _refused(function, name, argument)
        for name, argument in kwargs.items():
            check = known.get(name)
            if isinstance(check, tuple):
                if not isinstance(argument, check):
                    raise _refused(function, name, argument)
            elif check is not None and not check(argument):
                raise _refused(function, name, argument)
        return function(*args, **kwargs)

    return wrapped


def unchecked(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a checked function without its checks, for loops whose arguments mypy has checked.

    Frontends and passes call `Graph.add` so for each node of a model.
    """
    inner: Callable[P, R] = getattr(function, "__wrapped__", function)
    return inner


def checked_methods(kind: type[R]) -> type[R]:
    """Returns a class whose public methods refuse wrong arguments as `checked` functions do."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and (name[0] != "_" or name == "__getitem__"):
            setattr(kind, name, checked(member))
    return kind


def require_counts(counts: Mapping[str, int | None], least: int = 1) -> None:
    """Raises UsageError for a count of these, by the names of their arguments, that is less."""
    for name, count in counts.items():
        if count is not None and count < least:
            raise UsageError(f"{name} is {count}: give a whole number from {least}")


def _refused(function: Callable[..., object], name: str, argument: object) -> ArgumentError:
    expected = str(function.__annotations__[name]).replace("NDArray[np.generic]", "array")
    kind = "None" if argument is None else f"{_article(type(argument).__name__)}"
    text = repr(argument) if isinstance(argument, str | int | float) else ""
    shown = f" ({text[:40]})" if text else ""
    where = f"{function.__name__}: argument {name}"
    return ArgumentError(
        f"{where} is {kind}{shown} or holds what does not fit; it takes {expected}"
    )


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiouAEIOU" else f"a {word}"


def _passes(check: Check, argument: object) -> bool:
    return isinstance(argument, check) if isinstance(check, tuple) else check(argument)


def _all_pass(check: Check, arguments: Iterable[object]) -> bool:
    if isinstance(check, tuple):
        return all([isinstance(argument, check) for argument in arguments])
    return all(map(check, arguments))


def _checks_of(function: Callable[..., object]) -> dict[str, Check]:
    """Returns the checks of a function's parameters, by name."""
    out: dict[str, Check] = {}
    scope = vars(sys.modules[function.__module__])
    for name, hint in function.__annotations__.items():
        try:  # the text of an annotation in QIR's own source, never anybody's input
            check = _fits(eval(hint, scope) if isinstance(hint, str) else hint)
        except NameError:  # imported for the type checker alone
            continue
        if check is not None and name != "return":
            out[name] = check
    return out


def _fits(hint: Any) -> Check | None:
    """Returns the check that an annotation asks for; None where it allows what cannot be
    checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is None or hint is NoneType:
        return (NoneType,)
    if origin is Literal:
        return lambda given: any(given is each or given == each for each in inner)
    if origin in (Union, UnionType):
        return _one_of([_fits(each) for each in inner])
    if isinstance(hint, type) and origin is None:
        if hint is object:
            return None
        return _protocol(hint) if getattr(hint, "_is_protocol", False) else _classes(hint)
    if not isinstance(origin, type):
        return None
    if origin is tuple or not issubclass(origin, Iterable) or issubclass(origin, np.ndarray):
        return _classes(origin)
    if issubclass(origin, Mapping):
        return _mapping(_fits(inner[0]))
    return _several(origin, _fits(inner[0]))


def _protocol(hint: type) -> Check:
    members = [name for name in vars(hint) if not name.startswith("_")]
    return lambda given: all(hasattr(type(given), name) for name in members)


def _classes(hint: type) -> tuple[type, ...]:
    return (hint, *_ACCEPTED_ALSO.get(hint, ()))


def _one_of(checks: list[Check | None]) -> Check | None:
    classes = tuple(kind for check in checks if isinstance(check, tuple) for kind in check)
    others = [check for check in checks if not isinstance(check, tuple)]
    # One member that cannot be checked lets anything pass.
    if None in others:
        return None
    if not others:
        return classes
    (first, *more) = (check for check in others if check is not None)
    if not more:
        return lambda given: isinstance(given, classes) or _passes(first, given)
    return lambda given: (
        isinstance(given, classes) or any(_passes(check, given) for check in (first, *more))
    )


def _mapping(keys: Check | None) -> Check:
    """Returns a mapping with such keys; what it holds the function itself names by its key."""

    def fits(argument: object) -> bool:
        if not isinstance(argument, _BUILT_IN[:1]) and not isinstance(argument, Mapping):
            return False
        return keys is None or _all_pass(keys, argument)

    return fits


def _several(kind: type, element: Check | None) -> Check:
    """Returns a list, or whatever can be gone through; a text is not taken for the list of its
    letters."""
    plain = tuple(each for each in _BUILT_IN if issubclass(each, kind))

    def fits(argument: object) -> bool:
        if not isinstance(argument, plain):
            if isinstance(argument, str | bytes) or not isinstance(argument, kind):
                return False
            if not isinstance(argument, Collection):
                return True  # what can be gone through once is left alone
            if isinstance(argument, np.ndarray) and not argument.ndim:
                return False
        if element is None:
            return True
        return _all_pass(element, islice(argument, _MAX_CHECKED))

    return fits


__all__ = ["checked", "checked_methods", "require_counts", "unchecked"]
