"""Plugins are found by entry point; what is wrong with one is told in one line with its owner."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import qir
from qir import registry
from qir.cli.failures import describe
from qir.errors import PluginError, ProfileError
from qir.inspect.plugins import plugins
from qir.numerics.stages import BoundsStage, stage_function, stage_functions
from qir.profiles.library import parse_profile
from qir.profiles.methods import plugin_method, tabled

KIND = "qir.passes"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path where distributions can be put."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.forget()
    yield tmp_path
    registry.forget()


def distribution(folder: Path, name: str, points: dict[str, str], kind: str = KIND) -> None:
    """A distribution as an installer leaves it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[{kind}]\n{rows}")


def module(folder: Path, name: str, text: str, api: str = "qir_api = 1\n") -> None:
    (folder / f"{name}.py").write_text(api + text)
    importlib.invalidate_caches()
    sys.modules.pop(name, None)


def test_a_plugin_of_another_distribution_is_found_and_loaded_once(installed: Path) -> None:
    module(installed, "acme_pass", "class P: pass\n")
    distribution(installed, "acme", {"acme-pass": "acme_pass:P"})
    assert "acme-pass" in registry.names(KIND)
    assert "acme_pass" not in sys.modules  # naming loads nothing
    found = registry.find(KIND, "acme-pass")
    assert found is sys.modules["acme_pass"].P
    assert registry.find(KIND, "acme-pass") is found
    assert registry.owner(KIND, "acme-pass") == "acme 1.0"


def test_names_are_sorted_and_of_one_kind(installed: Path) -> None:
    distribution(installed, "acme", {"zzz": "a:b", "aaa": "a:b"})
    distribution(installed, "other", {"of-another-kind": "a:b"}, "qir.targets")
    names = registry.names(KIND)
    assert list(names) == sorted(names)
    assert {"zzz", "aaa", "prune"} <= set(names)
    assert "of-another-kind" not in names
    assert "of-another-kind" in registry.names("qir.targets")


def test_an_unknown_name_gets_a_guess_and_the_known_ones(installed: Path) -> None:
    with pytest.raises(PluginError) as caught:
        registry.find(KIND, "prun")
    said = str(caught.value)
    assert said.startswith("no pass 'prun'; ")
    assert "did you mean 'prune'?" in said
    assert "`qir plugins` lists those there are" in said  # more names than a line holds
    with pytest.raises(PluginError, match=r"known: .*minmax"):
        registry.find("qir.observers", "nobody")
    with pytest.raises(PluginError, match=r"known: none \(is qir installed\?\)"):
        registry.find("qir.nothing", "x")


def test_one_name_of_two_distributions_is_refused_naming_both(installed: Path) -> None:
    module(installed, "acme_pass", "P = 1\n")
    distribution(installed, "acme", {"mine": "acme_pass:P"})
    distribution(installed, "other", {"mine": "acme_pass:P"})
    with pytest.raises(PluginError, match=r"claimed by (acme 1\.0 and other|other 1\.0 and acme)"):
        registry.find(KIND, "mine")


def test_a_stranger_does_not_take_over_a_name_of_ours(installed: Path) -> None:
    module(installed, "acme_pass", "P = 1\n")
    distribution(installed, "acme", {"prune": "acme_pass:P"})
    with pytest.raises(PluginError, match="'prune' is claimed by"):
        registry.find(KIND, "prune")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_there_at_all\n", "needs not_there_at_all"),
        ("raise ZeroDivisionError('in the module')\n", "breaks: in the module"),
        ("P = 1\n", "breaks: .*Q"),
        ("def broken(:\n", "breaks: invalid syntax"),
        ("import sys\nsys.exit(7)\n", "breaks: it exits"),
    ],
)
def test_a_plugin_that_does_not_load_is_told_with_its_owner(
    installed: Path, text: str, message: str
) -> None:
    module(installed, "acme_bad", text)
    distribution(installed, "acme", {"bad": "acme_bad:Q"})
    with pytest.raises(PluginError, match=f"'bad' of acme 1\\.0 {message}") as caught:
        registry.find(KIND, "bad")
    assert "\n" not in str(caught.value)


def test_one_broken_plugin_harms_no_other(installed: Path) -> None:
    module(installed, "acme_bad", "raise SystemError\n")
    distribution(installed, "acme", {"bad": "acme_bad:Q"})
    assert registry.find(KIND, "prune").__name__ == "Prune"  # type: ignore[attr-defined]


