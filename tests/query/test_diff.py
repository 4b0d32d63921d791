"""What a comparison of two graphs finds: planted changes, and nothing where there is none."""

import math
import random
import time

import numpy as np
import pytest

from qir.ir.dtype import F32, I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.origin import Lineage, Origin
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.query.diff import GraphChange, GraphDifference, diff
from qir.query.distances import measure
from qir.testing import EVERY, FORMS, random_graph
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program
from tests.query.test_query import LOOP


def anonymous(graph: Graph) -> Graph:
    """The graph with all inner names and lineages made anew."""
    out = graph.copy()
    for i, value in enumerate(list(out.values.values())):
        if value.node.op != "input":
            out.rename(value, f"value{i}")
            out.set_lineage(value, Lineage(value.name))
    return out


def changes(found: GraphDifference) -> list[tuple[str, str, str, str]]:
    """Name, what, where and the new text of every change."""
    return [(p.b, c.what, c.where, c.b) for p in found.changed for c in p.changes]


def only(found: GraphDifference) -> GraphChange:
    """The one change there is."""
    assert (found.only_a, found.only_b, found.graph) == ((), (), ())
    ((change,),) = (pair.changes for pair in found.changed)
    return change


@pytest.mark.parametrize("form", EVERY)
def test_a_graph_differs_from_no_copy_of_itself_whatever_its_values_are_called(form: str) -> None:
    for seed in range(60):
        graph = random_graph(seed, form, decorated=seed % 2 == 0)  # type: ignore[arg-type]
        assert diff(graph, graph.copy()).equal, f"seed {seed}"
        if seed % 2:
            found = diff(graph, anonymous(graph))
            assert found.equal, f"seed {seed}: {found}"
            nodes = sum(len(part) for _, part in graph.walk())
            assert (len(found.pairs), found.nodes) == (nodes, (nodes, nodes))


def test_another_order_of_independent_nodes_is_no_difference() -> None:
    lines = FLOAT.splitlines()
    lines[3], lines[4] = lines[4], lines[3]
    assert lines != FLOAT.splitlines()
    assert diff(program(FLOAT), program("\n".join(lines))).equal


