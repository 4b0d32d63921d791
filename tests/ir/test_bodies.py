"""Closed bodies: what holds them, what they take and give, their text, and running them."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.errors import DataError, GraphError, ParseError, TypeRuleError
from qir.ir.dtype import F32, I64, dtype
from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ir.types import Array, TensorType, uniform
from qir.ir.verify import verify
from qir.reference.interpreter import run
from tests.ir.alike import difference

BOOL = dtype("bool")
LOOP = """graph main as native {
  %x = input() : 4xf32
  %n = input() : i64
  %c = constant([0.5, 1.0, 1.5, 2.0]) : 4xf32
  %y, %ys = loop(count=%n, vs.0=%x, xs.0=%c) : 4xf32, ?x4xf32 with body {
    %i = input() : i64
    %go = input() : bool
    %h = input() : 4xf32
    %k = input() : 4xf32
    %s = add(%h, %k) : 4xf32
    output(go=%go, h=%s, part=%h)
  } as ort-1.31
  output(y=%y, ys=%ys)
}
"""
IF = """graph main as native {
  %c = input() : bool
  %x = input() : (N)x4xf32
  %y = if(%c, xs.0=%x) : (N)x?xf32 with then as ort-1.31 {
    %a = input() : (N)x4xf32
    %r = relu(%a) : (N)x4xf32
    output(r=%r)
  } with else {
    %a = input() : (N)x4xf32
    %r = slice(%a) {starts = (0,), ends = (2,), axes = (1,), steps = (1,)} : (N)x2xf32
    output(r=%r)
  }
  output(y=%y)
}
"""
SCAN = """graph main as native {
  %h0 = input() : 3xf32
  %xs = input() : 5x3xf32
  %h, %all = scan(ss.0=%xs, vs.0=%h0) {out_reverse = (1,)} : 3xf32, 5x3xf32 with body {
    %h = input() : 3xf32
    %x = input() : 3xf32
    %s = add(%h, %x) : 3xf32
    output(h=%s, part=%s)
  }
  output(h=%h, all=%all)
}
"""
GROUP = """graph main as native {
  %x = input() : 2x8xf32
  %p, %q = fused(x=%x) {kernel = "halves"} : 2x4xf32, 2x4xf32 with body {
    %x = input() : 2x8xf32
    %a, %b = split(%x) {sizes = (4, 4), axis = 1} : 2x4xf32, 2x4xf32
    %n = neg(%b) : 2x4xf32
    output(a=%a, n=%n)
  }
  output(p=%p, q=%q)
}
"""
TEXTS = (LOOP, IF, SCAN, GROUP)


@pytest.mark.parametrize("text", TEXTS, ids=["loop", "if", "scan", "group"])
def test_bodies_print_read_back_copy_and_verify(text: str) -> None:
    graph = parse(text)
    assert print_graph(graph) == text
    assert verify(graph) == []
    twin = graph.copy()
    assert twin == graph
    assert not difference(twin, graph)


def test_a_loop_carries_and_stacks() -> None:
    x, c = np.arange(4, dtype=np.float32), np.array([0.5, 1, 1.5, 2], np.float32)
    made = run(parse(LOOP), {"x": x, "n": np.array(3)})
    assert np.array_equal(made["y"], x + 3 * c)
    assert np.array_equal(made["ys"], np.stack([x, x + c, x + 2 * c]))
    none = run(parse(LOOP), {"x": x, "n": np.array(0)})
    assert np.array_equal(none["y"], x)
    assert none["ys"].shape == (0, 4)
    assert none["ys"].dtype == np.float32


def test_a_condition_ends_a_loop() -> None:
    text = """graph main as native {
      %x = input() : f32
      %y = loop(vs.0=%x) : f32 with body {
        %i = input() : i64
        %go = input() : bool
        %h = input() : f32
        %d = add(%h, %h) : f32
        %top = constant(100.0) : f32
        %more = less(%d, %top) : bool
        output(go=%more, h=%d)
      }
      output(y=%y)
    }"""
    assert run(parse(text), {"x": np.array(3, np.float32)})["y"] == 192


def test_a_branch_is_taken() -> None:
    x = np.array([[1, -2, 3, -4]], np.float32)
    assert run(parse(IF), {"c": np.array(True), "x": x})["y"].tolist() == [[1, 0, 3, 0]]
    assert run(parse(IF), {"c": np.array(False), "x": x})["y"].tolist() == [[1, -2]]


def test_a_scan_runs_along_an_axis_and_stacks_backwards() -> None:
    xs = np.arange(15, dtype=np.float32).reshape(5, 3)
    made = run(parse(SCAN), {"h0": np.ones(3, np.float32), "xs": xs})
    sums = 1 + np.cumsum(xs, 0)
    assert np.array_equal(made["h"], sums[-1])
    assert np.array_equal(made["all"], sums[::-1])


def test_a_group_with_a_body_runs_it() -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    made = run(parse(GROUP), {"x": x})
    assert np.array_equal(made["p"], x[:, :4])
    assert np.array_equal(made["q"], -x[:, 4:])


def test_walking_names_every_body_inner_ones_first() -> None:
    paths = [path for path, _ in parse(IF).walk()]
    assert paths == ["main/y/then", "main/y/else", "main"]


def test_an_edit_of_a_body_is_an_edit_of_its_holder() -> None:
    graph = parse(LOOP)
    was = graph.version
    body = graph.body(graph["y"].node)
    body.rename(body["s"], "sum")
    assert graph.version > was
    assert "%sum = add" in print_graph(graph)


def _body(*kinds: TensorType) -> Graph:
    body = Graph("body", "")
    values = [body.add("input", types=[k], name=f"v{i}").result for i, k in enumerate(kinds)]
    body.add("output", {f"o{i}": v for i, v in enumerate(values[1:])})
    return body


def test_a_body_has_one_holder() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
    body = _body(TensorType((), I64), TensorType((), BOOL), x.type)
    node = graph.add("loop", {"vs.0": x}, bodies={"body": body})
    assert [v.type for v in node.results] == [x.type]
    with pytest.raises(GraphError, match="copy it first"):
        graph.add("loop", {"vs.0": x}, bodies={"body": body})
    graph.add("loop", {"vs.0": x}, bodies={"body": body.copy()})
    graph.remove(node)
    graph.add("loop", {"vs.0": x}, bodies={"body": body})


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((TensorType((), I64), TensorType((), BOOL)), "takes 2 values, it gets 3"),
        (
            (TensorType((), I64), TensorType((), BOOL), TensorType((3,), F32)),
            "takes 3xf32 as input 2, it gets 2xf32",
        ),
        (
            (TensorType((), F32), TensorType((), BOOL), TensorType((2,), F32)),
            "takes an i64 and a bool first",
        ),
    ],
)
def test_a_body_that_does_not_fit_is_refused(kinds: tuple[TensorType, ...], said: str) -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
    with pytest.raises(TypeRuleError, match=said):
        graph.add("loop", {"vs.0": x}, bodies={"body": _body(*kinds)})


def test_branches_that_give_different_codes_are_refused() -> None:
    kinds = [TensorType((2,), uniform(dtype("u8"), s)) for s in np.array([0.5, 0.25], np.float32)]
    graph = Graph()
    c = graph.add("input", types=[TensorType((), BOOL)], name="c").result
    branches = {}
    for name, kind in zip(("then", "else"), kinds, strict=True):
        body = Graph(name, "")
        quantized = Array(np.zeros(2, np.uint8), kind)
        body.add("output", {"y": body.constant(quantized, name="k")})
        branches[name] = body
    with pytest.raises(TypeRuleError, match="result 0 is"):
        graph.add("if", {"cond": c}, bodies=branches)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOOP.replace("%h, %k", "%h, %c"), "%c is used before it is made"),
        (LOOP.replace("with body", "with corpse"), "has the bodies body, it is given corpse"),
        (LOOP.replace("  } as", "  } with body { output() } as"), "body is given twice"),
        (GROUP.replace("fused(x=", "fused(z="), "the body takes x; the group has z"),
        ("graph g {\n" + "%y = loop() : f32 with body {\n" * 40, "32 deep"),
    ],
)
def test_a_fault_of_a_body_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_types_of_a_body_may_name_arrays() -> None:
    numbers = np.linspace(0.1, 1, 12, dtype=np.float32)
    scales = Array.of(numbers, "s")
    text = """array @s : 12xf32
