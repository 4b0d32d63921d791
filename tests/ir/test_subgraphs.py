"""Parts of graphs: taken out, put into another, ops put between, types inferred again."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.errors import GraphError, TypeRuleError
from qir.ir.text import parse
from qir.ir.verify import verify
from tests.ir.test_graph import sound

NETWORK = """\
graph net as native {
  %x = input() : 1x3x8x8xf32
  %w = constant(@w) : 4x3x3x3xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1), stride = (2, 2)} : 1x4x4x4xf32
  %r = relu(%c) : 1x4x4x4xf32
  %q = quantize(%r) : 1x4x4x4x!quant.uniform<u8:f32, 0.5:3>
  %d = dequantize(%q) : 1x4x4x4xf32
  %y = reduce_mean(%d) {axes = (2, 3), keep = false} : 1x4xf32
  output(y=%y)
}
"""


def network() -> qir.Graph:
    drawn = np.random.default_rng(0).normal(size=(4, 3, 3, 3))
    return qir.parse(NETWORK, {"w": drawn.astype(np.float32)})


def typed(text: str) -> qir.TensorType:
    return qir.parse_type(text)


def test_types_follow_a_changed_input() -> None:
    graph = network()
    graph.set_type(graph["x"], typed("5x3x16x12xf32"))
    assert graph.infer_types() == 5
    assert {v.name: str(v.type) for v in graph.values.values()} == {
        "x": "5x3x16x12xf32",
        "w": "4x3x3x3xf32",
        "c": "5x4x8x6xf32",
        "r": "5x4x8x6xf32",
        "q": "5x4x8x6x!quant.uniform<u8:f32, 0.5:3>",
        "d": "5x4x8x6xf32",
        "y": "5x4xf32",
    }
    assert verify(graph) == []
    assert graph.infer_types() == 0


def test_types_follow_into_chains_and_bodies() -> None:
    graph = qir.parse("""\
