"""What pyproject.toml registers is there, and nothing that should be registered is missing."""

import importlib
import inspect
import tomllib
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    (group, name): value
    for group, names in PROJECT["entry-points"].items()
    for name, value in names.items()
}
KINDS = {
    "qir.frontends",
    "qir.targets",
    "qir.passes",
    "qir.profiles",
    "qir.probes",
    "qir.observers",
    "qir.ops",
    "qir.methods",
    "qir.forms",
    "qir.conditions",
    "qir.prepare",
    "qir.stages",
    "qir.metrics",
}


def installed() -> dict[tuple[str, str], EntryPoint]:
    return {
        (point.group, point.name): point
        for group in KINDS
        for point in entry_points(group=group)
        if point.dist is not None and point.dist.name == "qir"
    }


def test_the_installed_entry_points_are_those_of_pyproject() -> None:
    found = {key: point.value for key, point in installed().items()}
    assert found == DECLARED, "qir was installed from another pyproject.toml: install it again"
    assert set(PROJECT["entry-points"]) <= KINDS


@pytest.mark.parametrize(("group", "name"), DECLARED)
def test_an_entry_point_loads_what_an_import_by_name_gives(group: str, name: str) -> None:
    module, _, attribute = DECLARED[group, name].partition(":")
    assert installed()[group, name].load() is getattr(importlib.import_module(module), attribute)


def test_every_pass_has_a_file_or_folder_a_class_and_an_entry_point_of_one_name() -> None:
    folders = [p.parent for p in (ROOT / "qir/passes").glob("*/__init__.py")]
    whole = [p for p in folders if p.name in ("layout", "recover")]  # folders of one pass
    places = whole + [
        place.with_suffix("") if place.is_file() else place
        for folder in folders
        if folder not in whole
        for place in folder.iterdir()
        if not place.name.startswith("_")
    ]
    wanted = {
        place.name.replace("_", "-"): ".".join(place.relative_to(ROOT).parts)
        + f":{place.name.title().replace('_', '')}"
        for place in places
    }
    assert {name: v for (group, name), v in DECLARED.items() if group == "qir.passes"} == wanted


def test_every_plugin_folder_is_registered() -> None:
    folders = {
        f"qir.{top}.{path.parent.name}"
        for top in ("frontends", "backends")
        for path in (ROOT / top).glob("*/__init__.py")
    }
    assert folders
    assert folders <= {value.partition(":")[0] for value in DECLARED.values()}


def test_the_command_is_a_function_of_the_package() -> None:
    (script,) = distribution("qir").entry_points.select(group="console_scripts", name="qir")
    assert script.value == PROJECT["scripts"]["qir"]
    assert callable(script.load())


def test_a_class_lives_in_the_package_that_registers_it() -> None:
    for (group, name), point in installed().items():
        loaded = point.load()
        if inspect.isclass(loaded):
            home = point.module
            inside = loaded.__module__ == home or loaded.__module__.startswith(f"{home}.")
            assert inside, f"{group} {name}: {loaded.__module__} is not in {home}"