graph main as native {
  %c = input() : bool
  %x = input() : 12xf32
  %y = if(%c, xs.0=%x) : 12x!quant.uniform<i8:f32:0, @s> with then {
    %a = input() : 12xf32
    %q = quantize(%a) : 12x!quant.uniform<i8:f32:0, @s>
    output(q=%q)
  } with else {
    %a = input() : 12xf32
    %n = neg(%a) : 12xf32
    %q = quantize(%n) : 12x!quant.uniform<i8:f32:0, @s>
    output(q=%q)
  }
  output(y=%y)
}
"""
    graph = parse(text, {"s": scales.data})
    assert print_graph(graph) == text
    assert verify(graph) == []
    assert {a.digest for a in graph.arrays()} == {scales.digest}
    assert run(graph, {"c": np.array(False), "x": -numbers})["y"].tolist() == [1] * 12


def test_blocks_are_stacked_along_a_new_axis_and_cut_from_one() -> None:
    scales = Array.of(np.array([[0.5, 1], [2, 4]], np.float32), "s")
    text = """array @s : 2x2xf32
graph main as native {
  %n = input() : i64
  %x = input() : 2x4x!quant.uniform<u8:f32:{0:1, 1:2}, @s>
  %y = loop(count=%n, xs.0=%x) : ?x2x4x!quant.uniform<u8:f32:{1:1, 2:2}, @s.1> with body {
    %i = input() : i64
    %go = input() : bool
    %h = input() : 2x4x!quant.uniform<u8:f32:{0:1, 1:2}, @s>
    output(go=%go, h=%h)
  }
  output(y=%y)
}
"""
    data = {"s": scales.data, "s.1": scales.data[None]}
    graph = parse(text.replace("graph main", "array @s.1 : 1x2x2xf32\ngraph main"), data)
    assert verify(graph) == []
    quantized = np.arange(8, dtype=np.uint8).reshape(2, 4)
    made = run(graph, {"n": np.array(2), "x": quantized})["y"]
    assert np.array_equal(made, np.stack([quantized, quantized]))
    again = graph.add(
        "loop",
        {"count": graph["n"], "xs.0": graph["x"]},
        bodies={"body": graph.body(graph["y"].node).copy()},
    )
    assert again.result.type == graph["y"].type


def test_a_value_of_a_body_is_had_by_its_path() -> None:
    x, c = np.arange(4, dtype=np.float32), np.array([0.5, 1, 1.5, 2], np.float32)
    loop = parse(LOOP)
    made = run(loop, {"x": x, "n": np.array(3)}, values=["y/body/h", "y/body/s", "y"])
    assert np.array_equal(made["y/body/h"], x + 2 * c)  # of the last round
    assert np.array_equal(made["y/body/s"], x + 3 * c)
    assert list(made) == ["y/body/h", "y/body/s", "y"]
    with pytest.raises(DataError, match="'y/body/h' was not computed"):
        run(loop, {"x": x, "n": np.array(0)}, values=["y/body/h"])
    one = np.array([[1, -2, 3, -4]], np.float32)
    branch = {"c": np.array(False), "x": one}
    assert run(parse(IF), branch, values=["y/else/r"])["y/else/r"].tolist() == [[1, -2]]
    with pytest.raises(DataError, match="no branch or round"):
        run(parse(IF), branch, values=["y/then/r"])
    with pytest.raises(DataError, match="no value 'y/then/q'"):
        pipeline.run(parse(IF), branch, values=["y/then/q"])
