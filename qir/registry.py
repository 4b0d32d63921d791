"""Plugins, found by entry point and loaded when asked for by name; ours like a stranger's."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import ItemsView, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from qir.errors import ApiError, PluginError
from qir.records import record

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
    "qir.ranges": "scale rule",
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
_OWN, _PROGRAM = "qir", "this program"
_NONE = object()


@record
class _Claim:
    """A row that an entry point names, itself or in its table."""

    point: str
    distribution: str
    owner: str
    row: object


@record
class _Rows:
    """What the entry points of a kind name, by the name of the row."""

    used: Mapping[str, object]
    refused: Mapping[str, str]
    """The owners of rows that none is used of."""
    clashes: Mapping[str, str]
    """By entry point: a row of it that is not used, or not alone in its name, and whose it is."""


_rows: dict[str, _Rows] = {}


@cache  # each call reads the files of all distributions
def _installed() -> Mapping[str, tuple[EntryPoint, ...]]:
    points = entry_points()
    # Python 3.11 gives a dictionary by kind, and goes through all of it for each kind asked for.
    groups = dict.values(points) if isinstance(points, dict) else [points]
    found: dict[str, list[EntryPoint]] = {kind: [] for kind in KINDS}
    for point in chain.from_iterable(groups):
        if point.group in found:
            found[point.group].append(point)
    return {kind: tuple(known) for kind, known in found.items()}


@cache
def _points(kind: str) -> dict[str, tuple[EntryPoint, ...]]:
    out: dict[str, tuple[EntryPoint, ...]] = {}
    for point in _installed().get(kind, ()):
        known = out.get(point.name, ())
        # A path that is searched twice gives each entry point twice.
        if all(p.value != point.value or _owner(p) != _owner(point) for p in known):
            out[point.name] = tuple(sorted((*known, point), key=_owner)) if known else (point,)
    return out


def _owner(point: EntryPoint) -> str:
    return _distribution_text(point.dist) if point.dist else "an unknown distribution"


@cache  # each question about a distribution parses its whole metadata, and QIR has many plugins
def _distribution_text(distribution: Distribution) -> str:
    return f"{distribution.name} {distribution.version}"


@cache  # each question reads and parses a file
def installed_version(distribution: str) -> str | None:
    """Returns the version of a package; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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
        return _PROGRAM
    return ", ".join(_owner(p) for p in _points(kind).get(name, ()))


def place(kind: str, name: str) -> str:
    """Returns the module that a plugin is in, as its entry point says."""
    return ", ".join(p.module for p in _points(kind).get(name, ()))


