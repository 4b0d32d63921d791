"""Steps of which the first one was folded are rolled up, where it was folded over their start."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.loops.roll import Roll
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.test_roll import ops, rolled

Rows = NDArray[np.generic]


class Cells(nn.Module):
    """A loop over cells, whose every state and last ones are given."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        state, out = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return (torch.stack(out, 1), *(state if isinstance(state, tuple) else (state,)))


CELLS = {
    "lstm": nn.LSTMCell(4, 5),
    "gru": nn.GRUCell(4, 5),
    "rnn": nn.RNNCell(4, 5, bias=False, nonlinearity="relu"),
}


@pytest.mark.slow
@pytest.mark.parametrize("op", CELLS)
def test_a_loop_over_a_cell_is_a_layer_as_torchs_own_exporter_writes_it(
    op: str, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    module, x = Cells(CELLS[op]).eval(), torch.rand(2, 3, 4)
    path = tmp_path / "m.onnx"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, (x,), str(path), dynamo=True, verbose=False)
    finally:
        logging.disable(logging.NOTSET)
    read = qir.load(path)
    with torch.no_grad():
        wanted = [value.numpy() for value in module(x)]
    for before in ([FoldShapes()], [FoldShapes(), FoldConstants()]):
        made = run_passes(read, [*before, Roll()], Ledger())
        assert set(ops(made)) <= {op, "squeeze"}
        found = run(made, {made.inputs[0].name: x.numpy()}).values()
        for got, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got, float), expected, 1e-5, 1e-6)


STEPS = """array @r : 2x2xf32
array @b : 2xf32
graph main {
  %x = input() : 1x3x2xf32
  %r = constant(@r) : 2x2xf32
  %b = constant(@b) : 2xf32
  %k0 = constant([FIRST]) : 1x2xf32
  %z = constant([START]) : 1x2xf32
  %i0 = constant(0) : i64
  %i1 = constant(1) : i64
  %i2 = constant(2) : i64
  %s0 = gather(%x, %i0) {axis = 1} : 1x2xf32
  %s1 = gather(%x, %i1) {axis = 1} : 1x2xf32
  %s2 = gather(%x, %i2) {axis = 1} : 1x2xf32
  %a0 = add(%s0, %k0) : 1x2xf32
  %t0 = tanh(%a0) : 1x2xf32
  %h0 = add(%t0, %z) : 1x2xf32
  %k1 = linear(%h0, %r, bias=%b) : 1x2xf32
  %a1 = add(%s1, %k1) : 1x2xf32
  %t1 = tanh(%a1) : 1x2xf32
  %h1 = add(%t1, %h0) : 1x2xf32
  %k2 = linear(%h1, %r, bias=%b) : 1x2xf32
  %a2 = add(%s2, %k2) : 1x2xf32
  %t2 = tanh(%a2) : 1x2xf32
  %h2 = add(%t2, %h1) : 1x2xf32
  output(h=%h2)
}"""
R = np.array([[0.5, -0.25], [2.0, 1.0]], np.float32)
B = np.array([0.125, -3.0], np.float32)


def steps(first: Rows, start: Rows) -> Graph:
    text = STEPS.replace("FIRST", ", ".join(map(str, first.tolist())))
    return parse(text.replace("START", ", ".join(map(str, start.tolist()))), {"r": R, "b": B})


@pytest.mark.parametrize("start", [[0.0, 0.0], [1.0, -0.5]])
def test_a_first_step_is_rolled_up_where_it_was_folded_over_the_start(start: list[float]) -> None:
    begin = np.array(start, np.float32)
    made = rolled(steps(begin @ R.T + B, begin))
    assert ops(made) == ["scan"]
    x = np.random.default_rng(5).normal(size=(1, 3, 2)).astype(np.float32)
    h = begin.astype(np.float64)
    for entry in x[0].astype(np.float64):
        h = np.tanh(entry + h @ R.T + B) + h
    np.testing.assert_allclose(run(made, {"x": x})["h"][0], h, 1e-5)


def test_a_first_step_that_was_folded_over_something_else_stays() -> None:
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    for first, start in ((B + 1, zero), (B, one), (one @ R.T + B, zero), (B * 0, zero)):
        assert "scan" not in ops(rolled(steps(first, start)))


def test_a_state_that_begins_with_two_values_is_none() -> None:
    text = """graph main {
      %x = input() : 3x2xf32
      %u = input() : 2xf32
      %v = input() : 2xf32
      %i0 = constant(0) : i64
      %i1 = constant(1) : i64
      %i2 = constant(2) : i64
      %s0 = gather(%x, %i0) : 2xf32
      %s1 = gather(%x, %i1) : 2xf32
      %s2 = gather(%x, %i2) : 2xf32
      %a0 = mul(%u, %s0) : 2xf32
      %h0 = sub(%a0, %v) : 2xf32
      %a1 = mul(%h0, %s1) : 2xf32
      %h1 = sub(%a1, %h0) : 2xf32
      %a2 = mul(%h1, %s2) : 2xf32
      %h2 = sub(%a2, %h1) : 2xf32
      output(h=%h2)
    }"""
    assert "scan" not in ops(rolled(parse(text)))
    assert ops(rolled(parse(text.replace("sub(%a0, %v)", "sub(%a0, %u)")))) == ["scan"]
