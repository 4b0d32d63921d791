"""What passes keep on any graph: its meaning, its form, and their own word about changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F64
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.text import print_graph
from qir.ir.types import Array, TensorType
from qir.ir.verify import verify
from qir.ledger import Change, Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes
from qir.testing import FORMS, graphs, random_graph, sample_inputs
from tests.ir.alike import difference

PASSES: tuple[Pass, ...] = (Prune(), FoldConstants(), FoldBatchNorm(), FuseQdq(), ExpandQdq())


def bits(arrays: dict[str, NDArray[np.generic]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {n: (str(a.dtype), a.shape, a.tobytes()) for n, a in arrays.items()}


@pytest.mark.parametrize("one", PASSES, ids=lambda p: p.name)
@settings(max_examples=25)
@given(graph=graphs())
def test_a_pass_keeps_any_graph_well_formed_and_a_second_run_finds_nothing(
    one: Pass, graph: Graph
) -> None:
    was = print_graph(graph, origins=True)
    once = run_passes(graph, [one], Ledger())
    assert print_graph(graph, origins=True) == was
    assert [f for f in verify(once) if f.severity == "error"] == []
    assert [v.type for v in once.inputs] == [v.type for v in graph.inputs]
    assert list(once.outputs) == list(graph.outputs)
    again = once.copy()
    assert one.run(again, Ledger()) == 0
    assert difference(once, again, history=True) == ""


@pytest.mark.parametrize("one", PASSES, ids=lambda p: p.name)
def test_no_change_reported_is_no_change(one: Pass) -> None:
    seen = {True: 0, False: 0}
    for seed in range(40):
        graph = random_graph(seed, FORMS[seed % 3])
        was, version = print_graph(graph, origins=True), graph.version
        ledger = Ledger()
        changed = one.run(graph, ledger) > 0
        seen[changed] += 1
        assert changed == (print_graph(graph, origins=True) != was), f"seed {seed}"
        assert changed == (graph.version != version), f"seed {seed}"
        assert changed or len(ledger) == 0, f"seed {seed}"
    assert seen[False]
    assert seen[True]


@pytest.mark.parametrize("seed", range(20))
def test_pruning_and_folding_constants_keep_every_bit(seed: int) -> None:
    graph = random_graph(seed, "qdq" if seed % 2 else "float")
    inputs = sample_inputs(graph, seed)
    after = run_passes(graph, [Prune(), FoldConstants()], Ledger())
    assert bits(run(after, inputs)) == bits(run(graph, inputs)), f"seed {seed}"


# -- fold-batch-norm --------------------------------------------------------------------------

NORM = ("gamma", "beta", "mean", "var")
Make = Callable[[Graph, np.random.Generator], tuple[Value, int]]


def double(graph: Graph, name: str, data: NDArray[np.floating]) -> Value:
    return graph.constant(Array.of(np.asarray(data, np.float64)), name=name)


def conv(groups: int, layout: str, bias: bool) -> Make:
    def make(graph: Graph, rng: np.random.Generator) -> tuple[Value, int]:
        shape = (2, 4, 5, 5) if layout == "NCHW" else (2, 5, 5, 4)
        x = graph.add("input", types=[TensorType(shape, F64)], name="x").result
        operands = {"x": x, "w": double(graph, "w", rng.normal(size=(8, 4 // groups, 3, 3)))}
        if bias:
            operands["bias"] = double(graph, "b", rng.normal(size=8))
        attrs: dict[str, Attr] = {"groups": groups, "layout": layout, "pad": (1, 0, 1, 0)}
        return graph.add("conv2d", operands, attrs).result, 1 if layout == "NCHW" else -1

    return make


def product(op: str, bias: bool, **attrs: Attr) -> Make:
    def make(graph: Graph, rng: np.random.Generator) -> tuple[Value, int]:
        x = graph.add("input", types=[TensorType((3, 4), F64)], name="x").result
        turned = op == "linear" or attrs.get("trans_b") is True
        w = double(graph, "w", rng.normal(size=(6, 4) if turned else (4, 6)))
        slots = {"linear": ("x", "w", "bias"), "gemm": ("a", "b", "c")}.get(op, ("a", "b", "bias"))
        values = [x, w, *([double(graph, "b", rng.normal(size=6))] if bias else [])]
        operands = dict(zip(slots, values, strict=False))
        return graph.add(op, operands, attrs).result, 1

    return make


FOLDED = {
    "dense": conv(1, "NCHW", True),
    "no bias": conv(1, "NCHW", False),
    "groups": conv(2, "NCHW", True),
    "depthwise": conv(4, "NCHW", False),
    "channels last": conv(1, "NHWC", True),
    "linear": product("linear", True),
    "linear without bias": product("linear", False),
    "matmul": product("matmul", True),
    "matmul turned": product("matmul", False, trans_b=True),
    "gemm": product("gemm", True, alpha=0.75),
    "gemm turned": product("gemm", False, trans_b=True),
}


def normalized(make: Make, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    graph = Graph()
    value, axis = make(graph, rng)
    size = value.type.shape[axis]
    assert isinstance(size, int)
    rows = {slot: double(graph, slot, rng.normal(size=size)) for slot in NORM[:3]}
    rows["var"] = double(graph, "var", rng.uniform(0.1, 2, size))
    made = graph.add("batch_norm", {"x": value, **rows}, {"axis": axis, "eps": 1e-3})
    graph.add("output", {"y": made.result})
    return graph


@pytest.mark.parametrize("case", FOLDED)
def test_a_folded_normalization_is_equal_in_reals(case: str) -> None:
    for seed in range(5):
        graph = normalized(FOLDED[case], seed)
        ledger = Ledger()
        after = run_passes(graph, [FoldBatchNorm()], ledger)
        assert "batch_norm" not in {n.op for n in after}, f"seed {seed}"
        assert [e.change for e in ledger] == [Change.REGROUPED]
        inputs = sample_inputs(graph, seed)
        wanted, found = run(graph, inputs)["y"], run(after, inputs)["y"]
        assert np.allclose(found.astype(float), wanted.astype(float), 1e-12, 1e-12), f"seed {seed}"


def test_folding_keeps_the_name_the_lineage_and_both_origins() -> None:
    graph = normalized(FOLDED["dense"], 1)
    for node in graph:
        graph.set_origins(node, [Origin("onnx", node.op, node.name)])
    after = run_passes(graph, [FoldBatchNorm()], Ledger())
    node = after.outputs["y"].node
    assert (node.name, node.op) == ("batch_norm", "conv2d")
    assert [o.op for o in node.origins] == ["conv2d", "batch_norm"]
    assert node.result.lineage == graph["batch_norm"].lineage
    assert node.operands["w"].lineage.how == ("scaled",)


# -- fuse and expand --------------------------------------------------------------------------


def meaning(value: Value, known: dict[Value, int]) -> int:
    """A number that is one for values computed alike, whatever their names."""
    if value not in known:
        node = value.node
        operands = tuple((s, meaning(v, known)) for s, v in sorted(node.operands.items()))
        name = value.name if node.op == "input" else ""
        attrs = tuple(sorted((k, str(v)) for k, v in node.attrs.items() if k != "data"))
        data = node.result.constant.digest if node.result.constant else ""
        what = (node.op, name, attrs, data, str(value.type), node.origins, node.profile, operands)
        known[value] = hash(what)
    return known[value]


def has_only_floats(node: Node) -> bool:
    return all(v.type.quant is None for v in (*node.operands.values(), *node.results))


@pytest.mark.parametrize("seed", range(60))
def test_what_fuse_qdq_wraps_expand_qdq_gives_back(seed: int) -> None:
    graph = random_graph(seed, "qdq")
    for node in graph:
        graph.set_origins(node, [Origin("onnx", node.op, node.name)])
    fused = run_passes(graph, [FuseQdq()], Ledger())
    back = run_passes(fused, [ExpandQdq()], Ledger())
    known: dict[Value, int] = {}
    wanted = {slot: meaning(v, known) for slot, v in graph.outputs.items()}
    assert {slot: meaning(v, known) for slot, v in back.outputs.items()} == wanted, f"seed {seed}"
    read = [v for v in back.values.values() if v.type.quant]
    assert all(sum(u.op == "dequantize" for u in v.users) <= 1 for v in read), f"seed {seed}"
    assert all(has_only_floats(n) for n in back if n.op not in CODES), f"seed {seed}"


CODES = {"input", "constant", "quantize", "dequantize", "output"}


def test_most_generated_networks_have_something_to_fuse() -> None:
    counts = [FuseQdq().run(random_graph(seed, "qdq"), Ledger()) for seed in range(60)]
    assert sum(c > 0 for c in counts) > 30


@pytest.mark.parametrize("seed", range(40))
def test_expanded_codes_are_computed_in_reals_and_keep_their_types(seed: int) -> None:
    graph = random_graph(seed, "integer")
    after = run_passes(graph, [ExpandQdq()], Ledger())
    assert {s: v.type for s, v in after.outputs.items()} == {
        s: v.type for s, v in graph.outputs.items()
    }
    assert not any(n.stages for n in after)
    assert all(has_only_floats(n) for n in after if n.op not in CODES), f"seed {seed}"
    run(after, sample_inputs(graph, seed))  # and it computes


def test_a_raw_bias_that_two_kernels_read_gets_the_unit_of_each() -> None:
    from qir.ir.text import parse

    graph = parse("""graph main as native {
      %x = input() : 1x1x2x2x!quant.uniform<u8:f32, 0.5:3>
      %b = constant([8, -8]) : 2xi32
      %w = input() : 2x1x1x1x!quant.uniform<i8:f32, 0.25>
      %v = input() : 2x1x1x1x!quant.uniform<i8:f32:0, {0.125, 0.0625}>
      %y = conv2d(%x, %w, bias=%b) : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      %z = conv2d(%x, %v, bias=%b) : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
      output(y=%y, z=%z)
    }""")
    after = run_passes(graph, [ExpandQdq()], Ledger())
    units = []
    for name in ("y", "z"):
        conv = after.outputs[name].node.operands["x"].node
        quant = conv.operands["bias"].node.operands["x"].type.quant
        assert quant is not None
        units.append(quant.scales().tolist())
    assert units == [0.125, [0.0625, 0.03125]]
