"""Preparation steps of profiles: named in a head, found by entry point, inherited as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from qir import registry
from qir.errors import ProfileError
from qir.ir.graph import Graph
from qir.ir.text import parse as parse_graph
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.profiles import Profile, dumps, parse, profile
from qir.profiles.preparation import PreparationStep, preparation_steps
from qir.rewrite.preparation import Preparation
from tests.overriding import override_profile

USUAL = ("quantize_constants", "move_pairs", "linear_layers")
GRAPH = """graph main {
  %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
  %d = dequantize(%x) : 2xf32
  %s = add(%d, %d) : 2xf32
  %y = quantize(%s) : 2x!quant.uniform<u8:f32, 1.0:3>
  output(y=%y)
}"""


def head(text: str, below: str = "native") -> Profile:
    return parse(f'name = "p"\nextends = "{below}"\n{text}\n', "p.toml", profile)


def test_a_head_names_steps_in_order_and_a_childs_list_takes_the_place_of_its_parents() -> None:
    mine = head('prepare = ["move_pairs", "quantize_constants"]')
    assert mine.prepare == ("move_pairs", "quantize_constants")
    assert parse(dumps(mine), "p.toml", profile) == mine
    child = parse('name = "c"\nextends = "p"\n', "c.toml", lambda _: mine)
    assert child.prepare == mine.prepare
    own = parse('name = "c"\nextends = "p"\nprepare = []\n', "c.toml", lambda _: mine)
    assert own.prepare == ()
    assert parse(dumps(own), "c.toml", lambda _: mine) == own
    assert profile("native").prepare == USUAL


@pytest.mark.parametrize(
    "name", ["os.system", "qir.backends.onnx.preparation:STEPS", "remove_noops", "./mine.py"]
)
def test_a_name_that_no_entry_point_brings_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match=rf"p\.toml, line 3: no preparation step '{name}'"):
        head(f'prepare = ["{name}"]')


def test_a_step_is_named_once_and_not_beside_old_keys() -> None:
    with pytest.raises(ProfileError, match="line 3: prepare names 'move_pairs' twice"):
        head('prepare = ["move_pairs", "move_pairs"]')
    with pytest.raises(ProfileError, match="line 4: gemms is an old word for steps of prepare"):
        head('prepare = ["move_pairs"]\ngemms = "joined"')


def test_the_steps_of_a_plugin_run_in_the_order_of_the_list() -> None:
    seen: list[str] = []

    def step(name: str) -> PreparationStep:
        def run(graph: Graph, prepared: Preparation) -> int:
            seen.append(name)
            prepared.ledger.add(Change.EXACT, prepared.name, graph.name, f"{name} was here")
            return 1

        return PreparationStep("Leaves a note.", run)

    with registry.offer("qir.prepare", "mine", {"one": step("one"), "two": step("two")}):
        mine = head('prepare = ["two", "one"]', "ort-1.32")
        with override_profile(mine):
            ledger = Ledger()
            count = Group(mine.name).run(parse_graph(GRAPH, {}), ledger)
    assert seen == ["two", "one"]
    assert count >= 2
    assert [e.reason for e in ledger][:2] == ["two was here", "one was here"]


LOADED = (
    *("fold_constants", "remove_no_ops", "join_activations", "join_pads", "join_scales"),
    *("quantize_constants", "merge_equal_quantizes", "join_gemms", "move_pairs", "merge_pairs"),
    *("quantize_parameters", "unsigned_values", "flattened_softmax", "round_data"),
)
"""The steps of onnxruntime 1.31."""


def test_a_head_of_old_keys_has_the_steps_that_its_words_stand_for() -> None:
    """The head of `ort-1.31` before `prepare`, on what it extends."""
    old = 'signed = "private_unsigned"\ndoubled = "merged"\nnbits = "rounded"\ngemms = "joined"'
    found = head(old, "ort-1.31.noopt")
    assert found.prepare == (*LOADED, "linear_layers")
    assert profile("ort-1.31").prepare == LOADED
    assert parse(dumps(found), "p.toml", profile) == found
    alone = parse(f'name = "p"\n{old}\n', "p.toml")
    assert alone.prepare == found.prepare


@pytest.mark.parametrize(
    ("below", "old", "gone", "new"),
    [
        ("ort-1.32", 'signed = "kept"', {"unsigned_values"}, set[str]()),
        ("ort-1.32", 'nbits = "rounded"', {"round_wide_data"}, {"round_data"}),
        (
            "ort-1.31",
            'doubled = "kept"',
            {"remove_no_ops", "merge_equal_quantizes", "merge_pairs", "flattened_softmax"},
            set[str](),
        ),
        ("torch-2.13.qnnpack", 'clips = "kept"', {"channels_last_moved_clips"}, {"channels_last"}),
        ("torch-2.13.fbgemm", 'memory = "kept"', {"channels_last"}, set[str]()),
        (
            "torch-2.13.fbgemm",
            'clips = "misplaced"',
            {"channels_last"},
            {"channels_last_moved_clips"},
        ),
    ],
)
def test_an_old_key_changes_what_the_profile_below_says(
    below: str, old: str, gone: set[str], new: set[str]
) -> None:
    before, found = set(profile(below).prepare), set(head(old, below).prepare)
    assert before - found == gone
    assert new <= found


def test_a_word_that_no_old_key_has_is_refused() -> None:
    with pytest.raises(ProfileError, match="line 3: memory is one of kept, channels_last"):
        head('memory = "last"')
    with pytest.raises(ProfileError, match="line 3: signed is a text, not 3"):
        head("signed = 3")


def test_the_manual_has_each_step_in_the_words_of_its_code() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/profiles.md").read_text(encoding="utf-8")
    for name, step in preparation_steps().items():
        assert f"| `{name}` | {step.description} |\n" in page
