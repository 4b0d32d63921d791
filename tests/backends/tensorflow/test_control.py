"""Loops and branches that are written compute in TensorFlow what the reference does."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tensorflow.writer.control import OPS
from qir.target import target

from .written import close

tf = pytest.importorskip("tensorflow")

COUNTED = """graph main as native {
  %x = input() : (N)x4xf32
  %s = input() : 5x(N)x4xf32
  %count = constant(5) : i64
  %h, %parts = loop(count=%count, vs.0=%x, xs.0=%s) : (N)x4xf32, (k)x(N)x4xf32 with body {
    %i = input() : i64
    %go = input() : bool
    %v = input() : (N)x4xf32
    %all = input() : 5x(N)x4xf32
    %one = gather(%all, %i) {axis = 0} : (N)x4xf32
    %two = constant(2.0) : f32
    %sum = add(%v, %one) : (N)x4xf32
    %half = div(%sum, %two) : (N)x4xf32
    %made = tanh(%half) : (N)x4xf32
    output(go=%go, v=%made, part=%sum)
  }
  output(h=%h, parts=%parts)
}"""
UNTIL = """graph main as native {
  %x = input() : 2x3xf32
  %go = constant(true) : bool
  %h, %n = loop(cond=%go, vs.0=%x, vs.1=%x) : 2x3xf32, 2x3xf32 with body {
    %i = input() : i64
    %c = input() : bool
    %v = input() : 2x3xf32
    %u = input() : 2x3xf32
    %by = constant(1.5) : f32
    %most = constant(50.0) : f32
    %w = mul(%v, %by) : 2x3xf32
    %size = reduce_l1(%w) {axes = (0, 1), keep = false} : f32
    %more = less(%size, %most) : bool
    output(c=%more, v=%w, u=%v)
  }
  output(h=%h, n=%n)
}"""
EITHER = """graph main as native {
  %x = input() : 2x3xf32
  %total = reduce_sum(%x) {axes = (0, 1), keep = false} : f32
  %zero = constant(0.0) : f32
  %c = less(%zero, %total) : bool
  %y, %z = if(%c, xs.0=%x) : 2x3xf32, f32 with then {
    %v = input() : 2x3xf32
    %k = constant(3.0) : f32
    %w = mul(%v, %k) : 2x3xf32
    output(w=%w, k=%k)
  } with else {
    %v = input() : 2x3xf32
    %k = constant(-1.0) : f32
    output(v=%v, k=%k)
  }
  output(y=%y, z=%z)
}"""
RNG = np.random.default_rng(29)
X = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
CASES = {
    "counted": (
        COUNTED,
        {"x": RNG.normal(size=(2, 4)).astype("f4"), "s": RNG.normal(size=(5, 2, 4)).astype("f4")},
    ),
    "until": (UNTIL, {"x": X}),
    "then": (EITHER, {"x": np.abs(X)}),
    "else": (EITHER, {"x": -np.abs(X)}),
}


@pytest.mark.parametrize("name", CASES)
def test_control_flow_computes_in_tensorflow_what_the_reference_does(name: str) -> None:
    text, feeds = CASES[name]
    close(qir.parse(text), feeds)


def test_all_control_flow_that_is_written_is_compared() -> None:
    heads = {node.op for text, _ in CASES.values() for node in qir.parse(text)}
    assert OPS.keys() <= heads


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_no_outputs_but_those_of_the_model(name: str, tmp_path: Path) -> None:
    text, feeds = CASES[name]
    graph = qir.parse(text)
    qir.save(graph, tmp_path / "a.pb", target="tensorflow-onednn")
    found = target("tensorflow-onednn").compile_file(tmp_path / "a.pb")(**feeds)
    assert found.keys() == graph.outputs.keys()


@pytest.mark.parametrize(("name", "op"), [("counted", "loop"), ("then", "if"), ("else", "if")])
def test_control_flow_is_read_back(name: str, op: str, tmp_path: Path) -> None:
    text, feeds = CASES[name]
    graph = qir.parse(text)
    qir.save(graph, tmp_path / "a.pb", target="tensorflow-onednn")
    back = qir.load(tmp_path / "a.pb")
    assert sum(node.op == op for node in back) == 1
    assert back.outputs.keys() == graph.outputs.keys()
    wanted, found = qir.run(graph, feeds), qir.run(back, feeds)
    for name, array in wanted.items():
        assert np.allclose(found[name], array, rtol=0, atol=1e-6)
