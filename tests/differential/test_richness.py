"""An exact claim of what rounds rests on results that are hard: ties, both ends, odd zero points,
scales that are no powers of two. Those that do not are named in poor.json, and on the page."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.text import parse
from qir.numerics import profile, profile_names
from qir.reference.interpreter import run
from tests.counting import Recorder, counts, listen, riches
from tests.differential.poor import claims, known, lacks, left, limits, poor, written
from tests.richness import lacking, never_below


def test_each_exact_claim_rests_on_hard_results_or_is_named_as_poor() -> None:
    found, named = poor(counts(), riches()), known()
    fresh = [
        f"{name}: {key} lacks {want}"
        for name, rules in found.items()
        for key, wants in rules.items()
        for want in wants
        if want not in named.get(name, {}).get(key, [])
    ]
    assert not fresh, "widen the inputs of the tests that compare it:\n" + "\n".join(fresh)


def test_what_is_named_as_poor_is_a_claim() -> None:
    named = known()
    assert set(named) <= set(profile_names())
    for name, rules in named.items():
        assert rules.keys() <= {key for key, *_ in claims(profile(name))}, name
    assert written(left(named, named)) == written(named)


GRAPH = """graph g {{
%x = input() : {n}x!quant.uniform<u8:f32, {sx}:{zx}>
%z = input() : {n}x!quant.uniform<u8:f32, {sx}:{zx}>
%y = add(%x, %z) : {n}x!quant.uniform<u8:f32, {sy}:{zy}>
output(y=%y)
}}"""


@pytest.mark.parametrize(
    ("sx", "sy", "zx", "zy", "wanted"),
    [
        # sums 0, 1 and 510 of steps of a half: 0, half way, and beyond 255 - 3
        (0.25, 0.5, 0, 3, [3, 1, 0, 1, 3, 3, 0, 0]),
        (0.25, 0.75, 0, 0, [3, 0, 0, 0, 0, 0, 3, 0]),
        (0.5, 0.5, 4, 0, [3, 0, 2, 1, 0, 3, 0, 0]),
    ],
)
def test_ties_and_ends_are_counted_from_reals(
    sx: float, sy: float, zx: int, zy: int, wanted: list[int]
) -> None:
    recorder = Recorder()
    text = GRAPH.format(n=3, sx=sx, sy=sy, zx=zx, zy=zy)
    x, z = np.array([0, 1, 255], np.uint8), np.array([0, 0, 255], np.uint8)
    with listen(recorder):
        recorder.begin("t")
        made = run(parse(text, {}), {"x": x, "z": z}, profile="native")["y"]
        recorder.note(made, made)
        recorder.note(made, made)  # counted once
    assert [one for rules in recorder.rich.values() for t in rules.values() for one in t.values()]
    for rules in recorder.rich.values():
        for tests in rules.values():
            assert tests == {"t": wanted}


def test_what_gives_nothing_below_zero_needs_no_low_end() -> None:
    assert all(map(never_below, ("relu", "squared_difference", "exp")))
    assert not any(map(never_below, ("add", "leaky_relu", "clip", "concat", "conv2d", "mul")))
    assert lacking([100, 5, 0, 5, 1, 100, 1, 0], ["relu"]) == []
    assert lacking([100, 5, 0, 5, 1, 100, 1, 0], ["conv2d", "relu"]) == ["low"]


def test_what_is_lacking_is_told() -> None:
    rich = [100, 5, 5, 5, 1, 100, 1, 0]
    assert lacking(rich, ["add"]) == []
    assert lacking([100, 4, 4, 5, 0, 100, 0, 0], ["add"]) == ["ties", "low", "odd zeros", "scales"]
    assert lacking([100, 0, 0, 0, 1, 100, 1, 0], ["sigmoid"]) == []
    assert lacking([100, 5, 0, 0, 0, 0, 0, 100], ["avg_pool2d"]) == []
    assert lacks(["add"], {}, True) == ["anything that rounds"]
    assert lacks(["reshape"], {}, True) == []
    assert lacks(["concat"], {}, True, limits(["one_map"], ["concat"])) == []
    assert not limits(["same_map"], ["avg_pool2d"])
    assert lacks(["add"], {"a": rich, "b": rich}, True) == []
    easy, hard = [1000, 50, 0, 0, 1, 100, 1, 0], [1000, 50, 0, 100, 0, 100, 0, 0]
    assert lacks(["add"], {"a": easy, "b": hard}, True) == ["low"]
    assert lacks(["concat"], {"a": easy, "b": hard}, True, frozenset(["low"])) == []
    assert lacks(["add"], {"a": [10000, 0, 0, 0, 1, 100, 1, 0], "b": rich}, True)[0] == "ties"
