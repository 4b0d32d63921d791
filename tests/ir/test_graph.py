"""A graph stays in order, and its uses, edges and names stay one fact, whatever is edited."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from qir.errors import GraphError, TypeRuleError
from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Use, Value
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import Scheme
from qir.ir.text import parse, print_graph
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify import verify
from qir.testing import FORMS, random_graph
from tests.ir.alike import difference

KIND = TensorType((2, 3), F32)


def start(*names: str) -> tuple[Graph, list[Value]]:
    graph = Graph()
    return graph, [graph.add("input", types=[KIND], name=n).result for n in names or ("x",)]


def sound(graph: Graph) -> str:
    """What of a graph's bookkeeping is wrong, found from the nodes alone, or nothing."""
    nodes = list(graph)
    place = {node: i for i, node in enumerate(nodes)}
    if nodes != list(reversed(graph))[::-1] or len(graph) != len(nodes):
        return "the order differs from the two ends"
    edges = {(v.node, n, s) for n in nodes for s, v in n.operands.items()}
    if {(a, b, k) for a, b, k in graph.nx.edges(keys=True)} != edges:
        return "edges"
    if set(graph.nx.nodes) != set(nodes):
        return "vertices"
    uses = {(v, Use(n, s)) for n in nodes for s, v in n.operands.items()}
    if {(v, u) for n in nodes for v in n.results for u in v.uses} != uses:
        return "uses"
    if {v.name: v for n in nodes for v in n.results} != dict(graph.values):
        return "names"
    if any(place[a] >= place[b] for a, b, _ in edges):
        return "order"
    if any(a._rank >= b._rank for a, b in pairwise(nodes)):
        return "ranks"
    return "" if nx.is_directed_acyclic_graph(graph.nx) else "a cycle"


# -- order ------------------------------------------------------------------------------------


