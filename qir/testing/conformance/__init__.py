"""Conformance: what a plugin of each kind is held to, a stranger's and ours alike.

Each check makes a list of `Check`s and raises nothing; `require` raises ContractError for
those that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qir import registry
from qir.calibration import Observer
from qir.frontend import Frontend
from qir.inspect.metrics import Metric
from qir.inspect.plugins import group_of, load_plugin
from qir.inspect.probing import Probe
from qir.ir.ops import OPS, PluginOp
from qir.numerics.scale_rules import ScaleRule
from qir.numerics.stages import StageFunction
from qir.profiles import PluginMethod, dumps, load, profile
from qir.profiles.conditions import GroupCondition
from qir.profiles.kernel_forms import Form
from qir.profiles.preparation import PreparationStep
from qir.rewrite import Pass
from qir.target import Target
from qir.testing.conformance.checklist import Broken, Check, Checklist, demand, require
from qir.testing.conformance.frontends import check_frontend
from qir.testing.conformance.methods import check_method, check_methods
from qir.testing.conformance.metrics import check_metric
from qir.testing.conformance.observers import check_observer
from qir.testing.conformance.ops import check_op
from qir.testing.conformance.passes import check_pass
from qir.testing.conformance.scale_rules import check_scale_rules
from qir.testing.conformance.targets import check_target


def check_plugin(kind: str, name: str) -> tuple[Check, ...]:
    """Returns the checks of an installed plugin; `kind` is such as `pass` or `qir.passes`.

    Raises PluginError for a name or a kind that there is not.
    """
    group = group_of(kind)
    if name not in registry.names(group):
        registry.find(group, name)  # says what is near
    checks = Checklist()
    found: list[object] = []

    def loads() -> str:
        found.append(load_plugin(group, name))
        return f"{registry.owner(group, name)}, for plugin API {registry.API}"

    if not checks.check("loads", loads):
        return checks.told()
    checks.check("is called as its entry point", lambda: _called(found[0], name))
    return (*checks.told(), *_checked(name, found[0]))


def _called(found: object, name: str) -> str | None:
    own = getattr(found, "name", None)
    own = found.spec.name if isinstance(found, PluginOp) else own
    if isinstance(own, str) and not isinstance(found, Path):
        demand(own == name, f"it calls itself {own!r}, the entry point {name!r}")
        return own
    return None


def _checked(name: str, found: object) -> tuple[Check, ...]:
    if isinstance(found, PluginOp):
        return check_op(found)
    if isinstance(found, PluginMethod):
        return check_method(name, found)
    if isinstance(found, Form | GroupCondition | StageFunction):
        return check_rows({name: found})
    if isinstance(found, PreparationStep):
        return check_steps({name: found})
    if isinstance(found, ScaleRule):
        return check_scale_rules({name: found})
    if isinstance(found, Mapping):
        # Entry points of several kinds give tables, which are told apart by what they hold.
        if all(isinstance(row, PreparationStep) for row in found.values()):
            return check_steps(found)
        if all(isinstance(row, ScaleRule) for row in found.values()):
            return check_scale_rules(found)
        methods = all(isinstance(row, PluginMethod) for row in found.values())
        return check_methods(found) if methods else check_rows(found)
    if isinstance(found, Path):
        return _check_profiles(found)
    if isinstance(found, tuple):
        return _check_probes(found)
    assert isinstance(found, type)
    if issubclass(found, Pass):
        return check_pass(found)
    if issubclass(found, Frontend):
        return check_frontend(found)
    if issubclass(found, Target):
        return check_target(found)
    if issubclass(found, Observer):
        return check_observer(found)
    assert issubclass(found, Metric)
    return check_metric(found)


def check_rows(table: Mapping[str, Form | GroupCondition | StageFunction]) -> tuple[Check, ...]:
    """Holds forms of layers, conditions of groups or stage functions to what messages and profiles
    rely on."""
    checks = Checklist()

    def says() -> None:
        for name, row in table.items():
            text = row.description
            demand(bool(text) and not text.endswith("."), f"{name}: its description is no phrase")

    def names_ops() -> None:
        for name, row in table.items():
            strange = [op for op in getattr(row, "ops", ()) if op not in OPS]
            demand(not strange, f"{name}: there is no op {strange[:1]}")

    def names_a_field() -> None:
        for name, row in table.items():
            if isinstance(row, StageFunction):
                demand(
                    name.startswith(f"{row.stage_field}."),
                    f"{name} is no word of stage.{row.stage_field}",
                )

    checks.check("says in a phrase what it means", says)
    checks.check("names ops that there are", names_ops)
    checks.check("is named as the field of a rule", names_a_field)
    return checks.told()


def check_steps(table: Mapping[str, PreparationStep]) -> tuple[Check, ...]:
    """Holds preparation steps to what the page of profiles prints."""
    checks = Checklist()

    def says() -> None:
        for name, step in table.items():
            demand(step.description.endswith("."), f"{name}: its description is no sentence")

    def runs() -> str:
        for name, step in table.items():
            demand(callable(step.run), f"{name}: run cannot be called")
        return f"{len(table)} steps" if len(table) != 1 else "1 step"

    checks.check("says in a sentence what it does", says)
    checks.check("can be run", runs)
    return checks.told()


def _check_profiles(place: Path) -> tuple[Check, ...]:
    checks = Checklist()
    files = sorted(place.glob("*.toml")) if place.is_dir() else [place]

    def reads() -> str:
        demand(files, f"{place} holds no .toml")
        for path in files:
            made = load(path, profile)
            stem = path.name.removesuffix(".toml")
            demand(made.name == stem, f"{path.name} calls itself {made.name}")
        return ", ".join(path.name for path in files)

    def again() -> None:
        for path in files:
            text = dumps(load(path, profile))
            demand(text, f"{path.name} is written as nothing")

    checks.check("its profiles are read, and called as their files", reads)
    checks.check("they are written back", again)
    return checks.told()


def _check_probes(found: tuple[object, ...]) -> tuple[Check, ...]:
    checks = Checklist()

    def names() -> str:
        known = [probe.name for probe in found if isinstance(probe, Probe)]
        demand(known, "there is no probe")
        demand(len(set(known)) == len(known), "two probes have one name")
        return ", ".join(known)

    checks.check("each probe has a name of its own", names)
    return checks.told()


__all__ = [
    "Broken",
    "Check",
    "Checklist",
    "check_frontend",
    "check_method",
    "check_metric",
    "check_observer",
    "check_op",
    "check_pass",
    "check_plugin",
    "check_target",
    "require",
]
