"""Steps that are alike become a scan and a layer; what is not quite alike stays as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.loops.roll import Roll
from qir.passes.loops.unroll import Unroll
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import sample_inputs
from tests.ir.test_bodies import LOOP, SCAN
from tests.passes.keeping import keeps
from tests.passes.test_unroll import layer

STRUCTURE = ("input", "constant", "output")


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in STRUCTURE]


def held(graph: Graph) -> Graph:
    """The same with its weights as constants."""
    rng = np.random.default_rng(7)
    for value in graph.inputs:
        if value.name in ("w", "r", "bias", "half", "peephole", "proj"):
            shape = [size for size in value.type.shape if isinstance(size, int)]
            data = rng.normal(0, 0.5, shape).astype(np.float32)
            constant = graph.constant(data, name=f"{value.name}.held")
            graph.replace(value, constant)
            graph.remove(value.node)
    return graph


def rolled(before: Graph, tolerance: float = 0.0, **options: bool) -> Graph:
    """The graph rolled up: computes the same, and a second pass finds nothing more."""
    after = run_passes(before, [Roll(**options)], Ledger())
    given = sample_inputs(before, 2)
    was, now = run(before, given), run(after, given)
    for name, data in was.items():
        found = np.asarray(now[name], float)
        np.testing.assert_allclose(found, np.asarray(data, float), tolerance, tolerance)
    assert run_passes(after, [Roll(**options)], Ledger()).version == after.copy().version
    return after


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("op", "more", "attrs"),
    [
        ("rnn", "bias", ""),
        ("rnn", "", 'activations = ("relu",)'),
        ("lstm", "bias", ""),
        ("lstm", "half h0 c0", ""),
        ("gru", "bias h0", ""),
        ("lstm", "half proj peephole", ""),
        ("lstm", "bias", 'activations = ("sigmoid", "relu", "tanh")'),
        ("gru", "bias", "linear_before_reset = true"),
        ("gru", "half", 'activations = ("sigmoid", "relu")'),
    ],
)
def test_a_layer_comes_back_from_its_steps(
    op: str, more: str, attrs: str, ways: int, first: bool
) -> None:
    if ways == 2:
        twice = attrs.replace("(", "(" + attrs.partition("(")[2].rstrip("),") + ", ")
        attrs = ", ".join(filter(None, (twice, 'direction = "bidirectional"')))
    before = held(layer(op, more, attrs, ways=ways, first=first))
    steps = run_passes(before, [Unroll()], Ledger())
    scans = rolled(steps, layers=False)
    assert ops(scans).count("scan") == ways
    assert not {"linear", "tanh", "relu", "split"} & set(ops(scans))
    made = rolled(steps, 1e-6)
    assert ops(made).count(op) == ways
    found = [node for node in made if node.op == op]
    directions = [str(node.attrs["direction"]) for node in found]
    assert sorted(directions) == ["forward", "reverse"][:ways]
    assert all(node.attrs["batch_first"] is first for node in found)
    assert all(node.attrs.get("linear_before_reset") in (None, "true" in attrs) for node in found)


def test_a_scan_and_a_loop_over_a_sequence_come_back_from_their_rounds() -> None:
    steps = run_passes(parse(SCAN), [Unroll()], Ledger())
    made = rolled(steps)
    assert ops(made) == ["scan"]
    node = next(node for node in made if node.op == "scan")
    assert node.attrs["out_reverse"] == (1,)
    assert [v.name for v in node.results] == ["h", "all"]


def test_rounds_that_read_no_sequence_stay() -> None:
    text = LOOP.replace("%n = input() : i64", "%n = constant(3) : i64")
    steps = run_passes(parse(text), [Unroll()], Ledger())
    assert "scan" not in ops(rolled(steps))


# -- what is not quite alike ----------------------------------------------------------------------

STEPS = """graph main {
  %x = input() : 4x2xf32
  %h0 = input() : 2xf32
  %k = input() : 2xf32
  %other = input() : 2xf32
  %c0 = constant(0.5) : f32
  %c1 = constant(0.5) : f32
  %x0, %x1, %x2, %x3 = split(%x) {sizes = (1, 1, 1, 1)} : 1x2xf32, 1x2xf32, 1x2xf32, 1x2xf32
  %s0 = squeeze(%x0) {axes = (0,)} : 2xf32
  %s1 = squeeze(%x1) {axes = (0,)} : 2xf32
  %s2 = squeeze(%x2) {axes = (0,)} : 2xf32
  %s3 = squeeze(%x3) {axes = (0,)} : 2xf32
  %m0 = mul(%h0, %k) : 2xf32
  %a0 = add(%m0, %s0) : 2xf32
  %h1 = mul(%a0, %c0) : 2xf32
  %m1 = mul(%h1, %k) : 2xf32
  %a1 = add(%m1, %s1) : 2xf32
  %h2 = mul(%a1, %c1) : 2xf32
  %m2 = mul(%h2, %k) : 2xf32
  %a2 = add(%m2, %s2) : 2xf32
  %h3 = mul(%a2, %c0) : 2xf32
  %m3 = mul(%h3, %k) : 2xf32
  %a3 = add(%m3, %s3) : 2xf32
  %h4 = mul(%a3, %c1) : 2xf32
  output(h=%h4)
}"""


def test_steps_of_equal_constants_and_parts_of_a_split_are_alike() -> None:
    assert ops(rolled(parse(STEPS))) == ["scan"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%m2 = mul(%h2, %k)", "%m2 = mul(%h2, %other)"),
        ("%m2 = mul(%h2, %k)", "%m2 = mul(%h1, %k)"),
        ("%m2 = mul(%h2, %k)", "%m2 = add(%h2, %k)"),
        ("%m2 = mul(%h2, %k)", "%m2 = mul(%k, %h2)"),
        ("%c1 = constant(0.5)", "%c1 = constant(0.25)"),
        ("%a2 = add(%m2, %s2)", "%a2 = add(%m2, %s1)"),
        ("%a1 = add(%m1, %s1) : 2xf32", "%a1 = add(%m1, %s1) : 2xf32 as ort-1.31"),
        ("output(h=%h4)", "output(h=%h4, a=%a2)"),
        ("output(h=%h4)", "output(h=%h4, h2=%h2)"),
        ("output(h=%h4)", "output(h=%h4, a=%a3)"),
    ],
    ids=[
        "another weight",
        "not the step before",
        "another op",
        "turned operands",
        "another constant",
        "an entry twice",
        "another profile",
        "an inner value read",
        "a state read",
        "the last inner value read",
    ],
)
def test_steps_that_are_not_quite_alike_stay(old: str, new: str) -> None:
    assert old in STEPS
    before = parse(STEPS.replace(old, new))
    assert "scan" not in ops(rolled(before))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%g = tanh(%g0)", "%g = elu(%g0)"),
        ("%w = constant(@w)", "%w = input()"),
        ("%d = mul(%f, %c)", "%d = mul(%f, %h)"),
    ],
    ids=["another activation", "computed weights", "another state"],
)
def test_a_scan_that_is_not_quite_an_lstm_stays_one(old: str, new: str) -> None:
    text = """graph main {
  %x = input() : 3x1x2xf32
  %h0 = input() : 1x2xf32
  %c0 = input() : 1x2xf32
  %w = constant(@w) : 8x2xf32
  %r = constant(@r) : 8x2xf32
  %hn, %cn, %all = scan(vs.0=%h0, vs.1=%c0, ss.0=%x, xs.0=%w, xs.1=%r) {axes = (0,)} :
      1x2xf32, 1x2xf32, 3x1x2xf32 with body {
    %h = input() : 1x2xf32
    %c = input() : 1x2xf32
    %e = input() : 1x2xf32
    %w = input() : 8x2xf32
    %r = input() : 8x2xf32
    %a = linear(%e, %w) : 1x8xf32
    %b = linear(%h, %r) : 1x8xf32
    %s = add(%b, %a) : 1x8xf32
    %i0, %f0, %g0, %o0 = split(%s) {sizes = (2, 2, 2, 2), axis = 1} :
        1x2xf32, 1x2xf32, 1x2xf32, 1x2xf32
    %i = sigmoid(%i0) : 1x2xf32
    %f = sigmoid(%f0) : 1x2xf32
    %g = tanh(%g0) : 1x2xf32
    %o = sigmoid(%o0) : 1x2xf32
    %d = mul(%f, %c) : 1x2xf32
    %p = mul(%g, %i) : 1x2xf32
    %n = add(%p, %d) : 1x2xf32
    %t = tanh(%n) : 1x2xf32
    %y = mul(%o, %t) : 1x2xf32
    output(h=%y, c=%n, y=%y)
  }
  output(h=%hn, c=%cn, all=%all)
}"""
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(0, 1, (8, 2)).astype(np.float32) for name in "wr"}
    assert "lstm" in ops(
        rolled(parse("array @w : 8x2xf32\narray @r : 8x2xf32\n" + text, arrays), 1e-6)
    )
    assert old in text
    changed = text.replace(old, new)
    head = "".join(f"array @{name} : 8x2xf32\n" for name in "wr" if f"@{name}" in changed)
    assert "scan" in ops(rolled(parse(head + changed, arrays)))


# -- what torch exports ---------------------------------------------------------------------------


class Written(nn.Module):
    """An lstm as people write one: two linears, four gates in torch's order."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.state = nn.Linear(4, 20), nn.Linear(5, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h, c, out = torch.zeros(2, 5), torch.zeros(2, 5), []
        for t in range(3):
            sums = self.entry(x[:, t]) + self.state(h)
            i, f, n, o = sums.split(5, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1), h


