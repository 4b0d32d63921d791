"""Arithmetic that does nothing is that for every number; ops turn with the transposes around."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.cleanup.clean_moves import CleanMoves
from qir.passes.cleanup.cse import Cse
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.keeping import keep

NOTHING = {
    "mul(%x, %c)": 1.0,
    "mul(%c, %x)": 1.0,
    "div(%x, %c)": 1.0,
    "sub(%x, %c)": 0.0,
    "add(%x, %c)": -0.0,
}
SOMETHING = {
    "div(%c, %x)": 1.0,
    "sub(%c, %x)": 0.0,
    "sub(%x, %c)": -0.0,
    "add(%x, %c)": 0.0,
    "mul(%x, %c)": -1.0,
}


def one_op(said: str, number: float, kind: str = "f16") -> Graph:
    value = number if kind.startswith("f") else int(number)
    return parse(
        f"graph main {{\n  %x = input() : (N)x{kind}\n  %c = constant({value!r}) : {kind}\n"
        f"  %y = {said} : (N)x{kind}\n  output(y=%y)\n}}"
    )


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in ("input", "output", "constant")]


def cleaned(graph: Graph) -> Graph:
    return run_passes(graph, [CleanMoves()], Ledger())


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("said", NOTHING)
def test_what_does_nothing_gives_every_half_back(said: str) -> None:
    graph = one_op(said, NOTHING[said])
    kept = HALVES[~np.isnan(HALVES)]
    assert run(graph, {"x": kept})["y"].tobytes() == kept.tobytes()
    assert ops(cleaned(graph)) == []


@pytest.mark.parametrize("said", SOMETHING)
def test_what_moves_a_number_or_a_sign_stays(said: str) -> None:
    graph = one_op(said, SOMETHING[said])
    kept = HALVES[~np.isnan(HALVES)]
    assert run(graph, {"x": kept})["y"].tobytes() != kept.tobytes()
    assert cleaned(graph)["y"].node.op == said[:3]


@pytest.mark.parametrize("kind", ["i8", "u8", "i16"])
def test_whole_numbers_have_one_zero_and_wrap_when_negated(kind: str) -> None:
    low, high = dtype(kind).bounds
    every = np.arange(low, high + 1).astype(dtype(kind).carrier)
    for said, number in {**NOTHING, "add(%c, %x)": 0}.items():
        graph = one_op(said, number, kind)
        assert np.array_equal(run(graph, {"x": every})["y"], every)
        assert ops(cleaned(graph)) == []
    twice = parse(
        f"graph main {{\n  %x = input() : (N)x{kind}\n  %n = neg(%x) : (N)x{kind}\n"
        f"  %y = neg(%n) : (N)x{kind}\n  output(y=%y)\n}}"
    )
    assert np.array_equal(run(twice, {"x": every})["y"], every)
    assert ops(cleaned(twice)) == []


def test_a_number_that_trains_or_widens_stays() -> None:
    graph = one_op("mul(%x, %c)", 1.0)
    graph.set_attrs(graph["c"].node, trainable=True)
    assert ops(cleaned(graph)) == ["mul"]


def chain(seed: int) -> Graph:
    """A transpose, ops on each element with numbers beside them, and another transpose."""
    rng = random.Random(seed)
    graph = parse("graph main {\n  %x = input() : 2x3x4xf32\n  output(x=%x)\n}")
    value = graph["x"]
    perm = tuple(rng.sample(range(3), 3))
    value = graph.add("transpose", {"x": value}, {"perm": perm}).result
    for i in range(rng.randint(1, 5)):
        said = rng.choice(["relu", "neg", "sigmoid", "mul", "sub", "max", "cast"])
        if said in ("mul", "sub", "max"):
            number = graph.constant(np.array(rng.uniform(-2, 2), np.float32), name=f"n{i}")
            names = ("xs.0", "xs.1") if said == "max" else ("a", "b")
            pair = rng.sample([value, number], 2)
            value = graph.add(said, dict(zip(names, pair, strict=True))).result
        elif said == "cast":
            half = graph.add("cast", {"x": value}, {"to": graph["x"].type.dtype}).result
            value = graph.add("abs", {"x": half}).result
        else:
            value = graph.add(said, {"x": value}).result
        if rng.random() < 0.05:
            graph.set_operand(graph.output, f"o{i}", value)
    back = tuple(np.argsort(perm).tolist()) if seed % 2 else tuple(rng.sample(range(3), 3))
    made = graph.add("transpose", {"x": value}, {"perm": back}).result
    graph.set_operand(graph.output, "y", made)
    return graph


def test_chains_between_transposes_keep_every_bit() -> None:
    fewer = 0
    for seed in range(40):
        graph = chain(seed)
        keep(CleanMoves(), graph, seed)
        fewer += ops(cleaned(graph)).count("transpose") < 2
    assert fewer > 25


def test_a_transpose_through_ops_computes_what_numpy_computes() -> None:
    graph = parse("""graph main {
      %x = input() : 2x3x4xf32
      %two = constant(2.0) : f32
      %t = transpose(%x) {perm = (1, 2, 0)} : 3x4x2xf32
      %m = sub(%two, %t) : 3x4x2xf32
      %r = relu(%m) : 3x4x2xf32
      %y = transpose(%r) {perm = (1, 2, 0)} : 4x2x3xf32
      output(y=%y)
    }""")
    after = cleaned(graph)
    assert ops(after) == ["transpose", "sub", "relu"]
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    expected = np.maximum(np.float32(2) - x, 0).transpose(2, 0, 1)
    assert np.array_equal(run(after, {"x": x})["y"], expected)


def test_equal_sums_either_way_round_are_computed_once() -> None:
    for said in ("add", "mul", "logical_and", "equal"):
        kind = "bool" if said == "logical_and" else "f32"
        made = "f32" if said in ("add", "mul") else "bool"
        graph = parse(
            f"graph main {{\n  %x = input() : 4x{kind}\n  %z = input() : 4x{kind}\n"
            f"  %a = {said}(%x, %z) : 4x{made}\n  %b = {said}(%z, %x) : 4x{made}\n"
            "  output(a=%a, b=%b)\n}"
        )
        assert keep(Cse(), graph, 1) == 1, said
