"""The search for the fewest ops to keep in float, against every choice that there is."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.calibration import Statistics
from qir.errors import DataError, InputError, UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.mixed_precision import SearchResult, search_recipe
from qir.recipe import Recipe
from qir.reference.cached_run import CachedRun

Floats = NDArray[np.float32]
SIZES = (8, 12, 12, 12, 6)
PLAIN = Recipe(granularity="tensor", corrections="none")


def network() -> Graph:
    """Four layers; one channel of the first and the third is far larger than the others."""
    rng = np.random.default_rng(5)
    arrays, lines, value = {}, ["  %x = input() : (N)x8xf32"], "x"
    for i, (inner, outer) in enumerate(pairwise(SIZES)):
        w = rng.standard_normal((inner, outer)).astype(np.float32)
        if i in (0, 2):
            w[:, 0] *= 60
        arrays[f"w{i}"] = w / np.sqrt(inner, dtype=np.float32)
        lines.append(f"  %w{i} = constant(@w{i}) : {inner}x{outer}xf32")
        lines.append(f"  %fc{i} = gemm(%{value}, %w{i}) : (N)x{outer}xf32")
        value = f"fc{i}"
        if i < 3:
            lines.append(f"  %act{i} = tanh(%fc{i}) : (N)x{outer}xf32")
            value = f"act{i}"
    text = "\n".join(["graph main {", *lines, f"  output(y=%{value})", "}"])
    return parse(text, arrays)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return network()


@pytest.fixture(scope="module")
def samples() -> Floats:
    return np.random.default_rng(6).standard_normal((96, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def statistics(graph: Graph, samples: Floats) -> Statistics:
    return pipeline.calibrate(graph, samples)


@pytest.fixture(scope="module")
def found(graph: Graph, samples: Floats, statistics: Statistics) -> SearchResult:
    return search_recipe(graph, statistics, samples, sqnr=29.0, recipe=PLAIN)


@pytest.fixture(scope="module")
def exact(graph: Graph, samples: Floats) -> NDArray[np.float64]:
    """The network in float64, in NumPy."""
    x = samples.astype(np.float64)
    for i in range(4):
        held = graph[f"w{i}"].constant
        assert held is not None
        x = x @ held.data.astype(np.float64)
        x = np.tanh(x) if i < 3 else x
    return np.asarray(x)


def by_onnxruntime(graph: Graph, samples: Floats, path: Path) -> NDArray[np.float64]:
    pipeline.save(graph, path, force=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": samples})[0], np.float64)


def decibels(exact: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    return 10 * float(np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


def test_no_fewer_ops_in_float_reach_the_goal_in_onnxruntime(
    graph: Graph,
    samples: Floats,
    statistics: Statistics,
    exact: NDArray[np.float64],
    found: SearchResult,
    tmp_path: Path,
) -> None:
    assert found.reached
    ops = [n.name for n in graph if n.op == "gemm"]
    assert found.candidates == len(ops)

    def reached(kept: tuple[str, ...]) -> float:
        made = pipeline.quantize(
            graph,
            statistics,
            rules=[f"name={name}: float" for name in kept],
            granularity="tensor",
            corrections="none",
        )
        return decibels(exact, by_onnxruntime(made, samples, tmp_path / "made.onnx"))

    assert reached(found.kept) >= 29.0
    assert found.value == pytest.approx(reached(found.kept), abs=0.5)
    best = {size: max(map(reached, combinations(ops, size))) for size in range(len(found.kept))}
    assert all(value < 29.0 for value in best.values()), (best, found.kept)
    assert {"fc0", "fc2"} & set(found.kept)


def test_a_recipe_reads_back_and_names_what_stays_in_float(
    found: SearchResult, tmp_path: Path
) -> None:
    path = tmp_path / "recipe.toml"
    found.recipe.save(path, found.facts())
    again = Recipe.load(path)
    assert again == found.recipe
    assert all(f'"name={name}: float"' in path.read_text() for name in found.kept)


def test_top1_of_labelled_samples_drops_by_no_more_than_was_allowed(
    graph: Graph,
    samples: Floats,
    statistics: Statistics,
    exact: NDArray[np.float64],
    tmp_path: Path,
) -> None:
    labels = exact.argmax(axis=1)
    found = search_recipe(graph, statistics, samples, drop=4.0, labels=labels, recipe=PLAIN)
    assert found.reached
    assert found.exact == 100.0
    made = pipeline.quantize(
        graph, statistics, rules=found.recipe.rules, granularity="tensor", corrections="none"
    )
    scores = by_onnxruntime(made, samples, tmp_path / "made.onnx")
    assert 100 * np.mean(scores.argmax(axis=1) == labels) >= 96.0
    with pytest.raises(DataError, match="95 labels, the data have 96 samples"):
        search_recipe(graph, statistics, samples, drop=4.0, labels=labels[:-1], recipe=PLAIN)


def test_a_goal_out_of_reach_gives_the_best_of_the_trials(
    graph: Graph, samples: Floats, statistics: Statistics, found: SearchResult
) -> None:
    best = search_recipe(graph, statistics, samples, sqnr=300.0, recipe=PLAIN)
    assert not best.reached
    assert 300 > best.value >= found.value
    assert 0 < len(best.kept) < best.candidates


def test_an_interrupted_search_goes_on_where_it_was(
    graph: Graph,
    samples: Floats,
    statistics: Statistics,
    found: SearchResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, runs = tmp_path / "trials", [0]
    plain = CachedRun.run

    def counted(self: CachedRun, graph: Graph) -> dict[str, NDArray[np.generic]]:
        runs[0] += 1
        if runs[0] == 4:
            raise KeyboardInterrupt
        return plain(self, graph)

    monkeypatch.setattr(CachedRun, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        search_recipe(graph, statistics, samples, sqnr=29.0, recipe=PLAIN, cache=cache)
    held = json.loads(cache.read_text())["numbers"]
    assert sum(name.startswith("noise ") for name in held) == 3
    assert search_recipe(graph, statistics, samples, sqnr=29.0, recipe=PLAIN, cache=cache) == found
    assert runs[0] == 4 + found.candidates - 3
    cache.write_text("{")  # damaged: it starts anew
    assert search_recipe(graph, statistics, samples, sqnr=29.0, recipe=PLAIN, cache=cache) == found
    assert runs[0] == 4 + 2 * found.candidates - 3


BOTH = """
name = "both"
extends = "onnxruntime"
[[op]]
op = "conv2d"
constant = ["w"]
[op.slots]
x = ["u8 affine tensor", "u16 affine tensor"]
w = "i8<-127:127> symmetric tensor"
result = ["u8 affine tensor", "u16 affine tensor"]
[[op]]
op = "tanh"
[op.slots]
x = ["u8 affine tensor", "u16 affine tensor"]
result = ["u8 affine tensor", "u16 affine tensor"]
"""
"""A target whose convolutions take activations of 8 or 16 bits."""


@pytest.mark.parametrize("own", [True, False], ids=["file", "installed"])
def test_ops_get_16_bits_before_they_stay_in_float(
    own: bool, samples: Floats, tmp_path: Path
) -> None:
    """Weights lie on their steps here, so that only activations make noise."""
    rng = np.random.default_rng(8)
    steps = {f"w{i}": np.round(rng.uniform(-127, 127, (8, 8, 1, 1))) for i in "01"}
    for held in steps.values():
        held[0, 0] = 127
    arrays = {name: (held / 128).astype(np.float32) for name, held in steps.items()}
    text = """graph main {
      %x = input() : (N)x8x1x1xf32
      %w0 = constant(@w0) : 8x8x1x1xf32
      %a = conv2d(%x, %w0) : (N)x8x1x1xf32
      %t = tanh(%a) : (N)x8x1x1xf32
      %w1 = constant(@w1) : 8x8x1x1xf32
      %b = conv2d(%t, %w1) : (N)x8x1x1xf32
      output(y=%b)
    }"""
    graph = parse(text, arrays)
    path = tmp_path / "both.toml"
    path.write_text(BOTH)
    target = str(path) if own else "onnxruntime-mixed"
    data = samples[:, :, None, None]
    statistics = pipeline.calibrate(graph, data)
    first, second = (held[..., 0, 0].T.astype(np.float64) for held in arrays.values())
    exact = (np.tanh(samples.astype(np.float64) @ first) @ second)[:, :, None, None]

    plain = replace(PLAIN, target=target)
    found = search_recipe(graph, statistics, data, sqnr=60.0, recipe=plain)
    assert found.reached
    assert found.kept == ()
    assert found.wide
    assert all("u16 affine tensor" in rule for rule in found.recipe.rules)

    def reached(rules: tuple[str, ...]) -> float:
        made = pipeline.quantize(
            graph,
            statistics,
            target=target,
            rules=rules,
            granularity="tensor",
            corrections="none",
        )
        return decibels(exact, by_onnxruntime(made, data, tmp_path / "made.onnx"))

    assert reached(()) < 60.0 <= reached(found.recipe.rules)
    for name in found.wide:
        rules = tuple(r for r in found.recipe.rules if not r.startswith(f"name={name}"))
        assert reached(rules) < 60.0, f"{name} needs no 16 bits"


@pytest.mark.parametrize("op", ["gemm", "matmul"])
def test_onnxruntime_keeps_16_bits_of_what_products_read(op: str, tmp_path: Path) -> None:
    """Since 1.32 its optimizer rounds such data to 8 bits, unless something is in between."""
    random = np.random.default_rng(20)
    w = random.standard_normal((64, 16)).astype(np.float32)
    text = f"""graph main {{
      %x = input() : (N)x64xf32
      %w = constant(@w) : 64x16xf32
      %y = {op}(%x, %w) : (N)x16xf32
      output(y=%y)
    }}"""
    graph = parse(text, {"w": w})
    data = random.standard_normal((32, 64)).astype(np.float32)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, data), target="onnxruntime-w8a16")
    (stored,) = (n.operands["x"].constant for n in made if n.name == "w.dq")
    assert stored is not None
    quant = stored.type.quant
    assert quant is not None
    weights = stored.data.astype(np.float64) * quant.scales()
    bias = next((n.operands["x"].constant for n in made if n.name == "y.bias.dq"), None)
    shift = np.zeros(16)
    if bias is not None and bias.type.quant is not None:
        shift = bias.data.astype(np.float64) * bias.type.quant.scales()
    (steps,) = (n.result.type.quant for n in made if n.name == "y.q")
    (read,) = (n.result.type.quant for n in made if n.name == "x.q")
    assert steps is not None
    assert read is not None
    step = np.asarray(read.scales(), np.float64)
    rounded = np.round(data / step) * step
    ends = (np.array([0.0, 65535.0]) - float(steps.zeros())) * float(steps.scales())
    wanted = np.clip(rounded @ weights + shift, *ends)
    found = by_onnxruntime(made, data, tmp_path / "made.onnx")
    assert np.abs(found - wanted).max() <= 1.01 * steps.scales()
    told = np.asarray(pipeline.compile(made, target="cpu")(x=data)["y"])
    assert np.abs(found - told).max() <= steps.scales() * 1.01


def test_an_installed_target_plans_8_bits_where_no_rule_asks_for_16(graph: Graph) -> None:
    mixed, plain = (
        pipeline.plan(graph, target=name) for name in ("onnxruntime-mixed", "onnxruntime")
    )
    assert [d.schemes for d in mixed.decisions] == [d.schemes for d in plain.decisions]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.full(96, -1), "all are below 0"),
        (np.full(96, 6), "the label of sample 0 is 6, and the output has 6 classes"),
        (np.full(96, 0.5), "fit no output for top1: .*; give each sample a class"),
    ],
)
def test_labels_that_are_no_classes_are_refused(
    labels: NDArray[np.generic],
    said: str,
    graph: Graph,
    samples: Floats,
    statistics: Statistics,
) -> None:
    with pytest.raises(DataError, match=said):
        search_recipe(graph, statistics, samples, drop=1.0, labels=labels, recipe=PLAIN)


def test_samples_without_a_label_count_for_nothing(
    graph: Graph, samples: Floats, statistics: Statistics, exact: NDArray[np.float64]
) -> None:
    labels = exact.argmax(axis=1)
    labels[::2] = -1
    found = search_recipe(graph, statistics, samples, drop=0.0, labels=labels, recipe=PLAIN)
    assert found.exact == 100.0


def test_a_goal_that_is_reached_at_once_keeps_nothing_in_float(
    graph: Graph, samples: Floats, statistics: Statistics
) -> None:
    made = search_recipe(graph, statistics, samples, sqnr=1.0, recipe=PLAIN)
    assert (made.kept, made.recipe) == ((), PLAIN)


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ({}, "give one goal"),
        ({"sqnr": 20.0, "drop": 1.0}, "give one goal"),
        ({"drop": 1.0}, "labels go with a drop"),
        ({"drop": -1.0, "labels": np.zeros(96, np.int64)}, "0 to 100 points"),
        ({"sqnr": 20.0, "labels": np.zeros(96, np.int64)}, "labels go with a drop"),
    ],
)
def test_a_goal_without_what_it_needs_is_refused(
    graph: Graph, samples: Floats, statistics: Statistics, goal: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        search_recipe(graph, statistics, samples, **goal)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format = 2\n", "format = 1"),
        ("format = 1\ncolour = 'red'\n", "no key 'colour'"),
        ("format = 1\nrules = 'x'\n", "rules is a list"),
        ("format = 1\nrange = 3\n", "range is a text"),
        ("format = \n", "recipe:"),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe.parse(text)
