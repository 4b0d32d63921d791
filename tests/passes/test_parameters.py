"""Numbers move out of types and back: the same graph, and at every place the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_parameters import FoldParameters
from qir.passes.fold.unfold_parameters import UnfoldParameters
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import Form, random_graph, sample_inputs
from tests.ir.alike import difference


def outcome(graph: Graph, seed: int) -> dict[str, bytes] | str:
    """The bytes of every output, or the error that a graph ends in."""
    try:
        made = run(graph, sample_inputs(graph, seed))
    except QirError as error:
        return type(error).__name__
    return {name: data.tobytes() for name, data in made.items()}


@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_out_and_back_is_the_same_graph_and_gives_the_same_bytes(form: Form) -> None:
    opened = 0
    for seed in range(40):
        graph = run_passes(random_graph(seed, form), [Prune()], Ledger())
        apart = run_passes(graph, [UnfoldParameters()], Ledger())
        again = run_passes(apart, [FoldParameters()], Ledger())
        assert difference(graph, again) == "", f"seed {seed}"
        opened += sum(
            v.type.quant is not None and v.type.quant.dynamic for v in apart.values.values()
        )
        expected = outcome(graph, seed)
        assert outcome(apart, seed) == expected, f"seed {seed}"
    assert opened > 40


def test_readers_that_disagree_keep_their_numbers_and_are_told() -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3xf32\n%s = constant(0.5) : f32\n"
        "%t = constant(0.25) : f32\n%q = quantize(%x, scale=%s) : 3x!quant.uniform<u8:f32, ?>\n"
        "%d = dequantize(%q, x.scale=%t) : 3xf32\noutput(d=%d)\n}"
    )
    ledger = Ledger()
    assert run_passes(graph, [FoldParameters()], ledger) == graph
    assert [(e.change, e.subject) for e in ledger] == [(Change.REFUSED, "q")]
    x = np.array([1, 2, 3.25], np.float32)
    assert np.array_equal(run(graph, {"x": x})["d"], np.array([0.5, 1, 1.5], np.float32))


def test_a_range_becomes_the_numbers_that_the_profile_chooses() -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3xf32\n%l = constant(-1.0) : f32\n"
        "%h = constant(4.1) : f32\n"
        "%q = quantize(%x, min=%l, max=%h) : 3x!quant.uniform<u8:f32, ?:?>\n"
        "%d = dequantize(%q, x.min=%l, x.max=%h) : 3xf32\noutput(q=%q, d=%d)\n}"
    )
    folded = run_passes(graph, [FoldParameters()], Ledger())
    quant = folded["q"].type.quant
    assert quant is not None
    assert quant.scales() == np.float32(np.float64(np.float32(4.1) + np.float64(1)) / 255)
    assert quant.zeros() == 50
    x = np.array([-3, 0.01, 4.1], np.float32)
    assert outcome(graph, 0) == outcome(folded, 0)
    assert np.array_equal(run(graph, {"x": x})["q"], [0, 50, 255])


def test_numbers_that_are_integers_themselves_move_as_they_are() -> None:
    scales = np.array([4, 8, 1], np.uint8)
    graph = parse(
        "array @s : 3x!quant.uniform<u8:f32, 0.25>\ngraph g as native {\n"
        "%w = constant(@w) : 3x!quant.uniform<i8:f32:0, @s>\n"
        "%d = dequantize(%w) : 3xf32\noutput(d=%d)\n}",
        {"s": scales, "w": np.array([1, 2, 3], np.int8)},
    )
    apart = run_passes(graph, [UnfoldParameters()], Ledger())
    assert apart["w"].type.quant is not None
    assert apart["w"].type.quant.dynamic
    for each in (graph, apart):
        assert np.array_equal(run(each, {})["d"], np.array([1, 4, 0.75], np.float32))
    assert run_passes(apart, [FoldParameters()], Ledger()) == graph


def test_what_enters_a_body_keeps_its_numbers() -> None:
    graph = parse(
        "graph g as native {\n%n = constant(2) : i64\n"
        "%x = input() : 3x!quant.uniform<u8:f32, 0.5>\n"
        "%y = loop(count=%n, vs.0=%x) : 3x!quant.uniform<u8:f32, 0.5> with body {\n"
        "%i = input() : i64\n%c = input() : bool\n%v = input() : 3x!quant.uniform<u8:f32, 0.5>\n"
        "%d = dequantize(%v) : 3xf32\n%e = add(%d, %d) : 3xf32\n"
        "%q = quantize(%e) : 3x!quant.uniform<u8:f32, 0.125>\n%f = dequantize(%q) : 3xf32\n"
        "%r = quantize(%f) : 3x!quant.uniform<u8:f32, 0.5>\noutput(c=%c, v=%r)\n}\n"
        "%k = dequantize(%y) : 3xf32\noutput(k=%k)\n}"
    )
    apart = run_passes(graph, [UnfoldParameters()], Ledger())
    opened = [
        name
        for _, each in apart.walk()
        for name, v in each.values.items()
        if v.type.quant and v.type.quant.dynamic
    ]
    assert opened == ["q"]
    assert run_passes(apart, [FoldParameters()], Ledger()) == graph
    assert outcome(apart, 1) == outcome(graph, 1)
