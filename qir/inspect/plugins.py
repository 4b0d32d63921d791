"""The plugins that are installed: what each is, who brings it, and whether it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qir import registry
from qir.calibration import Observer
from qir.errors import ApiError, PluginError
from qir.frontend import Frontend
from qir.inspect.metrics import Metric
from qir.inspect.probing import Probe
from qir.ir.ops import plugin_op
from qir.numerics.scale_rules import ScaleRule
from qir.numerics.stages import StageFunction
from qir.profiles.conditions import GroupCondition
from qir.profiles.kernel_forms import Form
from qir.profiles.methods import BUILT_IN, checked
from qir.profiles.preparation import PreparationStep
from qir.rewrite import Pass
from qir.target import Target, target

State = Literal["ok", "clashing", "other API", "not usable", "broken"]
"""`clashing`: two distributions claim its name, or that of a row in its table; `not usable`: what
it needs is not installed."""


class _RowClash(PluginError):
    """A row of a table that another distribution has too."""


@dataclass(frozen=True, slots=True)
class PluginSummary:
    """One name of a kind; `to_json` has the keys of the fields."""

    kind: str
    name: str
    distribution: str
    version: str
    place: str
    """The module it is in, or the folder of its files."""
    state: State
    fault: str
    """Why it cannot be used; empty where it can."""

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        return asdict(self)


def plugins(kind: str = "") -> tuple[PluginSummary, ...]:
    """Returns the plugins of a kind, or all; each is loaded to see whether it works."""
    groups = [group_of(kind)] if kind else list(registry.KINDS)
    return tuple(look(group, name) for group in groups for name in registry.names(group))


def group_of(kind: str) -> str:
    """Returns the entry points of a kind, named as `pass` or `qir.passes`; raises PluginError for
    no kind."""
    for group, short in registry.KINDS.items():
        if kind in (group, short):
            return group
    raise PluginError(f"no kind {kind!r}; kinds: {', '.join(registry.KINDS.values())}")


def load_plugin(group: str, name: str) -> object:
    """Returns the plugin of that name, which is what its kind must be; raises PluginError where it
    is not, or has a row that another distribution has."""
    entry = _load_whole(group, name)
    if group in (*_TABLES, "qir.methods") and (clash := registry.clash(group, name)):
        subject = f"{registry.KINDS[group]} {name!r} of {registry.owner(group, name)}"
        raise _RowClash(f"{subject}: {clash}")
    return entry


def _load_whole(group: str, name: str) -> object:
    if group == "qir.ops":
        return plugin_op(name)
    entry = registry.find(group, name)
    subject = f"{registry.KINDS[group]} {name!r} of {registry.owner(group, name)}"
    if group == "qir.methods":
        if isinstance(entry, Mapping):
            return {key: checked(method, f"{subject}: {key!r}") for key, method in entry.items()}
        if name in BUILT_IN:
            raise PluginError(f"{subject} has the name of a method of qir itself")
        return checked(entry, subject)
    if group == "qir.targets" and isinstance(entry, Path):
        return type(target(name))
    if group in _TABLES:
        base, public_name = _TABLES[group]
        entries = entry.values() if isinstance(entry, Mapping) else [entry]
        if not all(isinstance(item, base) for item in entries):
            raise PluginError(f"{subject} is no {public_name}, nor a table of them by name")
    elif group in _DERIVED:
        base, derived = _DERIVED[group]
        if not (isinstance(entry, type) and issubclass(entry, base)):
            raise PluginError(f"{subject} is no class derived from {derived}")
    elif group == "qir.profiles":
        if not isinstance(entry, Path):
            raise PluginError(f"{subject} is no pathlib.Path of a folder")
    elif not (isinstance(entry, tuple) and all(isinstance(method, Probe) for method in entry)):
        raise PluginError(f"{subject} is no tuple of qir.inspect.probing.Probe")
    return entry


_TABLES: dict[str, tuple[type, str]] = {
    "qir.conditions": (GroupCondition, "qir.profiles.conditions.GroupCondition"),
    "qir.prepare": (PreparationStep, "qir.profiles.PreparationStep"),
    "qir.forms": (Form, "qir.profiles.kernel_forms.Form"),
    "qir.ranges": (ScaleRule, "qir.numerics.scale_rules.ScaleRule"),
    "qir.stages": (StageFunction, "qir.numerics.stages.StageFunction"),
}
"""What plugins of a kind are, one or several by name, and the public name of that."""
_DERIVED: dict[str, tuple[type, str]] = {
    "qir.frontends": (Frontend, "qir.frontend.Frontend"),
    "qir.targets": (Target, "qir.target.Target"),
    "qir.passes": (Pass, "qir.rewrite.Pass"),
    "qir.observers": (Observer, "qir.calibration.Observer"),
    "qir.metrics": (Metric, "qir.inspect.Metric"),
}
"""What plugins of a kind are derived from, and its public name."""


def look(group: str, name: str) -> PluginSummary:
    """Returns one plugin, loaded to see whether it works."""
    state: State = "ok"
    fault = place = ""
    try:
        entry = load_plugin(group, name)
        place = str(entry) if isinstance(entry, Path) else registry.place(group, name)
    except PluginError as error:
        fault, state = str(error), _state(group, name, error)
    owners = registry.owner(group, name).split(", ")
    pairs = [owner.rpartition(" ")[::2] for owner in owners]
    distributions = ", ".join(dist or version for dist, version in pairs)
    versions = ", ".join(version for dist, version in pairs if dist)
    kind = registry.KINDS[group]
    return PluginSummary(kind, name, distributions, versions, place, state, fault)


def _state(group: str, name: str, error: PluginError) -> State:
    if isinstance(error, ApiError):
        return "other API"
    if ", " in registry.owner(group, name) or isinstance(error, _RowClash):
        return "clashing"
    cause = error.__cause__
    missing_module = (
        (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    )
    return "not usable" if missing_module not in ("", "qir") else "broken"
