"""Kernels that add a tensor become two, whose results move by no more than the ledger says."""

import numpy as np
import pytest

import qir
from qir.ledger import Change
from qir.passes.forms.split_sums import SplitSums

SOURCE = """\
graph main as tf-2.21.onednn {{
  %x = input() : 4x8x5x5x!quant.uniform<{x}>
  %w = constant(@w) : 6x8x3x3x!quant.uniform<i8:f32:0, {{0.01, 0.02, 0.005, 0.01, 0.015, 0.02}}>
  %b = constant(@b) : 6xf32
  %s = input() : 4x6x3x3x!quant.uniform<u8:f32, {summand}>
  %y = conv2d(%x, %w, bias=%b) |> add(., %s) |> {tail} : 4x6x3x3x!quant.uniform<u8:f32, {step}>
  output(y=%y)
}}
"""
Arrays = dict[str, np.ndarray]
SCALES = np.array([0.01, 0.02, 0.005, 0.01, 0.015, 0.02])


def network(
    rng: np.random.Generator,
    summand: float,
    step: float,
    *,
    tail: str = "relu",
    x: str = "u8:f32, 0.02",
) -> qir.Graph:
    arrays: Arrays = {
        "w": rng.integers(-127, 128, (6, 8, 3, 3)).astype(np.int8),
        "b": rng.normal(0, 2, 6).astype(np.float32),
    }
    return qir.parse(SOURCE.format(x=x, summand=summand, step=step, tail=tail), arrays)


def inputs(rng: np.random.Generator, *, signed: bool = False) -> Arrays:
    low, high, kind = (-128, 128, np.int8) if signed else (0, 256, np.uint8)
    return {
        "x": rng.integers(low, high, (4, 8, 5, 5)).astype(kind),
        "s": rng.integers(0, 256, (4, 6, 3, 3)).astype(np.uint8),
    }


def held(graph: qir.Graph, name: str) -> np.ndarray:
    constant = graph[name].constant
    assert constant is not None
    return constant.data.astype(np.float64)


def rounded_once(graph: qir.Graph, given: Arrays, x: float, s: float, y: float) -> np.ndarray:
    """What one kernel gives, in float64."""
    w, b = held(graph, "w"), held(graph, "b")
    w = w * SCALES[:, None, None, None]
    windows = np.lib.stride_tricks.sliding_window_view(given["x"] * x, (3, 3), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    return np.asarray(np.clip(np.rint((sums + given["s"] * s) / y), 0, 255))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("signed", [False, True])
def test_results_move_by_at_most_the_steps_that_the_ledger_says(seed: int, signed: bool) -> None:
    rng = np.random.default_rng(seed)
    step, x = float(rng.uniform(0.1, 0.4)), "i8:f32, 0.02" if signed else "u8:f32, 0.02"
    summand = step * float(rng.uniform(0.05, 3))
    graph, ledger = network(rng, summand, step, x=x), qir.Ledger()
    given = inputs(rng, signed=signed)
    wanted = rounded_once(graph, given, 0.02, summand, step)
    assert SplitSums(steps=4).run(graph, ledger) == 1
    (entry,) = ledger
    assert entry.change is Change.NUDGED
    assert f"at most {entry.codes:.0f} step" in entry.reason
    assert [n.op for n in graph if n.op in ("conv2d", "add", "fused")] == ["conv2d", "add"]
    found = qir.run(graph, given)["y"].astype(int)
    assert 0 < np.abs(found - wanted).max() <= entry.codes
    assert entry.codes == (1 if summand < 0.98 * step else 2)


def test_sums_stay_where_their_results_would_move_by_more_steps() -> None:
    rng = np.random.default_rng(7)
    graph, ledger = network(rng, 0.6, 0.2), qir.Ledger()
    before = str(graph)
    assert SplitSums().run(graph, ledger) == 0
    assert str(graph) == before
    (entry,) = ledger
    assert entry.change is Change.EXACT
    assert "up to 3 steps; split-sums{steps=3} splits it" in entry.reason


def test_the_range_of_small_sums_is_their_own() -> None:
    rng = np.random.default_rng(8)
    graph = network(rng, 0.1, 40.0)
    SplitSums().run(graph, qir.Ledger())
    between = graph["y.sums"].type.quant
    assert between is not None
    w = held(graph, "w") * SCALES[:, None, None, None]
    most = np.abs(w).sum((1, 2, 3)).max() * 255 * 0.02 + 20
    assert float(between.scales()) * 255 < 2 * most


@pytest.mark.parametrize(
    ("tail", "split"), [("relu", 1), ("clip{min=0.0, max=60.0}", 1), ("clip{min=0.0, max=6.0}", 0)]
)
def test_an_activation_is_left_to_the_ends_of_the_result(tail: str, split: int) -> None:
    graph = network(np.random.default_rng(9), 0.1, 0.2, tail=tail)
    assert SplitSums().run(graph, qir.Ledger()) == split
