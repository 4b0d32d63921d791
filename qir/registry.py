"""Plugins, found by entry point and loaded when asked for by name; ours like a stranger's."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from qir.errors import ApiError, PluginError

API = 1
"""The plugin interface that this QIR has; a plugin says `qir_api = 1` to be written for it."""
DEFAULT_TARGET = "onnxruntime"
"""The target of the command line and of the API where none is named."""
KINDS = {
    "qir.frontends": "frontend",
    "qir.targets": "target",
    "qir.profiles": "profile",
    "qir.passes": "pass",
    "qir.observers": "observer",
    "qir.ops": "op",
    "qir.methods": "method",
    "qir.forms": "form",
    "qir.conditions": "condition",
    "qir.prepare": "preparation step",
    "qir.stages": "stage function",
    "qir.metrics": "metric",
    "qir.probes": "probe",
}
"""The groups of entry points, and what each finds."""
CORE = "core"
"""The entry point of the rows that the core brings itself."""


_T = TypeVar("_T")

_MAX_NAMES_LENGTH = 120  # letters of names that still fit a line
_offered: dict[tuple[str, str], object] = {}
_entries: dict[tuple[str, type], Mapping[str, object]] = {}


@cache  # each call reads the files of all distributions
def _installed() -> Mapping[str, tuple[EntryPoint, ...]]:
    points = entry_points()
    return {kind: tuple(points.select(group=kind)) for kind in KINDS}


@cache
def _points(kind: str) -> dict[str, tuple[EntryPoint, ...]]:
    out: dict[str, tuple[EntryPoint, ...]] = {}
    for point in _installed().get(kind, ()):
        known = out.get(point.name, ())
        # A path that is searched twice gives each entry point twice.
        if all(p.value != point.value or _owner(p) != _owner(point) for p in known):
            out[point.name] = tuple(sorted((*known, point), key=_owner))
    return out


def _owner(point: EntryPoint) -> str:
    return _distribution_text(point.dist) if point.dist else "an unknown distribution"


@cache  # each question about a distribution parses its whole metadata, and QIR has many plugins
def _distribution_text(distribution: Distribution) -> str:
    return f"{distribution.name} {distribution.version}"


def names(kind: str) -> tuple[str, ...]:
    """Returns the names known for a kind, sorted; nothing is imported."""
    if _offered:
        return tuple(sorted({*_points(kind), *(n for k, n in _offered if k == kind)}))
    return _names(kind)


@cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(_points(kind)))


def owner(kind: str, name: str) -> str:
    """Returns the distribution that brings a plugin."""
    if (kind, name) in _offered:
        return "this program"
    return ", ".join(_owner(p) for p in _points(kind).get(name, ()))


def place(kind: str, name: str) -> str:
    """Returns the module that a plugin is in, as its entry point says."""
    return ", ".join(p.module for p in _points(kind).get(name, ()))


@contextmanager
def offer(kind: str, name: str, plugin: object) -> Iterator[None]:
    """Lets a plugin be found inside a `with` block without being installed."""
    before = dict(_offered)
    _offered[kind, name] = plugin
    try:
        yield
    finally:
        _offered.clear()
        _offered.update(before)


def find(kind: str, name: str) -> object:
    """Loads the plugin of that name.

    Raises PluginError if there is none, if two distributions claim the name, if it is written for
    another plugin API, or if it breaks.
    """
    return _offered[kind, name] if (kind, name) in _offered else _found(kind, name)


def entries(kind: str, row: type[_T]) -> Mapping[str, _T]:
    """Returns what the entry points of a kind name: each one `row`, or a table of rows by name.

    What does not load or is no row is left out, so that it harms nobody who does not ask for it;
    of two rows of one name the first entry point's counts. `qir plugins` says what is wrong.
    """
    if _offered:
        return _gathered(kind, row)
    if (kind, row) not in _entries:
        _entries[kind, row] = _gathered(kind, row)
    return cast("Mapping[str, _T]", _entries[kind, row])


def entry(kind: str, row: type[_T], name: str) -> _T | None:
    """Returns the row of that name; None if there is none.

    The table `core` is asked first: its names need no other plugin loaded, and mean the same
    whatever else is installed.
    """
    if CORE in names(kind):
        table = find(kind, CORE)
        if isinstance(table, Mapping) and name in table and isinstance(table[name], row):
            return cast("_T", table[name])
    return entries(kind, row).get(name)


def _gathered(kind: str, row: type[_T]) -> Mapping[str, _T]:
    out: dict[str, _T] = {}
    for name in names(kind):
        try:
            plugin = find(kind, name)
        except PluginError:
            continue
        table = plugin if isinstance(plugin, Mapping) else {name: plugin}
        for key, member in table.items():
            if isinstance(member, row):
                out.setdefault(key, member)
    return MappingProxyType(out)


@cache
def _found(kind: str, name: str) -> object:
    points = _points(kind).get(name, ())
    short = KINDS.get(kind, kind)
    if not points:
        suggestions = difflib.get_close_matches(name, names(kind), 1)
        hint = f"did you mean {suggestions[0]!r}? " if suggestions else ""
        known = ", ".join(names(kind)) or "none (is qir installed?)"
        where = (
            f"known: {known}"
            if len(known) < _MAX_NAMES_LENGTH
            else "`qir plugins` lists those there are"
        )
        raise PluginError(f"no {short} {name!r}; {hint}{where}")
    if len(points) > 1:
        owners = " and ".join(_owner(p) for p in points)
        raise PluginError(f"{short} {name!r} is claimed by {owners}; remove one of them")
    return _load(points[0], f"{short} {name!r}")


def _load(point: EntryPoint, what: str) -> object:
    """Returns what an entry point names; raises PluginError where it does not load or is for
    another API."""
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not what was asked for
            loaded: object = point.load()
    except (Exception, SystemExit) as error:
        # What is for another API most likely breaks for that reason, which then is the better
        # message.
        number = _api_in_source(point.module)
        _require_api(API if number is None else number, point, what)
        who = f"{what} of {_owner(point)}"
        if isinstance(error, ModuleNotFoundError):
            raise PluginError(f"{who} needs {error.name or str(error)}") from error
        reason = "it exits" if isinstance(error, SystemExit) else str(error)
        raise PluginError(f"{who} breaks: {reason}") from error
    _require_api(_api_of_loaded(point.module), point, what)
    return loaded


def _require_api(number: object, point: EntryPoint, what: str) -> None:
    if number == API:
        return
    who = f"{what} of {_owner(point)}"
    if number is None:
        reason = f"write qir_api = {API} in {point.module}, or in a package above it"
        raise ApiError(f"{who} does not say which plugin API it is written for; {reason}")
    newer = isinstance(number, int) and number > API
    remedy = "a newer qir" if newer else "a newer version of it"
    reason = f"is written for plugin API {number}, this qir has {API}"
    raise ApiError(f"{who} {reason}; install {remedy}")


def _api_of_loaded(module: str) -> object:
    """Returns the `qir_api` of a module that is loaded, or of the nearest package above it."""
    while module:
        number: object = getattr(sys.modules.get(module), "qir_api", None)
        if number is not None:
            return number
        module = module.rpartition(".")[0]
    return None


def _api_in_source(module: str) -> object:
    """Returns the `qir_api` in the source of a module that does not load, or of a package above
    it."""
    top, *inner = module.split(".")
    try:
        module_spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if module_spec is None or module_spec.origin is None:
        return None
    origin = Path(module_spec.origin)
    sources = [origin]
    for depth in range(1, len(inner) + 1):
        path = origin.parent.joinpath(*inner[:depth])
        sources += [path / "__init__.py", path.with_suffix(".py")]
    numbers = (_number_in(place) for place in reversed(sources))
    return next((number for number in numbers if number is not None), None)


def _number_in(source: Path) -> object:
    try:
        # Read, not imported: importing is what just failed.
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for line in tree.body:
        match line:
            case ast.Assign(targets=[ast.Name(id="qir_api")], value=ast.Constant(value=number)):
                return number
    return None


def forget() -> None:
    """Forgets what was found, so that packages installed since are seen."""
    for cached_function in (_installed, _points, _names, _found):
        cached_function.cache_clear()
    _entries.clear()
