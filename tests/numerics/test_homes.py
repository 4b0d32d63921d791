"""What profiles of one runtime alone name lives in its backend's folder."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from qir import registry
from qir.capability.table import Dynamic
from qir.ir.ops.quantization import scale_rule_names
from qir.numerics.fields import StageField, field_types
from qir.numerics.scale_rules import families, scale_rules
from qir.numerics.stages import stage_functions
from qir.profiles.conditions import conditions
from qir.profiles.kernel_forms import forms
from qir.profiles.methods import tabled
from qir.profiles.preparation import DEFAULT_STEPS, preparation_steps

ROOT = Path(__file__).parents[2]
PROFILES = (*ROOT.glob("backends/*/profiles/*.toml"), *ROOT.glob("qir/profiles/*.toml"))


def users_of(kind: str) -> dict[str, set[str]]:
    """Returns the folders whose profile files name each method, form, condition or step."""
    out: dict[str, set[str]] = {}
    for path in PROFILES:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for row in (data, *data.get("rule", ()), *data.get("group", ())):
            for one in named_in(row, kind):
                out.setdefault(one, set()).add(path.relative_to(ROOT).parts[1])
    return out


def named_in(row: dict[str, Any], kind: str) -> list[str]:
    said = row.get("when", {}).get("form", []) if kind == "form" else row.get(kind, [])
    return [one if isinstance(one, str) else one["name"] for one in as_list(said)]


def as_list(said: object) -> list[Any]:
    return said if isinstance(said, list) else [said]


def home_of(folders: set[str], module: str, core: str) -> str:
    """Returns where what these folders' profiles name belongs: the one's backend, or the core."""
    alone = len(folders) == 1 and folders != {"profiles"}
    return f"qir.backends.{next(iter(folders))}.{module}" if alone else core


def test_a_method_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    users = users_of("method")
    for name, method in tabled().items():
        home = home_of(users[name], "kernels", "qir.reference.")
        assert method.function.__module__.startswith(home), f"{name}: {users[name]} name it"


def test_a_form_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    users = users_of("form")
    assert users.keys() == forms().keys()
    for name, form in forms().items():
        home = home_of(users[name], "forms", "qir.profiles.kernel_forms")
        assert form.has.__module__ == home, f"{name}: {users[name]} name it"


def test_a_condition_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    users = users_of("needs")
    assert users.keys() == conditions().keys()
    for name, condition in conditions().items():
        home = home_of(users[name], "conditions", "qir.analysis.group_conditions")
        module = condition.met.__module__
        said = f"{name}, of {module}: {users[name]} name it"
        assert module == home or module == "qir.rewrite.fusing", said


def test_a_preparation_step_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    users = users_of("prepare")
    for usual in DEFAULT_STEPS:
        users.setdefault(usual, set()).add("profiles")
    assert users.keys() == preparation_steps().keys()
    for name, step in preparation_steps().items():
        home = home_of(users[name], "", "qir.passes.forms.group.steps")
        run = step.run.func if isinstance(step.run, partial) else step.run
        assert run.__module__.startswith(home), f"{name}: {users[name]} name it"


def stage_words() -> dict[str, set[str]]:
    """Returns the folders whose profile files give each stage field each word; a word that a rule
    has which says nothing is the core's."""
    said = StageField()
    out = {f"{name}.{getattr(said, name)}": {"profiles"} for name in field_types("stage")}
    for path in PROFILES:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for row in (data, *data.get("rule", ())):
            for name, word in row.get("stage", {}).items():
                out.setdefault(f"{name}.{word}", set()).add(path.relative_to(ROOT).parts[1])
    return out


def test_a_stage_function_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    """`other` says whose function computes an activation, and is none itself."""
    users = {word: names for word, names in stage_words().items() if not word.startswith("other.")}
    unnamed = {"relu.zero_code"}
    assert users.keys() == stage_functions().keys() - unnamed
    for name, stage in stage_functions().items():
        home = home_of(users.get(name, {"profiles"}), "stages", "qir.reference.stages")
        assert place_of("qir.stages", name) == home, f"{name}: {users.get(name)} name it"
        functions = [f for f in (getattr(stage, one.name) for one in fields(stage)) if callable(f)]
        folders = {f.__module__.rpartition(".")[0] for f in functions}
        assert folders <= {home.rpartition(".")[0], "qir.numerics"}, name


def place_of(kind: str, name: str) -> str:
    """Returns the module whose table has a row of that name."""
    tables = {point: registry.find(kind, point) for point in registry.names(kind)}
    (place,) = (registry.place(kind, p) for p, rows in tables.items() if name in as_table(rows))
    return place


def as_table(rows: object) -> Mapping[str, object]:
    assert isinstance(rows, Mapping)
    return rows


def range_users() -> dict[str, set[str]]:
    """Returns the folders whose target files and profile files name each scale rule; the one that a
    target has which names none is the core's."""
    out = {Dynamic().rule: {"profiles"}}
    for path in (*PROFILES, *ROOT.glob("backends/*/*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        named = [data.get("formulas", ""), data.get("dynamic", {}).get("rule", "")]
        for row in (data, *data.get("rule", ())):
            named.append(row.get("choose", {}).get("by", ""))
            named += as_list(row.get("when", {}).get("attrs", {}).get("rule", []))
        for name in (one for word in named for one in families().get(word, (word,))):
            if name in scale_rules():
                out.setdefault(name, set()).add(path.relative_to(ROOT).parts[1])
    return out


def test_a_range_rule_that_one_runtime_names_lives_in_the_folder_of_its_backend() -> None:
    """Those that no file names are for `--scales` and `choose_qparams`, and live in a backend."""
    users = range_users()
    assert {"onednn.u8", "fbgemm.affine", "torch.dynamic", "torch.observer"} < users.keys()
    for name, rule in scale_rules().items():
        place = place_of("qir.ranges", name)
        if name in users:
            home = home_of(users[name], "ranges", "qir.reference.ranges")
            assert place == home, f"{name}: {users[name]} name it"
        else:
            assert re.fullmatch(r"qir\.backends\.\w+\.ranges", place), f"{name}: nobody names it"
        if rule.function is not None:
            assert rule.function.__module__ == place, name


def test_every_range_rule_may_be_named_by_a_program() -> None:
    assert scale_rule_names() == ("profile", *scale_rules())
