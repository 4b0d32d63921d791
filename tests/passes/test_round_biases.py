"""Float biases become whole steps of the sums, where that moves no result by more than one step."""

import numpy as np
import pytest

import qir
from qir.ledger import Change
from qir.passes.forms.round_biases import RoundBiases

SOURCE = """\
graph main as {profile} {{
  %x = input() : 1x4x3x3x!quant.uniform<u8:f32, 0.5>
  %w = constant(@w) : 6x4x2x2x!quant.uniform<i8:f32:0, {{0.25, 0.5, 0.125, 0.25, 1.0, 2.0}}>
  %b = constant(@b) : 6xf32
  %y = conv2d(%x, %w, bias=%b) |> relu : 1x6x2x2x!quant.uniform<u8:f32, {step}>
  output(y=%y)
}}
"""
UNIT = np.array([0.125, 0.25, 0.0625, 0.125, 0.5, 1.0])
RNG = np.random.default_rng(3)
W = RNG.integers(-127, 128, (6, 4, 2, 2)).astype(np.int8)


def network(b: np.ndarray, step: float = 60.0, profile: str = "tf-2.21.onednn") -> qir.Graph:
    return qir.parse(SOURCE.format(profile=profile, step=step), {"w": W, "b": b})


def bias(graph: qir.Graph) -> np.ndarray:
    node = graph.values["y"].node
    (slot,) = (s for s in node.operands if s.endswith("bias"))
    held = node.operands[slot].constant
    assert held is not None
    return held.data


def test_a_bias_becomes_the_nearest_number_of_steps_and_moves_what_the_ledger_says() -> None:
    b = (RNG.normal(size=6) * 100).astype(np.float32)
    graph, ledger = network(b), qir.Ledger()
    x = {"x": RNG.integers(0, 256, (1, 4, 3, 3)).astype(np.uint8)}
    before = qir.run(graph, x)["y"]
    assert RoundBiases().run(graph, ledger) == 1
    assert bias(graph).dtype == np.int32
    assert (bias(graph) == np.rint(b.astype(np.float64) / UNIT)).all()
    (entry,) = ledger
    moved = np.abs(bias(graph) * UNIT - b).max() / 60
    assert (entry.change, entry.codes) == (Change.NUDGED, 1.0)
    assert f"at most {moved:.2g} steps" in entry.reason
    after = qir.run(graph, x)["y"]
    assert np.abs(after.astype(int) - before.astype(int)).max() <= 1


def test_a_bias_on_the_grid_moves_nothing() -> None:
    graph, ledger = network((np.arange(6) * UNIT).astype(np.float32)), qir.Ledger()
    assert RoundBiases().run(graph, ledger) == 1
    assert (bias(graph) == np.arange(6)).all()
    assert [e.change for e in ledger] == [Change.REGROUPED]


@pytest.mark.parametrize(
    ("b", "step", "said"), [(0.45, 0.1, "by 4.5 steps"), (2.0**33, 60.0, "it stays float")]
)
def test_a_bias_that_moves_results_far_stays_float(b: float, step: float, said: str) -> None:
    graph, ledger = network(np.full(6, b, np.float32), step), qir.Ledger()
    assert RoundBiases().run(graph, ledger) == 0
    assert bias(graph).dtype == np.float32
    (entry,) = ledger
    assert said in entry.reason


def test_kernels_that_add_biases_to_sums_are_left_alone() -> None:
    graph = network(np.ones(6, np.float32), profile="native")
    assert RoundBiases().run(graph, qir.Ledger()) == 0


def test_weights_of_a_dead_channel_make_room_for_its_bias() -> None:
    b = np.array([3.0, 2.0**33, 5.0, -(2.0**40), 1.0, 7.0], np.float32)
    graph = network(b)
    weights = W.copy()
    weights[[1, 3]] = 0
    graph = qir.parse(SOURCE.format(profile="tf-2.21.onednn", step=60.0), {"w": weights, "b": b})
    x = {"x": RNG.integers(0, 256, (1, 4, 3, 3)).astype(np.uint8)}
    before = qir.run(graph, x)["y"]
    assert RoundBiases().run(graph, qir.Ledger()) == 1
    assert (np.abs(bias(graph)[[1, 3]]) == 2**30).all()
    after = qir.run(graph, x)["y"]
    assert np.abs(after.astype(int) - before.astype(int)).max() <= 1