def test_a_graph_is_itself_without_being_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that hold graphs by weak references ask just that."""
    graph = random_graph(3, "float")
    monkeypatch.setattr("qir.ir.graph.print_graph", None)
    assert graph == graph


@pytest.mark.parametrize("seed", range(30))
def test_random_edits_keep_order_uses_edges_and_names(seed: int) -> None:
    rng = random.Random(seed)
    graph, values = start("x", "y")
    for step in range(200):
        nodes = list(graph)
        node = rng.choice(nodes)
        value = rng.choice(list(graph.values.values()))
        was = print_graph(graph)
        cycle = False
        match rng.randrange(8):
            case 0 | 1 | 2:
                before = rng.choice([*nodes, None, None])
                ready = nodes if before is None else nodes[: nodes.index(before)]
                if ready:
                    a, b = rng.choice(ready).result, rng.choice(ready).result
                    graph.add("add", {"a": a, "b": b}, before=before)
            case 3 | 4 if node.operands:
                cycle = node in nx.ancestors(graph.nx, value.node) | {value.node}
                if cycle:
                    with pytest.raises(GraphError, match="its own result"):
                        graph.set_operand(node, rng.choice("ab"), value)
                else:
                    graph.set_operand(node, rng.choice("ab"), value)
            case 5:
                other = rng.choice(list(graph.values.values()))
                users = {u.node for u in value.uses}
                above = nx.ancestors(graph.nx, other.node) | {other.node}
                cycle = other is not value and bool(users & above)
                if cycle:
                    with pytest.raises(GraphError, match="its own result"):
                        graph.replace(value, other)
                else:
                    graph.replace(value, other)
                    assert other is value or not value.uses
            case 6 if not node.used:
                graph.remove(node)
            case 7:
                graph.rename(value, graph.fresh(rng.choice(["r", "s"])))
        assert sound(graph) == "", f"seed {seed}, step {step}"
        if cycle:
            assert print_graph(graph) == was, f"seed {seed}, step {step}"
        if not graph.values:
            values = [graph.add("input", types=[KIND], name="x").result]
    assert values


@pytest.mark.parametrize("where", ["front", "back", "before one", "after one"])
def test_many_insertions_at_one_place_stay_in_order_and_fast(where: str) -> None:
    graph, (x,) = start()
    y = graph.add("relu", {"x": x})
    graph.add("output", {"y": y.result})
    place: Node | None = {"front": x.node, "back": None, "before one": y, "after one": y}[where]
    started = time.process_time()
    wanted = list(graph)
    at = {"front": 0, "back": 3, "before one": 1, "after one": 1}[where]
    for i in range(4000):
        made = graph.add("input", types=[KIND], name="i", before=place)
        wanted.insert(at if where in ("front", "after one") else at + i, made)
        if where in ("front", "after one"):
            place = made
    assert time.process_time() - started < 5
    assert list(graph) == wanted
    assert sound(graph) == ""


def test_two_uses_of_one_value_are_two() -> None:
    graph, (x,) = start()
    y = graph.add("add", {"a": x, "b": x})
    assert len(x.uses) == 2
    assert x.users == (y,)
    assert x.only_use is None
    assert graph.nx.number_of_edges(x.node, y) == 2
    graph.set_operand(y, "b", graph.add("relu", {"x": x}, before=y).result)
    assert Use(y, "b") not in x.uses
    assert graph.nx.number_of_edges(x.node, y) == 1
    assert sound(graph) == ""


def test_a_later_producer_moves_up_with_all_it_needs() -> None:
    graph, (x,) = start()
    first = graph.add("relu", {"x": x}, name="first")
    a = graph.add("sigmoid", {"x": x}, name="a")
    b = graph.add("sigmoid", {"x": a.result}, name="b")
    graph.add("relu", {"x": b.result}, name="unmoved")
    graph.set_operand(first, "x", b.result)
    assert [n.name for n in graph] == ["x", "a", "b", "first", "unmoved"]
    assert sound(graph) == ""


def test_an_edit_that_would_close_a_cycle_is_refused_and_changes_nothing() -> None:
    graph, (x,) = start()
    a = graph.add("add", {"a": x, "b": x}, name="a")
    b = graph.add("relu", {"x": a.result}, name="b")
    c = graph.add("relu", {"x": x}, name="c")
    was, version = print_graph(graph), graph.version
    for node, value in ((a, b.result), (a, a.result), (b, b.result)):
        with pytest.raises(GraphError, match="would need its own result"):
            graph.set_operand(node, next(iter(node.operands)), value)
    with pytest.raises(GraphError, match="a would need its own result, through b"):
        graph.replace(x, b.result)  # of x's users c could take it, a could not
    assert (print_graph(graph), graph.version) == (was, version)
    assert c.operands["x"] is x
    assert sound(graph) == ""


def test_a_place_before_an_operand_is_refused() -> None:
    graph, (x,) = start()
    y = graph.add("relu", {"x": x}, name="y")
    with pytest.raises(GraphError, match="relu: %y is made after y"):
        graph.add("relu", {"x": y.result}, before=y)
    assert sound(graph) == ""


# -- editing ----------------------------------------------------------------------------------


def test_replace_gives_every_use_another_value_and_counts_them() -> None:
    graph, (x, z) = start("x", "z")
    graph.add("add", {"a": x, "b": x})
    y = graph.add("relu", {"x": x}, name="y")
    graph.add("output", {"o": x})
    assert graph.replace(x, z, except_in=y) == 3
    assert [use.node for use in x.uses] == [y]
    assert len(z.uses) == 3
    assert graph.replace(x, x) == 0
    assert sound(graph) == ""


def test_what_stands_for_a_node_has_its_uses_name_and_lineage() -> None:
    graph, (x, z) = start("x", "z")
    first = graph.add("relu", {"x": x}, name="first")
    last = graph.add("neg", {"x": first.result}, name="last")
    graph.set_lineage(last.result, Lineage("t", ("coded",)))
    made = graph.add("sqrt", {"x": z}, name="made").result
    graph.add("output", {"o": last.result})
    graph.substitute(last, made, gone=(first,))
    assert graph.outputs["o"] is made
    assert (made.name, made.lineage) == ("last", Lineage("t", ("coded",)))
    assert sorted(graph.values) == ["last", "x", "z"]
    assert sound(graph) == ""


def test_an_output_keeps_its_place_among_the_others() -> None:
    graph, (x, z) = start("x", "z")
    graph.add("output", {"a": x, "b": z, "c": x})
    y = graph.add("relu", {"x": x}, before=graph.output).result
    graph.replace(x, y, except_in=y.node)
    graph.set_operand(graph.output, "b", x)
    assert [(s, v.name) for s, v in graph.outputs.items()] == [
        ("a", "relu"),
        ("b", "x"),
        ("c", "relu"),
    ]
    assert sound(graph) == ""


def test_a_value_in_use_keeps_its_node_and_the_refusal_names_the_user() -> None:
    graph, (x,) = start()
    y = graph.add("relu", {"x": x}, name="y")
    with pytest.raises(GraphError, match="cannot remove x: y uses %x"):
        graph.remove(x.node)
    graph.remove(y)
    assert not x.uses
    assert not graph.has("y")
    assert sound(graph) == ""
    with pytest.raises(GraphError, match="was removed"):
        graph.remove(y)
    with pytest.raises(GraphError, match="was removed"):
        graph.set_operand(y, "x", x)


def test_prune_takes_out_what_reaches_no_output_and_keeps_inputs() -> None:
    graph, (x, _) = start("x", "unused")
    kept = graph.add("relu", {"x": x}, name="kept")
    a = graph.add("relu", {"x": x}, name="a")
    b = graph.add("add", {"a": a.result, "b": kept.result}, name="b")
    graph.add("sigmoid", {"x": b.result}, name="c")
    graph.add("output", {"y": kept.result})
    assert graph.prune() == 3
    assert [n.name for n in graph] == ["x", "unused", "kept", "output"]
    version = graph.version
    assert graph.prune() == 0
    assert graph.version == version
    assert sound(graph) == ""


@pytest.mark.parametrize("seed", range(9))
def test_a_pruned_graph_is_what_the_output_needs(seed: int) -> None:
    graph = random_graph(seed, FORMS[seed % 3], decorated=True)
    needed = nx.ancestors(graph.nx, graph.output) | {graph.output}
    names = [n.name for n in graph if n in needed or n.op == "input"]
    graph.prune()
    assert [n.name for n in graph] == names


def test_a_taken_name_gets_a_number() -> None:
    graph, (x,) = start()
    names = [graph.add("relu", {"x": x}, name="x").name for _ in range(3)]
    assert names == ["x_1", "x_2", "x_3"]
    pair = graph.add(
        "foreign", {}, {"framework": "f", "op": "o"}, types=[KIND, KIND, KIND], name=["x", "x", "q"]
    )
    assert len({v.name for v in pair.results}) == 3
    assert all(graph[v.name] is v for v in pair.results)
    with pytest.raises(GraphError, match="the name %x_1 is taken"):
        graph.rename(x, "x_1")
    with pytest.raises(GraphError, match="no value %nobody"):
        graph["nobody"]
    assert sound(graph) == ""


def test_nodes_of_another_graph_are_refused() -> None:
    graph, (x,) = start()
    other, (z,) = start("z")
    with pytest.raises(GraphError, match="%z in x is of another graph"):
        graph.add("relu", {"x": z})
    y = graph.add("relu", {"x": x})
    with pytest.raises(GraphError, match="z is of another graph"):
        graph.set_operand(y, "x", z)
    with pytest.raises(GraphError, match="z is of another graph"):
        graph.replace(x, z)
    with pytest.raises(GraphError, match="z is of another graph"):
        graph.add("relu", {"x": x}, before=z.node)
    with pytest.raises(GraphError, match="z is of another graph"):
        graph.remove(z.node)
    assert sound(graph) == ""
    assert sound(other) == ""


def test_an_op_is_added_only_with_what_it_takes() -> None:
    graph, (x,) = start()
    with pytest.raises(TypeRuleError, match="no op 'rely'; did you mean relu"):
        graph.add("rely", {"x": x})
    with pytest.raises(TypeRuleError, match="relu has no slot y; its slots: x"):
        graph.add("relu", {"x": x, "y": x})
    with pytest.raises(TypeRuleError, match="add needs b"):
        graph.add("add", {"a": x})
    with pytest.raises(TypeRuleError, match="clip has no attribute mn; did you mean min"):
        graph.add("clip", {"x": x}, {"mn": 0.0})
    with pytest.raises(TypeRuleError, match="min = '0' is not float"):
        graph.add("clip", {"x": x}, {"min": "0"})
    with pytest.raises(TypeRuleError, match="relu makes 1 values, 2 types are given"):
        graph.add("relu", {"x": x}, types=[KIND, KIND])
    with pytest.raises(TypeRuleError, match="concat has no slot xs"):
        graph.add("concat", {"xs": x}, {"axis": 0})
    with pytest.raises(TypeRuleError, match="input: its result types are to be given"):
        graph.add("input")
    y = graph.add("relu", {"x": x})
    with pytest.raises(TypeRuleError, match="relu has no slot nothing"):
        graph.set_operand(y, "nothing", x)
    assert len(graph) == 2
    assert sound(graph) == ""


def test_attributes_are_taken_as_patterns_take_them() -> None:
    graph, (x,) = start()
    clip = graph.add("clip", {"x": x}, {"max": 3})
    assert (type(clip.attrs["max"]), clip.attrs["max"]) == (float, 3.0)
    turn = graph.add("transpose", {"x": x}, {"perm": [1, 0]})  # type: ignore[dict-item]
    assert turn.attrs["perm"] == (1, 0)
    graph.set_attrs(clip, min=-1)
    assert repr(clip.attrs["min"]) == "-1.0"
    for wrong in (True, 10**400, [1.0], "1"):
        with pytest.raises(TypeRuleError, match="is not float"):
            graph.add("clip", {"x": x}, {"max": wrong})  # type: ignore[dict-item]
    for odd in ([1.0, 0], [[1], [0]], [True, False], "10", 1):
        with pytest.raises(TypeRuleError, match="is not ints"):
            graph.add("transpose", {"x": x}, {"perm": odd})  # type: ignore[dict-item]
    assert sound(graph) == ""


def test_a_chain_is_added_only_whole() -> None:
    graph, (x,) = start()
    relu = Stage("relu", {}, ("x",))
    then = Stage("relu", {}, (), "x")
    with pytest.raises(GraphError, match="a chain of 1 stages"):
        graph.add_chain([relu], {"x": x}, KIND)
    with pytest.raises(GraphError, match="a chain wants x, it is given y"):
        graph.add_chain([relu, then], {"y": x}, KIND)
    with pytest.raises(GraphError, match="stage 1, relu: the flow"):
        graph.add_chain([relu, relu], {"x": x, "1.x": x}, KIND)
    with pytest.raises(TypeRuleError, match="conv2d needs x"):
        graph.add_chain([Stage("conv2d", {}, ("bias",)), then], {"bias": x}, KIND)
    with pytest.raises(TypeRuleError, match="relu has no slot more"):
        graph.add_chain([relu, Stage("relu", {}, ("more",), "x")], {"x": x, "1.more": x}, KIND)
    with pytest.raises(GraphError, match="the last stage's type is the group's"):
        graph.add_chain([relu, Stage("relu", {}, (), "x", KIND)], {"x": x}, KIND)
    made = graph.add_chain([relu, then, then], {"x": x}, KIND, name="y")
    assert made.stage_operands(0) == {"x": x}
    assert str(made) == str(made)
    assert sound(graph) == ""


def test_one_output_is_enough() -> None:
    graph, (x,) = start()
    with pytest.raises(GraphError, match="has no output"):
        graph.output  # noqa: B018
    graph.add("output", {"y": x})
    with pytest.raises(GraphError, match="has an output already"):
        graph.add("output", {"y": x})
    graph.remove(graph.output)
    graph.add("output", {"z": x})
    assert dict(graph.outputs) == {"z": x}


# -- copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_is_equal_and_lives_alone(seed: int) -> None:
    graph = random_graph(seed, FORMS[seed % 3], decorated=True)
    was = print_graph(graph, origins=True)
    twin = graph.copy()
    assert difference(graph, twin, history=True) == ""
    assert twin == graph
    assert sound(twin) == ""
    for node in list(twin):
        twin.set_origins(node, [Origin("elsewhere")])
        twin.set_scheme(node, "x", Scheme(U8))
        twin.set_slot_origins(node, "x", [Origin("elsewhere")])
        for value in node.results:
            twin.set_lineage(value, Lineage("elsewhere"))
            twin.set_type(value, KIND)
    twin.remove(twin.output)
    twin.prune()
    assert print_graph(graph, origins=True) == was
    assert sound(graph) == ""


def test_graphs_differ_where_anything_is_different() -> None:
    text = """graph main as native {
      %x = input() : 2x3xf32
      %c = constant([1.0, 2.0, 3.0]) : 3xf32
      %y = add(%x, %c) : 2x3xf32
      %z = clip(%y) {min = 0.0} : 2x3xf32
      output(z=%z)
    }"""
    graph = parse(text)
    for old, new in (
        ("main", "other"),
        ("native", "ort"),
        ("2x3xf32", "2x3xf16"),
        ("3.0]", "4.0]"),
        ("min = 0.0", "min = -0.0"),
        ("add(%x, %c)", "add(%c, %x)"),
        ("add", "sub"),
        ("(z=", "(out="),
        ("%y", "%why"),
    ):
        assert parse(text.replace(old, new)) != graph, (old, new)
    assert parse(text) == graph
    assert graph != "graph"


# -- networkx ---------------------------------------------------------------------------------


def test_networkx_reads_a_graph_and_cannot_write_to_it() -> None:
    graph, (x,) = start()
    view = graph.nx
    y = graph.add("add", {"a": x, "b": x}, name="y")
    assert view is graph.nx
    assert y in view  # it sees later edits
    assert list(nx.topological_sort(view)) == [x.node, y]
    assert nx.ancestors(view, y) == {x.node}
    assert nx.dag_longest_path_length(nx.DiGraph(view)) == 1
    assert dict(nx.immediate_dominators(view, x.node))[y] is x.node
    writes: tuple[Callable[[], object], ...] = (
        lambda: view.add_node(Node("relu", {})),
        lambda: view.add_edge(y, x.node),
        lambda: view.remove_node(y),
        lambda: view.remove_edge(x.node, y),
        lambda: view.clear(),
        lambda: view.add_edges_from([(y, x.node)]),
        lambda: view.update(edges=[(y, x.node)]),
    )
    for write in writes:
        with pytest.raises(nx.NetworkXError, match="Frozen"):
            write()
    graph.remove(y)
    assert y not in view
    assert sound(graph) == ""


def test_what_is_written_into_edge_data_changes_nothing() -> None:
    graph, (x,) = start()
    y = graph.add("relu", {"x": x}, name="y").result
    graph.add("output", {"o": y})
    was = print_graph(graph)
    for _, _, data in graph.nx.edges(data=True):
        data.clear()
        data["result"] = 7
    assert print_graph(graph) == print_graph(graph.copy()) == was
    assert verify(graph) == []
    graph.replace(y, graph.add("sigmoid", {"x": x}, name="z").result)
    assert graph.prune() == 1
    assert sound(graph) == ""


# -- only a graph's methods change it ---------------------------------------------------------


def test_what_nodes_and_values_show_cannot_be_written_to() -> None:
    graph, (x,) = start()
    soft = graph.add("softmax", {"x": x}, {"axis": -1}, name="s")
    attrs = {"axis": 1}
    stages = [Stage("softmax", attrs, ("x",)), Stage("relu", {}, (), "x")]
    group = graph.add_chain(stages, {"x": x}, KIND)
    attrs["axis"] = 0
    assert group.stages[0].attrs == {"axis": 1}
    views: list[object] = [graph.values, x.uses, group.stages[0].attrs]
    views += [soft.attrs, soft.operands, soft.schemes, soft.slot_origins]
    for view in views:
        with pytest.raises(TypeError, match="does not support item"):
            view["axis"] = 0  # type: ignore[index]
    for name in ("attrs", "operands", "schemes", "slot_origins"):
        with pytest.raises(AttributeError):
            setattr(soft, name, {})
    graph.set_attrs(soft, axis=0)
    assert soft.attrs == {"axis": 0}
    graph.set_slot_origins(soft, "x", [Origin("onnx")])
    assert soft.slot_origins == {"x": (Origin("onnx"),)}
    graph.set_slot_origins(soft, "x", [])
    assert soft.slot_origins == {}


CHAIN = (Stage("relu", {}, ("x",)), Stage("relu", {}, (), "x"))
EDITS: tuple[Callable[[Graph, Value, Value], object], ...] = (
    lambda g, x, v: g.add("relu", {"x": v}),
    lambda g, x, v: g.add("output", {"o": v}),
    lambda g, x, v: g.add_chain(CHAIN, {"x": v}, KIND),
    lambda g, x, v: g.add("relu", {"x": x}, before=v.node),
    lambda g, x, v: g.rename(v, "new"),
    lambda g, x, v: g.replace(v, x),
    lambda g, x, v: g.replace(x, v),
    lambda g, x, v: g.set_type(v, KIND),
    lambda g, x, v: g.set_lineage(v, Lineage("new")),
    lambda g, x, v: g.set_attrs(v.node),
    lambda g, x, v: g.set_origins(v.node, []),
    lambda g, x, v: g.set_slot_origins(v.node, "x", []),
    lambda g, x, v: g.set_profile(v.node, None),
    lambda g, x, v: g.set_scheme(v.node, "x", None),
    lambda g, x, v: g.set_operand(v.node, "x", x),
    lambda g, x, v: g.remove(v.node),
)


@pytest.mark.parametrize("edit", range(len(EDITS)))
def test_no_method_takes_what_is_of_another_graph_or_was_removed(edit: int) -> None:
    graph, (x,) = start()
    other, (z,) = start("z")
    gone = graph.add("relu", {"x": x}).result
    graph.remove(gone.node)
    for value in (z, gone):
        with pytest.raises(GraphError, match="of another graph"):
            EDITS[edit](graph, x, value)
    assert sound(graph) == sound(other) == ""
    assert (len(graph), len(other)) == (1, 1)


def test_edges_are_keyed_by_slot() -> None:
    graph, (x, z) = start("x", "z")
    y = graph.add("concat", {"xs.0": x, "xs.1": z, "xs.2": x}, {"axis": 0})
    assert {(a.name, k) for a, _, k in graph.nx.in_edges(y, keys=True)} == {
        ("x", "xs.0"),
        ("z", "xs.1"),
        ("x", "xs.2"),
    }
    assert y.variadic("xs") == [x, z, x]


# -- time -------------------------------------------------------------------------------------


def test_two_thousand_uses_are_replaced_at_once() -> None:
    graph, (x, z) = start("x", "z")
    for _ in range(2000):
        graph.add("relu", {"x": x})
    late = graph.add("relu", {"x": z}).result
    started = time.process_time()
    assert graph.replace(x, late) == 2000
    assert time.process_time() - started < 1
    assert sound(graph) == ""


def test_arrays_of_one_name_are_told_apart_in_linear_time() -> None:
    graph = Graph()
    for i in range(3000):
        scales = Array.of(np.arange(9, dtype=np.float32) + (i + 1), "same")
        kind = TensorType((9,), QuantType(U8, scale=scales, granularity=Granularity(((0, 1),))))
        graph.add("input", types=[kind])
    started = time.process_time()
    text = print_graph(graph)
    assert time.process_time() - started < 2
    assert text.count("array @same") == 3000
    assert graph.copy() == graph


def test_what_is_no_value_is_refused_and_elements_become_a_constant() -> None:
    graph = Graph()
    with pytest.raises(GraphError, match="relu: x is int, it takes a value"):
        graph.add("relu", {"x": 3})  # type: ignore[dict-item]
    value = graph.constant(np.ones(3), name="k")
    assert str(value.type) == "3xf64"
    assert graph.constant([[1, 2]]).type.dtype.name == "i64"
