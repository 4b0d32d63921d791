"""A graph carries profiles that are not installed: two graphs may mean different ones by a name."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from qir import pipeline
from qir.errors import GraphError, ParseError, ProfileError
from qir.ir import file
from qir.ir.carried_profiles import ProfileText
from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import carry_profile, profile, profile_in, profile_names, read_profile
from qir.profiles.library import parse_profile
from qir.query.diff import diff
from qir.rewrite import run_passes
from qir.target import target
from qir.workflows import group_model

ROOT = Path(__file__).parents[2]
TEXT = 'name = "mine"\nextends = "native"\nquantize = {round = "even"}\n'
TIES = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
EVEN = np.array([0, 2, 2, 4], np.uint8)
"""What rounding halves to even makes of the ties, and away from zero:"""
AWAY = np.array([1, 2, 3, 4], np.uint8)


def quantizing() -> Graph:
    return parse(
        "graph main as native {\n  %x = input() : 4xf32\n"
        "  %y = quantize(%x) : 4x!quant.uniform<u8:f32, 1.0>\n  output(y=%y)\n}\n"
    )


def by_file(folder: Path, rounding: str) -> Graph:
    """A graph as mine, whose profile rounds so."""
    path = folder / f"{rounding}.toml"
    path.write_text(TEXT.replace("even", rounding))
    return run_passes(quantizing(), [Group(str(path))], Ledger())


def rounded(graph: Graph, **options: str) -> np.ndarray:
    return np.asarray(pipeline.run(graph, {"x": TIES}, **options)["y"])


def test_two_graphs_mean_different_profiles_by_one_name(tmp_path: Path) -> None:
    even, away = by_file(tmp_path, "even"), by_file(tmp_path, "away")
    assert even.profile == away.profile == "mine"
    for graph, wanted in ((even, EVEN), (away, AWAY), (even, EVEN)):
        assert np.array_equal(rounded(graph), wanted)
        assert np.array_equal(np.asarray(pipeline.compile(graph)(x=TIES)["y"]), wanted)
    assert "mine" not in profile_names()
    with pytest.raises(ProfileError, match="no profile 'mine'"):
        profile("mine")


def test_files_hold_the_profiles_that_graphs_carry(tmp_path: Path) -> None:
    for rounding in ("even", "away"):
        pipeline.save(by_file(tmp_path, rounding), tmp_path / f"{rounding}.qir")
    read = {name: pipeline.load(tmp_path / f"{name}.qir") for name in ("even", "away")}
    for _ in range(2):
        assert np.array_equal(rounded(read["even"]), EVEN)
        assert np.array_equal(rounded(read["away"]), AWAY)
    pipeline.save(read["away"], tmp_path / "again.qir")
    assert (tmp_path / "again.qir").read_bytes() == (tmp_path / "away.qir").read_bytes()


def test_copies_parts_and_pickles_carry_them_too(tmp_path: Path) -> None:
    graph = by_file(tmp_path, "away")
    for each in (
        graph.copy(),
        copy.deepcopy(graph),
        pickle.loads(pickle.dumps(graph)),
        graph.extract(["x"], ["y"]),
        pipeline.optimize(graph, "prune"),
    ):
        assert np.array_equal(rounded(each), AWAY)
    whole = Graph()
    x = whole.add("input", types=[graph["x"].type], name="x")
    whole.add("output", {"y": whole.merge(graph, {"x": x.result})["y"]})
    assert np.array_equal(rounded(whole), AWAY)


def test_one_graph_means_one_profile_by_a_name(tmp_path: Path) -> None:
    even, away = by_file(tmp_path, "even"), by_file(tmp_path, "away")
    with pytest.raises(ProfileError, match="carries another profile mine; give one of the two"):
        Group(str(tmp_path / "away.toml")).run(even, Ledger())
    with pytest.raises(GraphError, match="graph main carries another profile mine"):
        even.carry_profile(profile_in(away, "mine"))
    with pytest.raises(GraphError, match="carries another profile mine"):
        even.merge(away, {"x": even["x"]})
    assert even.carry_profile(profile_in(away, "mine"), replace=True)
    assert np.array_equal(rounded(even), AWAY)


def test_bodies_mean_the_profiles_of_their_holder(tmp_path: Path) -> None:
    body, whole = by_file(tmp_path, "away"), Graph()
    body.name = "body"
    x = whole.add("input", types=[body["x"].type], name="x")
    node = whole.add("fused", {"x": x.result}, types=[body["y"].type], bodies={"body": body})
    whole.add("output", {"y": node.result})
    assert whole.own_profiles.keys() == body.own_profiles.keys() == {"mine"}
    assert np.array_equal(rounded(whole), AWAY)
    assert np.array_equal(rounded(whole.copy()), AWAY)


def test_a_run_by_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    graph = quantizing()
    for rounding, wanted in (("even", EVEN), ("away", AWAY)):
        path = tmp_path / "one.toml"
        path.write_text(TEXT.replace("even", rounding))
        assert np.array_equal(rounded(graph, profile=str(path)), wanted)
        assert read_profile(str(path)).name == "mine"
    assert not graph.own_profiles
    with pytest.raises(ProfileError, match="no profile 'mine'"):
        rounded(graph, profile="mine")


def test_a_model_is_grouped_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "away.toml"
    path.write_text(TEXT.replace("even", "away"))
    made = group_model(quantizing(), str(path), tmp_path / "m.qir")
    assert made.profile == "mine"
    assert np.array_equal(rounded(pipeline.load(tmp_path / "m.qir")), AWAY)


def test_no_state_of_a_thread_or_task_decides_results() -> None:
    found = []
    for folder in ("qir", "frontends", "backends"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [getattr(node, "id", ""), getattr(node, "attr", "")]
                if "ContextVar" in names or isinstance(node, ast.Global):
                    found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert not found, f"arguments, or what a graph carries, say it instead: {found}"


def test_a_graph_with_a_profile_of_its_own_is_written_for_a_runtime(tmp_path: Path) -> None:
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "chip"\nextends = "ort-1.31"\ngroups = "inherited"\n')
    graph = run_passes(quantizing(), [Group(str(chip))], Ledger())
    pipeline.save(graph, tmp_path / "chip.onnx")
    found = target("onnxruntime").compile(graph)(x=TIES)["y"]
    assert np.array_equal(np.asarray(found), EVEN)


def test_branches_that_mean_two_profiles_by_one_name_are_refused(tmp_path: Path) -> None:
    graph = parse("graph main as native {\n  %x = input() : 4xf32\n  output(y=%x)\n}\n")
    branches = {}
    for name, rounding in (("then", "away"), ("else", "even")):
        body = by_file(tmp_path, rounding)
        branches[name] = body
    condition = graph.constant(np.array(True), name="c")
    with pytest.raises(GraphError, match="carries another profile mine"):
        graph.add("if", {"cond": condition, "xs.0": graph["x"]}, bodies=branches)
    assert {node.op for node in graph} == {"input", "constant", "output"}


def test_a_profile_with_the_name_of_an_installed_one_is_not_lost_silently(tmp_path: Path) -> None:
    other = parse_profile("ort-1.31", TEXT.replace("mine", "ort-1.31"))
    graph = quantizing()
    with pytest.raises(ProfileError, match="an installed profile is named"):
        carry_profile(graph, other)
    graph.carry_profile(other)
    graph.profile = "ort-1.31"
    with pytest.raises(ProfileError, match="another of that name is installed"):
        pipeline.save(graph, tmp_path / "lost.qir")
    assert not (tmp_path / "lost.qir").exists()


def test_a_file_whose_profile_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "away.qir"
    pipeline.save(by_file(tmp_path, "away"), path)
    read = file.read(path)
    wrong = {"mine": TEXT.replace("native", "elsewhere")}
    file.write(path, file.Bundle(read.graph, wrong, read.ledger, ""))
    with pytest.raises(ProfileError, match=r"away\.qir: it carries the profile mine, which"):
        pipeline.load(path)


def test_other_rules_by_one_name_are_a_difference(tmp_path: Path) -> None:
    even, away = by_file(tmp_path, "even"), by_file(tmp_path, "away")
    assert not diff(even, away).equal
    assert "profile mine: its rules -> other rules" in str(diff(even, away))
    assert diff(even, even.copy()).equal


def test_a_text_holds_the_profiles_that_its_graph_names(tmp_path: Path) -> None:
    away, even = by_file(tmp_path, "away"), by_file(tmp_path, "even")
    text = str(away)
    assert text.startswith(
        'profile mine {\n  | name = "mine"\n  | extends = "native"\n'
        '  | quantize = {round = "away"}\n}\ngraph main as mine {\n'
    )
    for each in (text, print_graph(away, weights=True, origins=True)):
        read = parse(each)
        assert read == away
        assert read != even
        assert print_graph(read, profiles=False) == print_graph(even, profiles=False)
        assert read.own_profiles["mine"].text == away.own_profiles["mine"].text
        assert np.array_equal(rounded(read), AWAY)
        assert np.array_equal(np.asarray(pipeline.compile(read)(x=TIES)["y"]), AWAY)
        assert str(read) == text
        with pytest.raises(GraphError, match="carries another profile mine"):
            read.carry_profile(profile_in(even, "mine"))
        pipeline.save(read, tmp_path / "read.qir", force=True)
        assert np.array_equal(rounded(pipeline.load(tmp_path / "read.qir")), AWAY)
    assert str(parse(print_graph(away, profiles=False))).startswith("graph main as mine {")


@pytest.mark.parametrize(
    "end", ["", "\n", "\n\n", "\r\n", '\n# \u202e "quoted" | } // \\\t\n', "\n#é"]
)
def test_a_profile_is_read_from_a_text_as_it_was_printed(end: str) -> None:
    graph = quantizing()
    graph.profile = "a b"
    given = ProfileText("a b", f'name = "a b"\n\n  extends = "native"{end}')
    graph.carry_profile(given)
    read = parse(str(graph))
    assert read.own_profiles == {"a b": given}
    assert str(read).isprintable() or not set(str(read)) & set("\t\r\u202e")
    assert read == graph


def test_profiles_that_nothing_names_are_not_printed(tmp_path: Path) -> None:
    graph = by_file(tmp_path, "away")
    graph.profile = "native"
    assert str(graph) == str(quantizing())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("profile mine {", "bracket of the profile mine is not closed"),
        ("profile mine { x }", r"line 1, column 16: '\|' should stand here, not 'x }"),
        ("profile mine {\n}\nprofile mine {\n}", "the profile mine is given twice"),
        ("profile {\n}", "a word should stand here"),
    ],
)
def test_a_section_that_is_none_is_refused(section: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(section)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('| name = "mine"\n| extends = "elsewhere"', "the graph's text holds a profile: mine.toml"),
        ('| name = "other"\n| extends = "native"', "calls a profile mine, whose name is other"),
    ],
)
def test_a_profile_of_a_text_that_cannot_be_read_is_named(lines: str, message: str) -> None:
    graph = parse(f"profile mine {{\n{lines}\n}}\n{quantizing()}".replace("as native", "as mine"))
    with pytest.raises(ProfileError, match=message):
        rounded(graph)


def test_an_extracted_part_carries_what_it_names(tmp_path: Path) -> None:
    graph = by_file(tmp_path, "away")
    graph.set_profile(graph["y"].node, "native")
    assert graph.extract(["x"], ["y"]).own_profiles.keys() == {"mine"}
    graph.profile = "native"
    assert not graph.extract(["x"], ["y"]).own_profiles
    graph.set_profile(graph["y"].node, "mine")
    assert graph.extract(["x"], ["y"]).own_profiles.keys() == {"mine"}
    assert not graph.extract(["x"], ["x"]).own_profiles
