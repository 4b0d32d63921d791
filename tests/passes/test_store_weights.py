"""Weights and biases that kernels quantize themselves are stored as these integers."""

import numpy as np
import pytest

import qir
from qir.passes.forms.store_weights import StoreWeights

SOURCE = """\
graph main as {profile} {{
  %x = input() : 1x4x3x3x!quant.uniform<u8:f32, 0.5, from 0.0..127.75 / 255.5>
  %w = constant(@w) : 6x4x2x2xf32
  %b = constant(@b) : 6xf32
  %y = conv2d(%x, %w, bias=%b) |> relu : 1x6x2x2x!quant.uniform<u8:f32, 4.0>
  output(y=%y)
}}
"""


def network(profile: str, w: np.ndarray, b: np.ndarray) -> qir.Graph:
    return qir.parse(SOURCE.format(profile=profile), {"w": w, "b": b})


@pytest.mark.parametrize("seed", range(4))
def test_weights_become_what_their_kernel_makes_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(6, 4, 2, 2)).astype(np.float32)
    b = rng.normal(size=6).astype(np.float32) * 50
    graph = network("mxnet-1.9", w, b)
    x = {"x": rng.integers(0, 256, (1, 4, 3, 3)).astype(np.uint8)}
    before = qir.run(graph, x)["y"]
    assert StoreWeights().run(graph, qir.Ledger()) == 1
    held = {slot: value.constant for slot, value in graph.values["y"].node.operands.items()}
    weights, bias = (next(a for s, a in held.items() if s.endswith(n)) for n in ("w", "bias"))
    assert weights is not None
    assert bias is not None
    # MXNet 1.9: 127.5 over the largest of a channel, and the bias times both gains
    reach = np.abs(w).max(axis=(1, 2, 3))
    gain = np.float32(127.5) / reach
    wanted = np.clip(np.rint(w * gain[:, None, None, None]), -128, 127)
    assert (weights.data == wanted.astype(np.int8)).all()
    assert (bias.data == np.rint(b * (np.float32(2.0) * gain))).all()
    assert (qir.run(graph, x)["y"] == before).all()


def test_kernels_that_are_given_integers_keep_float_weights() -> None:
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(6, 4, 2, 2)).astype(np.float32), np.zeros(6, np.float32)
    graph = network("native", w, b)
    assert StoreWeights().run(graph, qir.Ledger()) == 0


def test_weights_that_make_room_for_a_bias_stay_float() -> None:
    w, b = np.ones((6, 4, 2, 2), np.float32), np.full(6, 1e8, np.float32)
    graph = network("mxnet-1.9", w, b)
    assert StoreWeights().run(graph, qir.Ledger()) == 0


LINEAR = """\
graph main as mxnet-1.9 {
  %x = input() : 3x4x!quant.uniform<u8:f32, 0.5, from 0.0..127.5 / 255>
  %w = constant(@w) : 6x4x!quant.uniform<i8:f32, 0.01, from -1.275..1.275 / 127.5>
  %b = constant(@b) : 6x!quant.uniform<i8:f32, 0.02, from -2.55..2.55 / 127.5>
  %y = linear(%x, %w, bias=%b) : 3x6xf32
  output(y=%y)
}
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_bias_with_a_scale_becomes_what_its_kernel_adds_to_the_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = {n: rng.integers(-128, 128, s).astype(np.int8) for n, s in (("w", (6, 4)), ("b", 6))}
    graph, x = qir.parse(LINEAR, held), {"x": rng.integers(0, 256, (3, 4)).astype(np.uint8)}
    before = qir.run(graph, x)["y"]
    assert StoreWeights().run(graph, qir.Ledger()) == 0
    ledger = qir.Ledger()
    assert StoreWeights(rescaled=True).run(graph, ledger) == 1
    assert [entry.change for entry in ledger] == [qir.ledger.Change.EXACT]
    bias = graph.values["y"].node.operands["bias"]
    assert bias.constant is not None
    # MXNet 1.9: by the gains of data and weights over its own, halves away from 0
    gains = [np.float32(level) / np.float32(end) for level, end in ((255, 127.5), (127.5, 1.275))]
    scaled = held["b"].astype(np.float32) * (
        gains[0] * gains[1] / (np.float32(127.5) / np.float32(2.55))
    )
    wanted = np.trunc(scaled + np.where(scaled < 0, np.float32(-0.5), np.float32(0.5)))
    assert np.array_equal(bias.constant.data, wanted.astype(np.int32))
    assert np.array_equal(qir.run(graph, x)["y"], before)