def test_the_same_distribution_found_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("twice", "qir.passes.cleanup.prune:Prune", KIND)
    monkeypatch.setattr(registry, "entry_points", lambda: EntryPoints([point, point]))
    registry.forget()
    try:
        assert registry.names(KIND) == ("twice",)
        assert registry.find(KIND, "twice")
    finally:
        monkeypatch.undo()
        registry.forget()


def test_what_is_installed_since_is_seen_after_forgetting(installed: Path) -> None:
    assert "late" not in registry.names(KIND)
    distribution(installed, "acme", {"late": "a:b"})
    registry.forget()
    assert "late" in registry.names(KIND)


def test_what_a_plugin_prints_is_no_output(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module(installed, "acme_loud", "print('hello')\nP = 1\n")
    distribution(installed, "acme", {"loud": "acme_loud:P"})
    assert registry.find(KIND, "loud") == 1
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("number", [0, 2, 99])
@pytest.mark.parametrize("text", ["P = 1\n", "from qir import what_only_that_api_has\n"])
def test_a_plugin_for_another_api_is_told_as_that_even_if_it_does_not_load(
    installed: Path, number: int, text: str
) -> None:
    module(installed, "acme_other", text, f"qir_api = {number}\n")
    distribution(installed, "acme", {"other": "acme_other:P"})
    with pytest.raises(PluginError) as caught:
        registry.find(KIND, "other")
    who = "a newer qir" if number > 1 else "a newer version of it"
    said = f"pass 'other' of acme 1.0 is written for plugin API {number}, this qir has 1"
    assert str(caught.value) == f"{said}; install {who}"


def test_a_plugin_that_states_no_api_is_told_what_to_write(installed: Path) -> None:
    module(installed, "acme_bare", "P = 1\n", "")
    distribution(installed, "acme", {"bare": "acme_bare:P"})
    with pytest.raises(PluginError, match="write qir_api = 1 in acme_bare, or in a package above"):
        registry.find(KIND, "bare")


def test_a_package_states_the_api_for_its_modules(installed: Path) -> None:
    package = installed / "acme_many"
    package.mkdir()
    (package / "__init__.py").write_text("qir_api = 1\n")
    (package / "good.py").write_text("P = 1\n")
    (package / "late.py").write_text("qir_api = 3\nfrom qir import what_only_that_api_has\n")
    distribution(installed, "acme", {"good": "acme_many.good:P", "late": "acme_many.late:P"})
    assert registry.find(KIND, "good") == 1
    with pytest.raises(PluginError, match="written for plugin API 3, this qir has 1"):
        registry.find(KIND, "late")


def test_what_qir_brings_is_written_for_the_api_that_it_has() -> None:
    assert qir.qir_api == registry.API


def test_entries_are_rows_and_tables_of_rows() -> None:
    with registry.offer("qir.ops", "one", 1), registry.offer("qir.ops", "two", {"a": 2, "b": "x"}):
        found = {k: v for k, v in registry.entries("qir.ops", int).items() if k in "one a b"}
        assert found == {"one": 1, "a": 2}
        with registry.offer("qir.ops", "zwei", {"a": 4}):  # the first entry point counts
            assert registry.entries("qir.ops", int)["a"] == 2


HOME = "acme_rows"
CLASH = r"stage function 'aaa' of acme 1\.0: 'ends\.away' is claimed by qir .* too; remove one"
STAGE_ROWS = """
from qir.numerics.stages import BoundsStage
def nothing(bounds, out, rule):
    return bounds * 0
ROW = BoundsStage("nothing", nothing)
TABLE = {"ends.away": ROW, "ends.even": ROW, "ends.mine": ROW, "relu.odd": ROW}
"""


def test_a_row_of_ours_is_used_whatever_a_stranger_names(installed: Path) -> None:
    before = {name: stage_function(BoundsStage, name) for name in ("away", "even")}
    module(installed, HOME, STAGE_ROWS)
    points = {"aaa": f"{HOME}:TABLE", "core": f"{HOME}:TABLE", "tflite": f"{HOME}:TABLE"}
    distribution(installed, "acme", points, "qir.stages")
    registry.forget()
    for name, row in before.items():
        assert stage_function(BoundsStage, name) is row
        assert stage_functions()[f"ends.{name}"] is row
    assert stage_function(BoundsStage, "mine").description == "nothing"
    listed = {p.name: p for p in plugins("qir.stages")}
    assert listed["aaa"].state == "clashing"
    assert re.match(CLASH, listed["aaa"].fault)
    assert listed["aaa"].distribution == "acme"
    assert listed["mxnet"].state == "ok"


def test_a_row_of_two_strangers_is_refused_naming_both(installed: Path) -> None:
    for name in ("acme", "other"):
        module(installed, f"{name}_rows", STAGE_ROWS)
        distribution(installed, name, {f"{name}s": f"{name}_rows:TABLE"}, "qir.stages")
    registry.forget()
    assert "ends.mine" not in stage_functions()
    both = r"'ends\.mine' is claimed by acme 1\.0 and other 1\.0; remove one of them"
    with pytest.raises(PluginError, match=both):
        stage_function(BoundsStage, "mine")
    text = 'name = "a"\nextends = "native"\n\n[stage]\nends = "mine"\n'
    with pytest.raises(ProfileError, match=f"line 5: stage.ends: .*{both}"):
        parse_profile("a", text)
    with registry.offer("qir.stages", "here", {"ends.mine": (row := BoundsStage("here", abs))}):  # type: ignore[arg-type]
        assert stage_function(BoundsStage, "mine") is row
    assert {p.name: p.state for p in plugins("qir.stages")}["others"] == "clashing"


@pytest.mark.parametrize(
    ("kind", "text", "ask"),
    [
        ("qir.methods", "qir.profiles.PluginMethod(abs, ('neg',))", 'method = "a.row"'),
        ("qir.ranges", "qir.numerics.scale_rules.ScaleRule(function=abs)", 'by = "a.row"'),
        ("qir.conditions", "qir.profiles.conditions.GroupCondition('x', abs)", 'needs = ["a.row"]'),
        ("qir.prepare", "qir.profiles.PreparationStep('x', abs)", 'prepare = ["a.row"]'),
        ("qir.forms", "qir.profiles.kernel_forms.Form('x', abs, ())", 'when = {form = "a.row"}'),
    ],
)
def test_a_profile_that_names_a_row_of_two_strangers_is_refused(
    installed: Path, kind: str, text: str, ask: str
) -> None:
    imports = (
        "import qir.profiles.conditions, qir.profiles.kernel_forms, qir.numerics.scale_rules\n"
    )
    for name in ("acme", "other"):
        module(installed, f"{name}_rows", f"{imports}TABLE = {{'a.row': {text}}}\n")
        distribution(installed, name, {f"{name}s": f"{name}_rows:TABLE"}, kind)
    registry.forget()
    heads = {
        "qir.methods": '[[rule]]\nop = "neg"\n',
        "qir.ranges": "[choose]\n",
        "qir.conditions": '[[group]]\nchain = ["add"]\n',
        "qir.forms": '[[rule]]\nop = "conv2d"\n',
    }
    profile = f'name = "a"\nextends = "native"\n{heads.get(kind, "")}{ask}\n'
    with pytest.raises(
        ProfileError, match=r"line \d: .*'a\.row' is claimed by acme 1\.0 and other"
    ):
        parse_profile("a", profile)
    assert {p.name: p.state for p in plugins(kind)}["others"] == "clashing"


def test_a_method_of_ours_is_used_whatever_a_stranger_names(installed: Path) -> None:
    name, method = next(iter(tabled().items()))
    text = f"from qir.profiles import PluginMethod\nTABLE = {{{name!r}: PluginMethod(abs, ())}}\n"
    module(installed, HOME, text)
    distribution(installed, "acme", {"aaa": f"{HOME}:TABLE", name: f"{HOME}:TABLE"}, "qir.methods")
    registry.forget()
    assert plugin_method(name) is method
    assert tabled()[name] is method
    assert {p.name: p.state for p in plugins("qir.methods")}["aaa"] == "clashing"


def test_a_stage_of_another_field_is_no_word_of_a_profile(installed: Path) -> None:
    module(installed, HOME, STAGE_ROWS)
    distribution(installed, "acme", {"acme": f"{HOME}:TABLE"}, "qir.stages")
    registry.forget()
    with pytest.raises(
        ProfileError, match=r"line 4: stage\.relu = 'odd'; it is one of: "
    ) as caught:
        parse_profile("a", 'name = "a"\nextends = "native"\n[stage]\nrelu = "odd"\n')
    assert "odd" not in str(caught.value).partition("it is one of")[2]


def test_a_fault_in_a_plugin_is_told_as_its_own(installed: Path) -> None:
    module(installed, HOME, "def broken(): raise ValueError('no')\n")
    distribution(installed, "acme", {"acme": f"{HOME}:broken"}, "qir.stages")
    registry.forget()
    with pytest.raises(ValueError, match="no") as caught:
        registry.find("qir.stages", "acme")()  # type: ignore[operator]
    said = "a fault in acme_rows.broken of acme 1.0: ValueError: no; --debug shows where"
    assert describe(caught.value) == (2, said)
