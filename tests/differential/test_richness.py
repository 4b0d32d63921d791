"""An exact claim of what rounds rests on results that are hard: ties, both ends, odd zero points,
scales that are no powers of two. Those that do not are named in poor.json, and on the page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir.text import parse
from qir.profiles import profile, profile_names
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
def test_ties_and_ends_are_counted_from_floats(
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


DYNAMIC = """graph g {{
%x = input() : 4xf32
%a = input() : 4xf32
%s, %z = choose_qparams(%{of}) {{rule = "onnx.dynamic", storage = u8}} : f32, u8
%y = quantize(%x, scale = %s, zero = %z) : 4x!quant.uniform<u8:f32, ?:?>
output(y=%y)
}}"""


@pytest.mark.parametrize(
    ("of", "wanted"), [("x", [4, 0, 0, 0, 0, 4, 4, 4]), ("a", [4, 0, 1, 1, 0, 0, 4, 0])]
)
def test_data_never_leaves_a_range_of_its_own(of: str, wanted: list[int]) -> None:
    x, a = np.array([-1, 0, 0.75, 3], np.float32), np.array([0, 0, 0, 1], np.float32)
    assert counted(DYNAMIC.format(of=of), {"x": x, "a": a})["quantize, dequantize"] == wanted


SCALED = """graph g {{
%x = input() : 3x!quant.uniform<u8:f32, 0.25:3>
%c = input() : f32
%y = mul(%x, %c) : 3x!quant.uniform<u8:f32, {scale}:{zero}>
output(y=%y)
}}"""


@pytest.mark.parametrize(("number", "renamed"), [(3.0, True), (-3.0, True), (2.5, False)])
def test_integers_by_a_number_that_their_scale_is_multiplied_with_round_nothing(
    number: float, renamed: bool
) -> None:
    text = SCALED.format(scale=0.75, zero=252 if number < 0 else 3)
    given: dict[str, NDArray[np.generic]]
    given = {"x": np.array([0, 4, 255], np.uint8), "c": np.array(number, np.float32)}
    found = list(counted(text, given, "torch-2.13.fbgemm").values())
    assert found == ([] if renamed else [[3, 1, 0, 0, 3, 3, 3, 0]] * 2)


def counted(
    text: str, given: Mapping[str, NDArray[np.generic]], name: str = "native"
) -> dict[str, list[int]]:
    """What is counted of a program's result, rule by rule."""
    recorder = Recorder()
    with listen(recorder):
        recorder.begin("t")
        made = run(parse(text, {}), given, profile=name)["y"]
        recorder.note(made, made)
    found = recorder.rich.values()
    return {rule: tests["t"] for rules in found for rule, tests in rules.items()}


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