def stranger(module: str) -> str:
    """Returns the distribution of a plugin in that module or next to it in its package, where it is
    not QIR; nothing for other modules."""
    top = module.partition(".")[0]
    for points in _installed().values():
        for point in points:
            if point.module.partition(".")[0] == top and _distribution_name(point) != _OWN:
                return _owner(point)
    return ""


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

    What does not load or is no row is left out, so that it harms nobody who does not ask for it.
    Of rows of one name QIR's own counts, then what this program offers; of two other distributions
    neither does. `qir plugins` says what is wrong. A row that is asked for by name loads no more
    plugins than are needed to find it.
    """
    return _Entries(kind, row)


class _Entries(Mapping[str, _T]):
    """The rows of a kind by name; going through them loads all plugins that have some."""

    def __init__(self, kind: str, row: type[_T]) -> None:
        self._kind = kind
        self._row = row

    def __getitem__(self, name: str) -> _T:
        found = _row_of(self._kind, name)
        if not isinstance(found, self._row) or found is _NONE:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_of_class(self._kind, self._row))

    def __len__(self) -> int:
        return len(_of_class(self._kind, self._row))

    def items(self) -> ItemsView[str, _T]:
        return _of_class(self._kind, self._row).items()


def entry(kind: str, row: type[_T], name: str) -> _T | None:
    """Returns the row of that name; None if there is none.

    The table `core` is asked first: its names need no other plugin loaded, and mean the same
    whatever else is installed. Raises PluginError for a row that two distributions claim.
    """
    found = _row_of(kind, name)
    if found is _NONE and (why := refusal(kind, name)):
        raise PluginError(why)
    return found if isinstance(found, row) and found is not _NONE else None


def refusal(kind: str, name: str) -> str:
    """Returns why no row of that name is used, though there are some; nothing in other cases.

    The kind is a group of entry points, or its short name.
    """
    group = next((g for g, short in KINDS.items() if kind in (g, short)), "")
    owners = _resolved(group).refused.get(name) if group else ""
    return f"{KINDS[group]} {name!r} is claimed by {owners}; remove one of them" if owners else ""


def clash(kind: str, name: str) -> str:
    """Returns the first row of an entry point that an earlier one has too, and whose it is; nothing
    where there is none."""
    return _resolved(kind).clashes.get(name, "")


def _of_class(kind: str, row: type[_T]) -> Mapping[str, _T]:
    if _offered or (kind, row) not in _entries:
        used = _resolved(kind).used
        found = MappingProxyType({name: r for name, r in used.items() if isinstance(r, row)})
        if _offered:
            return found
        _entries[kind, row] = found
    return cast("Mapping[str, _T]", _entries[kind, row])


def _resolved(kind: str) -> _Rows:
    if _offered:
        return _resolve(kind)
    if kind not in _rows:
        _rows[kind] = _resolve(kind)
    return _rows[kind]


def _resolve(kind: str) -> _Rows:
    claims: dict[str, list[_Claim]] = {}
    for name, member in _claims(kind):
        claims.setdefault(name, []).append(member)
    used: dict[str, object] = {}
    refused: dict[str, str] = {}
    clashes: dict[str, str] = {}
    for name, rivals in claims.items():
        first, *others = sorted(rivals, key=_rank)
        strangers = [c for c in others if c.distribution != first.distribution]
        if strangers and _rank(first) == _rank(strangers[0]):
            refused[name] = " and ".join(dict.fromkeys(c.owner for c in (first, *strangers)))
        else:
            used[name] = first.row
        if first.distribution != _PROGRAM:
            for c in strangers:
                text = f"{name!r} is claimed by {first.owner} too; remove one of them"
                clashes.setdefault(c.point, text)
    return _Rows(MappingProxyType(used), refused, clashes)


def _rank(claim: _Claim) -> int:
    return {_OWN: 0, _PROGRAM: 1}.get(claim.distribution, 2)


def _claims(kind: str) -> Iterator[tuple[str, _Claim]]:
    """Yields all rows; two distributions may name an entry point alike and have other rows in it,
    so each is loaded."""
    for name in names(kind):
        loaded: list[tuple[str, str, object]] = []
        if (kind, name) in _offered:
            loaded.append((_PROGRAM, _PROGRAM, _offered[kind, name]))
        else:
            for point in _points(kind)[name]:
                with suppress(PluginError):
                    plugin = _load(point, f"{KINDS.get(kind, kind)} {name!r}")
                    loaded.append((_distribution_name(point), _owner(point), plugin))
        for distribution, owner_text, plugin in loaded:
            table = plugin if isinstance(plugin, Mapping) else {name: plugin}
            for key, member in table.items():
                yield key, _Claim(name, distribution, owner_text, member)


def _core_rows(kind: str) -> Mapping[str, object]:
    """Returns the table `core`, as this program offers it or as QIR has it."""
    offered = _offered.get((kind, CORE))
    return offered if isinstance(offered, Mapping) else _own_table(kind, CORE)


def _row_of(kind: str, name: str) -> object:
    """Returns the row of that name that counts, or `_NONE`.

    QIR's own tables are asked one after the other, since their rows count whatever others have.
    """
    if _offered:
        found = _core_rows(kind).get(name, _NONE)
        return _resolved(kind).used.get(name, _NONE) if found is _NONE else found
    return _installed_row(kind, name)


@cache
def _installed_row(kind: str, name: str) -> object:
    for point in (CORE, *_names(kind)):
        if name in (table := _own_table(kind, point)):
            return table[name]
    return _resolved(kind).used.get(name, _NONE)


@cache
def _own_table(kind: str, name: str) -> Mapping[str, object]:
    """Returns the rows that QIR's own entry point of that name has; none where it does not load."""
    for point in _points(kind).get(name, ()):
        if _distribution_name(point) == _OWN:
            with suppress(PluginError):
                table = _load(point, f"{KINDS.get(kind, kind)} {name!r}")
                return table if isinstance(table, Mapping) else {name: table}
    return {}


def _distribution_name(point: EntryPoint) -> str:
    return _owner(point).rpartition(" ")[0]


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


@cache
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
    for cached_function in (_installed, _points, _names, _found, _load, _own_table, _installed_row):
        cached_function.cache_clear()
    installed_version.cache_clear()
    _entries.clear()
    _rows.clear()
