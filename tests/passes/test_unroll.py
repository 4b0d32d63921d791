"""Loops and recurrent layers written out compute what they did, within their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qir.errors import PassError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.loops.unroll import Unroll
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import sample_inputs
from tests.ir.test_bodies import LOOP, SCAN
from tests.passes.keeping import keeps

GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def layer(op: str, more: str = "", attrs: str = "", *, ways: int = 1, first: bool = False) -> Graph:
    """A layer of three steps, batches of two, four in and five hidden; all results are outputs."""
    rows, out = 5 * GATES[op], 4 if "proj" in more else 5
    x = "2x3x4" if first else "3x2x4"
    y = f"2x3x{ways}x{out}" if first else f"3x{ways}x2x{out}"
    state = [f"2x{ways}x{n}" if first else f"{ways}x2x{n}" for n in (out, 5)]
    kinds = [y, *state[: 2 if op == "lstm" else 1]]
    given = {
        "bias": f"{ways}x{2 * rows}",
        "half": f"{ways}x{rows}",
        "h0": state[0],
        "c0": state[1],
        "peephole": f"{ways}x15",
        "proj": f"{ways}x4x5",
    }
    used = [name for name in given if name in more.split()]
    lines = [f"%{name} = input() : {given[name]}xf32" for name in used]
    slots = "".join(f", {'bias' if name == 'half' else name}=%{name}" for name in used)
    said = f"batch_first = {str(first).lower()}{', ' if attrs else ''}{attrs}"
    head = "\n".join(
        [f"%x = input() : {x}xf32", f"%w = input() : {ways}x{rows}x4xf32", *lines,
         f"%r = input() : {ways}x{rows}x{out}xf32"]
    )  # fmt: skip
    names = ", ".join(f"%o{i}" for i in range(len(kinds)))
    types = ", ".join(f"{kind}xf32" for kind in kinds)
    ends = ", ".join(f"o{i}=%o{i}" for i in range(len(kinds)))
    return parse(
        f"graph main {{\n{head}\n{names} = {op}(%x, %w, %r{slots}) {{{said}}} : {types}\n"
        f"output({ends})\n}}"
    )


def written_out(before: Graph, tolerance: float = 1e-6) -> Graph:
    after = run_passes(before, [Unroll()], Ledger())
    assert not {"loop", "scan", *GATES} & {node.op for node in after}
    given = sample_inputs(before, 4)
    was, now = run(before, given), run(after, given)
    for name, data in was.items():
        np.testing.assert_allclose(
            np.asarray(now[name], float), np.asarray(data, float), tolerance, tolerance
        )
    return after


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_a_layer_is_its_steps_in_each_direction(op: str, direction: str, first: bool) -> None:
    ways = 2 if direction == "bidirectional" else 1
    attrs = f'direction = "{direction}"'
    written_out(layer(op, "bias", attrs, ways=ways, first=first))
    written_out(layer(op, "half h0", attrs, ways=ways, first=first))


@pytest.mark.parametrize(
    ("op", "more", "attrs"),
    [
        ("lstm", "bias h0 c0 peephole", ""),
        ("lstm", "bias proj", ""),
        ("lstm", "h0 c0 proj peephole", "clip = 0.75"),
        ("lstm", "", "input_forget = true"),
        ("lstm", "bias", 'activations = ("hard_sigmoid", "softsign", "relu")'),
        ("gru", "bias", "linear_before_reset = true"),
        ("gru", "half h0", "linear_before_reset = true, clip = 0.5"),
        ("gru", "bias", 'activations = ("hard_sigmoid", "elu"), alpha = (0.3, 0.5)'
         ", beta = (0.4, 0.0)"),
        ("rnn", "bias", 'activations = ("leaky_relu",), alpha = (0.1,)'),
        ("rnn", "h0", 'activations = ("softplus",)'),
    ],
)  # fmt: skip
def test_a_layer_is_its_steps_with_all_that_it_may_have(op: str, more: str, attrs: str) -> None:
    written_out(layer(op, more, attrs))


def test_an_lstm_is_what_torch_computes() -> None:
    torch.manual_seed(3)
    made: Any = torch.nn.LSTM(4, 5)
    x = torch.rand(3, 2, 4)
    order = torch.cat([torch.arange(5), 15 + torch.arange(5), 5 + torch.arange(10)])  # i o f c
    own = {name: value.detach()[order].numpy()[None] for name, value in made.named_parameters()}
    given = {
        "x": x.numpy(),
        "w": own["weight_ih_l0"],
        "r": own["weight_hh_l0"],
        "bias": np.concatenate([own["bias_ih_l0"], own["bias_hh_l0"]], 1),
    }
    after = run_passes(layer("lstm", "bias"), [Unroll()], Ledger())
    y, (h, c) = made(x)
    got = run(after, given)
    for name, wanted in (("o0", y[:, None]), ("o1", h), ("o2", c)):
        found = np.asarray(got[name], np.float64)
        np.testing.assert_allclose(found, wanted.detach().numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("more", "attrs"),
    [("", 'activations = ("thresholded_relu",)'), ("", 'activations = ("affine",)')],
)
def test_a_layer_whose_activation_is_no_op_stays(more: str, attrs: str) -> None:
    before = layer("rnn", more, attrs)
    assert run_passes(before, [Unroll()], Ledger()).version == before.copy().version


def loop(count: str = "constant(3)", *changes: tuple[str, str]) -> Graph:
    text = LOOP.replace("%n = input() : i64", f"%n = {count} : i64")
    for old, new in changes:
        text = text.replace(old, new)
    return parse(text)


def test_a_loop_of_a_constant_count_is_its_rounds_to_the_bit() -> None:
    for before in (loop(), parse(SCAN)):
        after = written_out(before, 0.0)
        assert [node.op for node in after].count("add") == (3 if before.has("n") else 5)
    assert {n.profile for n in written_out(loop()) if n.op == "add"} == {"ort-1.31"}


def test_a_loop_whose_count_or_end_is_not_known_stays() -> None:
    ends = ("output(go=%go", "%some = constant(false) : bool\n    output(go=%some")
    for before in (loop("input()"), loop("constant(0)"), loop("constant(3)", ends)):
        after = run_passes(before, [Unroll()], Ledger())
        assert after.version == before.copy().version


def test_what_becomes_too_large_is_refused_in_one_line_or_left() -> None:
    before = loop("constant(5000)")
    with pytest.raises(PassError) as told:
        run_passes(before, [Unroll()], Ledger())
    assert (
        str(told.value)
        .splitlines()[0]
        .endswith(
            "unrolling loop y of 5000 rounds makes 30000 nodes, the limit is 10000; raise limit, "
            "or leave such alone with keep_large=true"
        )
    )
    left = run_passes(before, [Unroll(keep_large=True)], Ledger())
    assert left.version == before.copy().version
    assert len(run_passes(before, [Unroll(limit=40_000)], Ledger())) > 5000


def test_only_loops_or_only_layers_are_unrolled_where_that_is_asked() -> None:
    assert [n.op for n in run_passes(loop(), [Unroll(loops=False)], Ledger())].count("loop") == 1
    before = layer("gru")
    assert run_passes(before, [Unroll(layers=False)], Ledger()).version == before.copy().version


def test_generated_graphs_keep_what_they_compute() -> None:
    keeps(Unroll(), range(8), 1e-5)
