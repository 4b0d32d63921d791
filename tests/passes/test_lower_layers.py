"""Recurrent layers as loops compute what the layers do, at any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.loops.lower_layers import LowerLayers
from qir.passes.loops.roll import Roll
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import sample_inputs
from tests.passes.test_roll import held, ops
from tests.passes.test_unroll import layer

LAYERS = [
    ("rnn", "bias", ""),
    ("rnn", "half h0", "clip = 0.5"),
    ("lstm", "bias", ""),
    ("lstm", "half h0 c0 peephole", ""),
    ("lstm", "half proj peephole", ""),
    ("gru", "bias h0", ""),
    ("gru", "bias", "linear_before_reset = true"),
]


def lowered(before: Graph) -> Graph:
    """The graph with loops; computes the same."""
    after = run_passes(before, [LowerLayers()], Ledger())
    assert ops(after).count("loop") == 1
    assert not {"rnn", "lstm", "gru"} & set(ops(after))
    given = sample_inputs(before, 5)
    was, now = run(before, given), run(after, given)
    for name, data in was.items():
        np.testing.assert_allclose(np.asarray(now[name]), np.asarray(data), 1e-6, 1e-6)
    return after


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "more", "attrs"), LAYERS)
def test_a_layer_becomes_a_loop(op: str, more: str, attrs: str, way: str, first: bool) -> None:
    said = ", ".join(filter(None, (attrs, f'direction = "{way}"')))
    before = layer(op, more, said, ways=1 + (way == "bidirectional"), first=first)
    lowered(before)


@pytest.mark.parametrize(("op", "more", "attrs"), [row for row in LAYERS if "clip" not in row[2]])
def test_a_layer_comes_back_from_its_loop(op: str, more: str, attrs: str) -> None:
    before = held(layer(op, more, attrs))
    back = run_passes(lowered(before), [Roll()], Ledger())
    assert ops(back).count(op) == 1
    assert "loop" not in ops(back)
    given = sample_inputs(before, 6)
    was, now = run(before, given), run(back, given)
    for name, data in was.items():
        np.testing.assert_allclose(np.asarray(now[name]), np.asarray(data), 1e-6, 1e-6)


def test_the_length_and_the_batch_may_be_open() -> None:
    text = """graph main {
      %x = input() : (T)x(N)x4xf32
      %w = input() : 1x20x4xf32
      %r = input() : 1x20x5xf32
      %y, %h, %c = lstm(%x, %w, %r) : (T)x1x(N)x5xf32, 1x(N)x5xf32, 1x(N)x5xf32
      output(y=%y, c=%c)
    }"""
    before = parse(text)
    after = run_passes(before, [LowerLayers()], Ledger())
    rng = np.random.default_rng(3)
    shapes = {"x": (7, 2, 4), "w": (1, 20, 4), "r": (1, 20, 5)}
    given = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    was, now = run(before, given), run(after, given)
    for name, data in was.items():
        np.testing.assert_allclose(np.asarray(now[name]), np.asarray(data), 1e-6, 1e-6)


def test_onnxruntime_runs_a_layer_that_projects_its_state(tmp_path: Path) -> None:
    before = held(layer("lstm", "half proj peephole"))
    path = tmp_path / "g.onnx"
    qir.save(before, path)
    session = onnxruntime.InferenceSession(str(path))
    given = sample_inputs(before, 5)
    found = session.run(None, {name: np.asarray(data) for name, data in given.items()})
    for ours, theirs in zip(run(before, given).values(), found, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, 1e-5, 1e-6)
