"""The verifier as a whole: what holds a graph together, and how findings are told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from qir.errors import VerifyError
from qir.ir.dtype import I8
from qir.ir.graph import Graph
from qir.ir.node import Use
from qir.ir.origin import Origin
from qir.ir.text import parse, parse_type
from qir.ir.types import QuantType, TensorType
from qir.ir.verify import Finding, check, errors, verify
from qir.testing import graphs
from tests.ir.verifying import XQ, Q, X, found, graph_of


def test_a_graph_without_output_is_told() -> None:
    assert found(graph_of(X)) == [("output", "error", "main")]


def wrong_order(graph: Graph) -> None:
    graph["y"].node._rank, graph["z"].node._rank = graph["z"].node._rank, graph["y"].node._rank


def lost_use(graph: Graph) -> None:
    del graph["x"]._uses[Use(graph["y"].node, "x")]


def lost_edge(graph: Graph) -> None:
    assert graph["y"].node in graph.nx
    assert graph._store is not None
    graph._store.graph.remove_edge(graph["x"].node, graph["y"].node, key="x")


def lost_name(graph: Graph) -> None:
    graph["y"]._name = "other"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_order, "x reads %y, which is made later"),
        (lost_use, "x reads %x, which does not know it"),
        (lost_edge, "x has no edge"),
        (lost_name, "%other is not the value of that name"),
    ],
)
def test_bookkeeping_that_came_apart_is_found(damage: object, message: str) -> None:
    graph = graph_of(f"{X}\n%y = relu(%x) : 3x4xf32\n%z = relu(%y) : 3x4xf32\noutput(o=%z)")
    assert verify(graph) == []
    assert callable(damage)
    damage(graph)
    told = [f for f in verify(graph) if f.rule == "structure"]
    assert [f.message for f in told] == [message]


def test_a_missing_operand_is_told_and_nothing_else_breaks() -> None:
    graph = graph_of(f"{XQ}\n%y = transpose(%x) {{perm = (1, 0)}} : 4x3x{Q}\noutput(o=%y)")
    graph._unbind(graph["y"].node, "x")
    assert [(f.rule, f.message) for f in verify(graph)] == [("slots", "x is missing")]
    graph["y"].node._operands["q"] = graph["x"]
    told = {f.message: (f.rule, f.slot) for f in verify(graph)}
    assert told["transpose has no slot q"] == ("slots", "q")


def test_a_chain_is_checked_stage_by_stage() -> None:
    text = f"{XQ}\n%y = relu(%x) |> add(., %x) |> relu : 3x4x{Q}\noutput(o=%y)"
    assert verify(graph_of(text)) == []
    bad = graph_of(text.replace("relu(%x) |>", "relu(%x) : 4x3xf32 |>"))
    finding = verify(bad)[0]
    assert (finding.rule, finding.node) == ("types", "y")
    assert "%stage 0 is 4x3xf32, its op makes shape [3, 4]" in finding.message
    late = graph_of(text.replace(f": 3x4x{Q}\no", f": 4x4x{Q}\no"))
    assert "its op makes shape [3, 4]" in verify(late)[0].message
    missing = graph_of(text)
    missing._unbind(missing["y"].node, "1.b")
    assert [(f.rule, f.message) for f in verify(missing)] == [("slots", "1.b is missing")]
    broken = graph_of(text.replace("add(., %x)", "matmul(., %x)"))
    assert "stage 1: matmul: a has 4 columns, b has 3 rows" in verify(broken)[0].message


def test_a_constant_is_of_its_elements_type() -> None:
    graph = graph_of(f"%c = constant(@w) : 3xi8\n{X}\noutput(o=%c)")
    graph.set_type(graph["c"], TensorType((3,), QuantType(I8, scale=(0.5,))))
    assert ("types", "error", "c") in found(graph)


def test_a_finding_says_where_the_node_came_from() -> None:
    graph = graph_of(f"{X} %y = relu(%x) : 4x3xf32\noutput(o=%y)")
    graph.set_origins(graph["y"].node, [Origin("onnx", "Relu", "/layer/relu")])
    (finding,) = verify(graph)
    assert finding == Finding(
        "types",
        "error",
        "y",
        "%y is 4x3xf32, its op makes shape [3, 4]",
        "onnx Relu /layer/relu",
        slot="",
        value="y",
        path="main",
    )
    assert str(finding).startswith("y (onnx Relu /layer/relu): %y is 4x3xf32")
    with pytest.raises(VerifyError) as caught:
        check(graph)
    assert str(caught.value) == str(finding)
    assert "-> %y = relu" in caught.value.__notes__[0]
    assert caught.value.status == 1


@settings(max_examples=60)
@given(graphs())
def test_nothing_is_found_in_a_right_graph_but_what_nobody_uses(graph: Graph) -> None:
    told = verify(graph)
    assert {f.rule for f in told} <= {"unused"}
    assert errors(graph) == []


LOOP = """graph main as native {
  %x = input() : 4x!quant.uniform<u8:f32, 0.5:3>
  %n = input() : i64
  %w = constant(@w) : 4x4x!quant.uniform<i8:f32, 0.25>
  %y = loop(count=%n, vs.0=%x, xs.0=%w) : 4x!quant.uniform<u8:f32, 0.5:3> with body {
    %i = input() : i64
    %go = input() : bool
    %h = input() : 4x!quant.uniform<u8:f32, 0.5:3>
    %k = input() : 4x4x!quant.uniform<i8:f32, 0.25>
    %s = linear(%h, %k) : 4x!quant.uniform<u8:f32, 0.5:3>
    output(go=%go, h=%s)
  }
  output(y=%y)
}
"""


def loop(text: str = LOOP) -> Graph:
    return parse(text, {"w": np.ones((4, 4), np.int8)})


def test_bodies_are_looked_into_and_findings_say_where_they_lie() -> None:
    graph = loop()
    assert verify(graph) == []
    body = graph.body(graph["y"].node)
    body.set_type(body["s"], TensorType((5,), body["s"].type.element))
    told = errors(graph)
    assert [(f.rule, f.node, f.path) for f in told] == [
        ("types", "s", "main/y/body"),
    ]
    assert str(told[0]).startswith("main/y/body: s: %s is 5x")
    body.set_type(body["s"], TensorType((4,), I8))
    with pytest.raises(VerifyError) as caught:
        check(graph)
    assert "-> %y = loop" in caught.value.__notes__[0]


def test_a_constant_from_outside_is_one_in_a_body_and_what_is_carried_is_not() -> None:
    swapped = LOOP.replace("%s = linear(%h, %k) :", "%t = linear(%h, %k) :")
    carried = swapped.replace(
        "output(go", "%s = linear(%h, %m) : 4x!quant.uniform<u8:f32, 0.5:3>\n output(go"
    )
    carried = carried.replace(
        "%k = input()", "%m = input() : 4x4x!quant.uniform<i8:f32, 0.25>\n %k = input()"
    )
    carried = carried.replace("vs.0=%x", "vs.0=%x, vs.1=%w").replace("h=%s)", "h=%s, m=%m)")
    carried = carried.replace("%y = loop", "%y, %z = loop").replace(
        " with body", ", 4x4x!quant.uniform<i8:f32, 0.25> with body"
    )
    told = [f for f in verify(loop(carried)) if f.rule != "unused"]
    assert [(f.rule, f.node, f.slot, f.path) for f in told] == [
        ("static-weights", "s", "w", "main/y/body")
    ]


def test_a_body_that_is_missing_or_elsewhere_is_told() -> None:
    graph = loop()
    node = graph["y"].node
    kept, node._bodies = node._bodies, {}
    assert ("bodies", "error", "y") in found(graph)
    assert "body body is missing" in [f.message for f in verify(graph)]
    node._bodies = kept
    graph.body(node)._holder = None
    assert [(f.rule, f.message) for f in verify(graph)] == [
        ("bodies", "body body does not know that it is here")
    ]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("reshape(%x, %s)", ""),
        ("reshape(%x, %q)", ""),
        ("reshape(%x, %f)", ""),
        ("conv2d(%x, %x)", "{stride = (1,)}"),
        ("conv2d(%x, %x)", '{layout = "CHWN"}'),
        ("max_pool2d(%x)", "{kernel = (0, 0)}"),
        ("concat()", "{axis = 0}"),
        ("concat(xs.7=%x, xs.3=%s)", "{axis = 9}"),
        ("pad(%x)", "{pads = (1,)}"),
        ("pad(%x)", '{pads = (0, 9, 0, 0), mode = "reflect"}'),
        ("reduce_mean(%x)", "{axes = (0, 0)}"),
        ("reduce_mean(%x)", "{axes = (9,)}"),
        ("flatten(%x)", "{axis = 99999999999999999999}"),
        ("softmax(%s)", ""),
        ("batch_norm(%x, %x, %x, %x, %x)", "{axis = -9}"),
        ("gemm(%x, %x)", "{alpha = nan}"),
        ("linear(%s, %s)", ""),
        ("matmul(%s, %s)", ""),
    ],
)
def test_misuse_is_a_finding_and_never_a_crash(op: str, attrs: str) -> None:
    graph = graph_of(
        f"{X}\n%s = constant(3) : i64\n%q = constant([1, 2]) : 2x1xi64\n"
        f"%f = constant([1.0, 12.0]) : 2xf32\n%y = {op} {attrs} : 3x4xf32\noutput(o=%y)"
    )
    found = [f.rule for f in verify(graph) if f.severity == "error"]
    assert found == (["slots", "types"] if "xs.7" in op else ["types"])


def test_integers_are_read_by_the_numbers_that_made_them() -> None:
    text = (
        "%x = input() : 4xf32\n%s = constant(1.0) : f32\n%t = constant({}) : f32\n"
        "%q = quantize(%x, scale=%s) : 4x!quant.uniform<u8:f32, ?>\n"
        "%d = dequantize(%q, x.scale=%t) : 4xf32\noutput(o=%d)"
    )
    assert verify(graph_of(text.format("1.0"))) == []
    (finding,) = verify(graph_of(text.format("5.0")))
    assert (finding.rule, finding.node, finding.slot) == ("one-number", "d", "x")
    assert finding.message == "%q has other numbers here than at q"


@pytest.mark.parametrize("op", ["if", "loop"])
def test_what_bodies_give_is_what_their_node_says(op: str) -> None:
    body = (
        "{ %a = input() : 4xf32 %q = quantize(%a) : 4x!quant.uniform<u8:f32, 0.25:7> output(q=%q) }"
    )
    around = (
        "{ %i = input() : i64 %g = input() : bool %a = input() : 4xf32 "
        "%q = quantize(%a) : 4x!quant.uniform<u8:f32, 0.25:7> output(g=%g, q=%q) }"
    )
    given = "%c = input() : bool %n = input() : i64 %x = input() : 4xf32 "
    for said in ("f32", "!quant.uniform<u8:f32, 0.5:7>", "!quant.uniform<u8:f32, 0.25:7>"):
        if op == "if":
            node = f"%y = if(%c, xs.0=%x) : 4x{said} with then {body} with else {body}"
        else:
            node = f"%y = loop(count=%n, xs.0=%x) : ?x4x{said} with body {around}"
        found = [
            f.rule for f in verify(graph_of(f"{given}{node} output(o=%y)")) if f.rule != "unused"
        ]
        assert found == ([] if "0.25" in said else ["types"])


def test_a_meaning_of_an_axis_that_is_not_there_is_a_finding() -> None:
    graph = graph_of("%x = input() : 2x3xi8\n%y = recode(%x) : 2x3xi8\noutput(o=%y)")
    kind = parse_type("1x2x3x!quant.uniform<i8:f32:2, {1.0, 2.0, 3.0}>")
    graph.set_type(graph["y"], kind)
    assert [f.rule for f in verify(graph) if f.severity == "error"] == ["types"]


def test_nobody_gives_a_constant_of_a_body() -> None:
    graph = parse(
        """graph main {
          %x = input() : 3xf32
          %k = constant([2.0, 2.0, 2.0]) {default = true} : 3xf32
          %y = fused(x=%x, k=%k) {kernel = "one"} : 3xf32 with body {
            %x = input() : 3xf32
            %k = input() : 3xf32
            %m = constant([1.0, 1.0, 1.0]) : 3xf32
            %s = mul(%x, %k) : 3xf32
            %t = mul(%s, %m) : 3xf32
            output(y=%t)
          }
          output(y=%y)
        }"""
    )
    assert parse(str(graph)) == graph
    assert verify(graph) == []
    body = graph.body(graph["y"].node)
    body.set_attrs(body["m"].node, default=True)
    told = [(f.rule, f.severity, f.node) for f in verify(graph)]
    assert told == [("default", "error", "m")]