graph main as native {
  %p = input() : bool
  %x = input() : 2x3xf32
  %g = add(%x, %x) |> relu : 2x3xf32
  %y = if(cond=%p, xs.0=%g) : 2x3xf32 with then {
    %h = input() : 2x3xf32
    %a = neg(%h) : 2x3xf32
    output(a=%a)
  } with else {
    %h = input() : 2x3xf32
    output(h=%h)
  }
  output(y=%y)
}
""")
    graph.set_type(graph["x"], typed("(N)x3xf32"))
    assert graph.infer_types() == 5
    assert str(graph["y"].type) == "(N)x3xf32"
    assert str(graph.body(graph["y"].node, "then")["a"].type) == "(N)x3xf32"
    assert verify(graph) == []


SHAPES = """\
array @v : f32
graph main as native {
  %x = input() : (N)x6xf32
  %s = shape(%x) : 2xi64
  %z = constant_of_shape(%s) {value = @v} : (N)x6xf32
  %r = relu(%x) : (N)x6xf32
  output(z=%z, r=%r)
}
"""


def test_sizes_that_only_a_frontend_knew_stay_until_an_input_changes() -> None:
    graph = parse(SHAPES, {"v": np.ones((), np.float32)})
    before = str(graph)
    assert graph.infer_types() == 0
    assert str(graph) == before
    graph.set_type(graph["x"], typed("1x6xf32"))
    assert graph.infer_types() > 0
    assert str(graph["z"].type) == "?x?xf32"  # it is computed from the sizes of what changed
    assert graph.infer_types() == 0


def test_fold_shapes_then_infer_types_knows_sizes_computed_from_a_new_input_shape() -> None:
    graph = parse(SHAPES, {"v": np.ones((), np.float32)})
    graph.set_type(graph["x"], typed("4x6xf32"))
    graph.infer_types()
    graph = qir.optimize(graph, "fold-shapes")
    graph.infer_types()
    assert str(graph["z"].type) == "4x6xf32"


def test_types_that_an_op_does_not_take_change_nothing() -> None:
    graph = network()
    graph.set_type(graph["x"], typed("1x5x8x8xf32"))
    before = str(graph)
    with pytest.raises(TypeRuleError, match=r"^c: "):
        graph.infer_types()
    assert str(graph) == before


def test_values_of_another_graph_are_no_ends_of_a_part() -> None:
    graph, other = network(), network()
    with pytest.raises(GraphError, match="%d is of another graph"):
        graph.extract([graph["c"]], [other["d"]])
    with pytest.raises(GraphError, match="%c is of another graph"):
        graph.extract([other["c"]], [graph["d"]])


def test_a_part_between_two_values_computes_what_it_did() -> None:
    graph = network()
    part = graph.extract([graph["c"]], [graph["d"]])
    assert [v.name for v in part.inputs] == ["c"]
    assert [n.op for n in part] == ["input", "relu", "quantize", "dequantize", "output"]
    assert verify(part) == []
    c = np.random.default_rng(1).normal(size=(1, 4, 4, 4)).astype(np.float32)
    wanted = (np.clip(np.rint(np.maximum(c, 0) / 0.5) + 3, 0, 255) - 3) * 0.5
    assert np.array_equal(qir.run(part, {"c": c})["d"], wanted.astype(np.float32))
    assert part.profile == graph.profile
    assert graph == network()


def test_a_part_that_needs_another_input_names_it() -> None:
    graph = network()
    with pytest.raises(GraphError, match="depends on the input %x"):
        graph.extract([graph["r"]], [graph["c"]])


def test_an_op_comes_after_a_value_and_before_all_its_users() -> None:
    graph = network()
    node = graph.insert_after(graph["c"], "mul", {"b": graph.constant(np.float32(2))}, name="twice")
    assert [user.name for user in graph["c"].users] == ["twice"]
    assert [user.name for user in node.result.users] == ["r"]
    last = graph.insert_after(graph["y"], "neg")
    assert graph.outputs["y"] is last.result
    assert sound(graph) == ""
    assert verify(graph) == []


def test_an_op_that_would_need_its_own_result_is_not_inserted() -> None:
    graph = network()
    before = str(graph)
    with pytest.raises(GraphError, match="its own result"):
        graph.insert_after(graph["c"], "add", {"b": graph["r"]})
    assert str(graph) == before
    assert sound(graph) == ""


def test_a_graph_is_merged_into_another() -> None:
    graph, other = network(), network()
    x = graph.add("input", types=[typed("1x3x8x8xf32")], name="x2", before=graph["w"].node).result
    made = graph.merge(other, {"x": x}, before=graph.output, prefix="second.")
    assert made["y"].name == "second.y"
    total = graph.add("add", {"a": graph["y"], "b": made["y"]}, before=graph.output)
    graph.set_operand(graph.output, "y", total.result)
    assert verify(graph) == []
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(2))
    apart = [qir.run(network(), {"x": each})["y"] for each in (a, b)]
    both = qir.run(graph, {"x": a, "x2": b})["y"]
    assert np.array_equal(both, np.add(*(each.astype(np.float32) for each in apart)))
    assert other == network()


def test_a_graph_can_be_merged_into_itself() -> None:
    graph = network()
    count = len(graph)
    graph.merge(graph, {"x": graph["x"]}, before=graph.output)
    assert len(graph) == 2 * count - 2
    assert sound(graph) == ""


def test_a_merge_that_does_not_fit_changes_nothing() -> None:
    graph, other = network(), network()
    before = str(graph)
    with pytest.raises(GraphError, match="the inputs of net are x; given are z"):
        graph.merge(other, {"z": graph["x"]})
    with pytest.raises(GraphError, match=r"input x of net is 1x3x8x8xf32, %y 1x4xf32"):
        graph.merge(other, {"x": graph["y"]})
    with pytest.raises(GraphError, match="made after"):
        graph.merge(other, {"x": graph["x"]}, before=next(iter(graph)))
    assert str(graph) == before


def test_parts_and_places_may_be_named() -> None:
    graph = network()
    part = graph.extract(["c"], ["r"])
    assert part == graph.extract([graph["c"]], [graph["r"]])
    node = graph.insert_after("c", "neg", name="negated")
    assert graph["r"].node.operands["x"] is node.result
    with pytest.raises(GraphError):
        graph.extract(["nobody"], ["r"])