class Cells(nn.Module):
    """A loop over one of torch's cells."""

    def __init__(self, cell: nn.Module, states: int) -> None:
        super().__init__()
        self.cell, self.states = cell, states

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        state = tuple(torch.zeros(2, 5) for _ in range(self.states))
        for entry in x.unbind(0):
            made = self.cell(entry, state if self.states == 2 else state[0])
            state = made if self.states == 2 else (made,)
        return (state[0],)


@pytest.mark.parametrize(
    ("make", "shape", "op"),
    [
        (Written, (2, 3, 4), "lstm"),
        (lambda: Cells(nn.LSTMCell(4, 5), 2), (3, 2, 4), "lstm"),
        (lambda: Cells(nn.GRUCell(4, 5), 1), (3, 2, 4), "gru"),
        (lambda: Cells(nn.RNNCell(4, 5), 1), (3, 2, 4), "rnn"),
    ],
    ids=["written", "lstm cell", "gru cell", "rnn cell"],
)
def test_a_loop_over_a_cell_in_torch_is_found_as_a_layer(
    make: Callable[[], nn.Module], shape: tuple[int, ...], op: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    module, x = make().eval(), torch.rand(shape)
    path = tmp_path / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), opset_version=17, dynamo=False)
    made = run_passes(qir.load(path), [FoldShapes(), Roll()], Ledger())
    assert set(ops(made)) <= {op, "squeeze"}
    wanted = [value.detach().numpy() for value in module(x)]
    found = run(made, {made.inputs[0].name: x.numpy()}).values()
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(got, float), expected, 1e-5, 1e-6)


def test_generated_graphs_keep_what_they_compute() -> None:
    keeps(Roll(), range(6), 1e-5)