# An edit of the text, and what is to be found, told as name, what, where and the new text.
EDITS = {
    "attribute": (FLOAT, "stride = (2, 2)", "stride = (2, 2), groups = 1, dilation = (1, 1)", []),
    "stride": (
        INTEGER,
        "groups = 6, pad = (1, 1, 1, 1)",
        "groups = 6, pad = (0, 2, 0, 2)",
        [("d", "attribute", "pad", "(0, 2, 0, 2)")],
    ),
    "op": (FLOAT, "%z = relu", "%z = abs", [("z", "op", "", "abs")]),
    "input name": (
        FLOAT.replace("%x", "%first"),
        "%first",
        "%second",
        [("second", "name", "", "second")],
    ),
    "output name": (
        FLOAT,
        "output(z=",
        "output(other=",
        [("output", "operand", "z", "nothing"), ("output", "operand", "other", "%z")],
    ),
    "operand": (
        INTEGER,
        "add(%d, %y)",
        "add(%d, %d)",
        [("s", "operand", "b", "%d")],
    ),
    "shape": (
        FLOAT,
        "(N)x",
        "(M)x",
        [(n, "shape", "", s) for n, s in (("x", "Mx3x8x8"), ("y", "Mx6x4x4"), ("z", "Mx6x4x4"))],
    ),
    "stage": (
        INTEGER,
        "|> relu",
        "|> abs",
        [("y", "op", "", "conv2d |> abs")],
    ),
    "inner type": (
        INTEGER,
        "(1, 1, 1, 1)} |> relu",
        "(1, 1, 1, 1)} : (N)x6x8x8x!quant.uniform<u8:f32, 0.25:3> |> relu",
        [("y", "type", "stage 0", "(N)x6x8x8x!quant.uniform<u8:f32, 0.25:3>")],
    ),
    "profile": (
        FLOAT,
        "4x4xf32\n  output",
        "4x4xf32 as ort\n  output",
        [("z", "profile", "", "ort")],
    ),
    "lost operand": (FLOAT, ", bias=%b", "", [("y", "operand", "bias", "nothing")]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_found_and_nothing_else(edit: str) -> None:
    text, old, new, wanted = EDITS[edit]
    assert old in text
    a, b = program(text), program(text.replace(old, new))
    found = diff(a, b)
    assert changes(found) == wanted
    assert (found.only_a, found.only_b) == ((), ())
    assert found.equal == (not wanted)
    back = diff(b, a)
    mirrored = [(p.a, c.what, c.where, c.a) for p in back.changed for c in p.changes]
    assert sorted(mirrored) == sorted(changes(found))


def coded(quantized: np.ndarray, kind: QuantType, how: tuple[str, ...] = ()) -> Graph:
    """A graph of one constant."""
    graph = Graph()
    value = graph.constant(Array(quantized, TensorType(quantized.shape, kind), "w"), name="w")
    graph.set_lineage(value, Lineage("w", how))
    graph.add("output", {"w": value})
    return graph


def test_moved_codes_are_counted_and_their_largest_step_told() -> None:
    kind = uniform(I8, np.float32(0.5))
    quantized = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
    other = quantized.copy()
    other[0, 1, 2] += 1
    other[1, 0, 0] -= 3
    change = only(diff(coded(quantized, kind), coded(other, kind)))
    assert change.what == "codes"
    assert change.measure is not None
    assert (change.measure.differ, change.measure.elements) == (2, 24)
    assert (change.measure.steps, change.measure.largest) == (3, 3)


def test_a_scale_one_ulp_off_is_told_as_one_ulp() -> None:
    scale = np.float32(0.0235)
    near = np.nextafter(scale, np.float32(1))
    quantized = np.zeros((2, 2), np.int8)
    change = only(diff(coded(quantized, uniform(I8, scale)), coded(quantized, uniform(I8, near))))
    assert change.what == "scale"
    assert change.measure is not None
    assert change.measure.ulps == 1
    assert change.measure.relative == pytest.approx(float(near - scale) / float(near))


def test_scales_along_an_axis_are_compared_one_by_one() -> None:
    scales = np.array([0.5, 0.25, 1.0], np.float32)
    others = scales * np.array([1, 2, 1], np.float32)
    quantized = np.zeros((3, 2), np.int8)
    a, b = (coded(quantized, uniform(I8, s, axis=0)) for s in (scales, others))
    change = only(diff(a, b))
    assert change.measure is not None
    assert (change.measure.differ, change.measure.relative) == (1, 1.0)


def test_weights_and_what_they_were_quantized_to_lie_within_half_a_step() -> None:
    weights = np.random.default_rng(5).normal(0, 1, (4, 6)).astype(np.float32)
    scales = np.abs(weights).max(1) / np.float32(127)
    quantized = np.rint(weights / scales[:, None]).astype(np.int8)
    a, b = Graph(), coded(quantized, uniform(I8, scales, axis=0), ("coded",))
    a.add("output", {"w": a.constant(Array.of(weights), name="w")})
    kind, held = diff(a, b).changed[0].changes
    assert (kind.what, held.what) == ("type", "elements")
    assert held.measure is not None
    gaps = np.abs(weights.astype(np.float64) - quantized * scales[:, None].astype(np.float64))
    assert held.measure.steps == (gaps / scales[:, None]).max() <= 0.5000001
    assert held.measure.largest == gaps.max()


def test_another_layout_of_the_same_codes_is_no_difference_of_codes() -> None:
    quantized = np.random.default_rng(6).integers(-99, 99, (2, 3, 4)).astype(np.int8)
    scales = np.array([0.5, 0.25, 0.125], np.float32)
    perm = (2, 0, 1)
    turned = np.ascontiguousarray(quantized.transpose(perm))
    a = coded(quantized, uniform(I8, scales, axis=1))
    b = coded(turned, uniform(I8, scales, axis=perm.index(1)), (f"permuted{perm}",))
    assert diff(a, b).equal
    turned[0, 0, 0] += 2
    b = coded(turned, uniform(I8, scales, axis=perm.index(1)), (f"permuted{perm}",))
    change = only(diff(a, b))
    assert change.what == "codes"
    assert change.measure is not None
    assert (change.measure.differ, change.measure.steps) == (1, 2)
    assert not diff(a, coded(turned, uniform(I8, scales, axis=2))).equal, "no lineage tells of it"


def test_two_forms_of_one_program_are_matched_through_their_codes() -> None:
    integer = program(INTEGER)
    found = diff(program(QDQ), integer)
    pairs = {pair.a: pair.b for pair in found.pairs}
    assert (pairs["y"], pairs["w"], pairs["x"]) == ("y", "w", "x")
    (conv,) = (c for c in found.changed if c.b == "y")
    assert [c.what for c in conv.changes] == ["op", "type"]


def test_an_op_in_a_chain_is_told_to_be_held_there() -> None:
    a, b = Graph(), Graph()
    for graph in (a, b):
        graph.add("input", types=[TensorType((1, 4), F32)], name="x")
    a.add("relu", {"x": a["x"]}, name="r", origins=[Origin("onnx", "Relu", "/r")])
    a.add("sigmoid", {"x": a["r"]}, name="s", origins=[Origin("onnx", "Sigmoid", "/s")])
    a.add("output", {"s": a["s"]})
    first = Stage("relu", {}, ("x",), origins=(Origin("onnx", "Relu", "/r"),))
    stages = (first, Stage("sigmoid", {}, (), "x"))
    b.add_chain(stages, {"x": b["x"]}, TensorType((1, 4), F32), name="s")
    b.add("output", {"s": b["s"]})
    found = diff(a, b)
    assert [(n.name, n.op, n.held_by) for n in found.only_a] == [("r", "relu", "s")]
    assert changes(found)[0] == ("s", "op", "", "relu |> sigmoid")


def test_bodies_are_compared_as_graphs_of_their_own() -> None:
    found = diff(parse(LOOP), parse(LOOP.replace("%r = relu", "%r = abs")))
    assert not found.changed
    (body,) = found.bodies.items()
    assert body[0] == "y/body"
    assert changes(body[1]) == [("r", "op", "", "abs")]
    assert not found.equal
    assert diff(parse(LOOP), parse(LOOP)).equal


TWO = """graph main as native {
  %x = input() : 4xf32
  %n = input() : i64
  %y, %z = loop(count=%n, vs.0=%x, vs.1=%x) : 4xf32, 4xf32 with body {
    %i = input() : i64
    %go = input() : bool
    %h = input() : 4xf32
    %k = input() : 4xf32
    %s = sub(%h, %k) : 4xf32
    output(go=%go, h=%s, k=%h)
  } as ort-1.31
  output(y=%y, z=%z)
}
"""


def test_what_a_loop_takes_and_gives_goes_by_its_order_and_by_no_name() -> None:
    a = parse(TWO)
    renamed = TWO.replace("go=%go, h=%s, k=%h", "t=%go, u=%s, v=%h").replace("%k", "%other")
    assert diff(a, parse(renamed)).equal
    body = dict(diff(a, parse(TWO.replace("h=%s, k=%h", "k=%h, h=%s"))).bodies)["y/body"]
    assert [what for _, what, *_ in changes(body)] == ["operand", "operand"]
    turned = "%k = input() : 4xf32\n    %h = input() : 4xf32"
    bodies = dict(
        diff(a, parse(TWO.replace("\n    ".join(reversed(turned.split("\n    "))), turned))).bodies
    )
    assert [(c.what, c.a, c.b) for c in bodies["y/body"].graph] == [
        ("order", "i, go, h, k", "i, go, k, h")
    ]


def test_an_inserted_op_is_the_one_difference_of_a_long_chain() -> None:
    a = chain(400)
    b = anonymous(a)
    node = [n for n in b if n.op == "relu"][70]
    made = b.add("tanh", {"x": node.result}).result
    b.replace(node.result, made, except_in=made.node)
    found = diff(a, b)
    assert [n.op for n in found.only_b] == ["tanh"]
    assert not found.only_a
    assert [c.what for p in found.changed for c in p.changes] == ["operand"]


def chain(count: int) -> Graph:
    """Convolutions, activations and sums, one after the other."""
    graph = Graph()
    x = value = graph.add("input", types=[TensorType((1, 2, 4, 4), F32)], name="x").result
    w = graph.constant(Array.of(np.ones((2, 2, 1, 1), np.float32)), name="w")
    for i in range(count):
        if i % 3 == 0:
            value = graph.add("conv2d", {"x": value, "w": w}, name=f"c{i}").result
        elif i % 3 == 1:
            value = graph.add("relu", {"x": value}, name=f"r{i}").result
        else:
            value = graph.add("add", {"a": value, "b": x}, name=f"a{i}").result
    graph.add("output", {"y": value})
    return graph


@pytest.mark.slow
def test_time_grows_with_the_size_and_many_readers_cost_nothing_special() -> None:
    def seconds(graph: Graph) -> float:
        """The least of three first runs: a search of all garbage falls into any one of them."""
        least = math.inf
        for _ in range(3):
            one, other = graph.copy(), anonymous(graph)
            start = time.process_time()
            assert diff(one, other).equal
            least = min(least, time.process_time() - start)
        return least

    star = Graph()
    x = star.add("input", types=[TensorType((1, 4), F32)], name="x").result
    star.add("output", {f"y{i}": star.add("relu", {"x": x}).result for i in range(3000)})
    small = seconds(chain(1500))
    assert seconds(chain(6000)) < 13 * max(small, 0.02)
    assert seconds(star) < 13 * max(small, 0.02)


def test_any_two_graphs_can_be_compared_and_the_two_ways_round_agree() -> None:
    rng = random.Random(11)
    for seed in range(80):
        a, b = (random_graph(rng.randrange(1 << 20), rng.choice(FORMS)) for _ in range(2))
        one, other = diff(a, b), diff(b, a)
        assert one.equal == other.equal, f"seed {seed}"
        assert len(one.pairs) + len(one.only_a) == len(a)
        assert len(one.pairs) + len(one.only_b) == len(b)
        names = [p.a for p in one.pairs], [p.b for p in one.pairs]
        assert all(len(set(side)) == len(side) for side in names)


def test_distances_are_those_of_numpy() -> None:
    rng = np.random.default_rng(12)
    for kind in (np.float16, np.float32, np.float64):
        a = rng.normal(0, 1, 50).astype(kind)
        up = a.copy()
        for _ in range(3):
            up = np.nextafter(up, kind(np.inf))
        found = measure(a, up)
        assert found is not None
        assert found.ulps == 3
        assert found.largest == np.abs(a.astype(np.float64) - up.astype(np.float64)).max()
    across = measure(np.array([-1e-45], np.float32), np.array([1e-45], np.float32))
    assert across is not None
    assert across.ulps == 2
    wide = measure(np.array([2**63 - 1]), np.array([-(2**63)]))
    assert wide is not None
    assert wide.largest == float(2**64)
    assert measure(np.zeros(2), np.zeros(3)) is None
    nan = measure(np.array([np.nan, 1], np.float32), np.array([np.nan, np.inf], np.float32))
    assert nan is not None
    assert (nan.differ, nan.largest) == (1, None)


def test_a_map_of_other_storage_is_told_and_its_reals_compared() -> None:
    quantized = np.arange(-8, 8, dtype=np.int8)
    a = coded(quantized, uniform(I8, np.float32(0.5)))
    b = coded(
        (quantized.astype(np.int16) + 128).astype(np.uint8), uniform(U8, np.float32(0.5), 128)
    )
    assert [(w, where) for _, w, where, _ in changes(diff(a, b))] == [("type", ""), ("zero", "")]


def test_graphs_with_types_of_every_kind_can_be_compared() -> None:
    for seed in range(60):
        a, b = (random_graph(s, "integer", decorated=True) for s in (seed, seed + 1))
        said = str(diff(a, b))
        assert said != "no difference", f"seed {seed}"


@pytest.mark.parametrize("kind", ["f4", "f2", "i1", "i8", "u8"])
def test_what_is_measured_in_parts_is_measured_as_a_whole(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 20261122
    rng = np.random.default_rng(seed)
    for case in range(30):
        shape = tuple(rng.integers(1, 9, rng.integers(0, 4)))
        data = rng.integers(0, 256, (*shape, np.dtype(kind).itemsize), np.uint8)
        a = data.view(kind).reshape(shape)
        b = a.copy()
        moved = rng.random(shape) < 0.2
        b[moved] = rng.permutation(a[moved])
        if case % 3 == 0:
            a, b = a.T, b.T
        step = np.asarray(rng.random(a.shape) + 0.5) if case % 2 else None
        with np.errstate(all="ignore"):
            whole = measure(a, b, step)
            with monkeypatch.context() as patch:
                patch.setattr("qir.query.distances._PART_SIZE", 16)
                assert measure(a, b, step) == whole, f"seed {seed}, case {case}"
