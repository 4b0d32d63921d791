"""Normalizations go into the weights beside them, and the floats stay what they were."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps

CASES: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Attr]]] = {
    "conv1d": ("conv1d", (2, 4, 9), (6, 4, 3), {}),
    "conv1d in groups": ("conv1d", (2, 4, 9), (6, 2, 3), {"groups": 2}),
    "conv2d": ("conv2d", (2, 4, 5, 6), (6, 4, 3, 2), {}),
    "conv2d channels last": ("conv2d", (2, 5, 6, 4), (6, 4, 3, 2), {"layout": "NHWC"}),
    "conv2d depthwise": ("conv2d", (2, 4, 5, 6), (8, 1, 3, 2), {"groups": 4}),
    "conv3d": ("conv3d", (2, 4, 3, 4, 5), (6, 4, 2, 2, 2), {}),
    "conv3d in groups": ("conv3d", (2, 4, 3, 4, 5), (6, 2, 2, 2, 2), {"groups": 2}),
    "transposed 1": ("conv_transpose1d", (2, 4, 5), (4, 6, 3), {"stride": (2,)}),
    "transposed 2": ("conv_transpose2d", (2, 4, 3, 3), (4, 6, 2, 3), {"pad": (0, 1, 1, 0)}),
    "transposed in groups": ("conv_transpose2d", (2, 4, 3, 3), (4, 3, 2, 3), {"groups": 2}),
    "transposed depthwise": ("conv_transpose2d", (2, 4, 3, 3), (4, 1, 2, 3), {"groups": 4}),
    "transposed 3": ("conv_transpose3d", (1, 2, 3, 3, 2), (2, 4, 2, 2, 2), {"groups": 2}),
    "linear": ("linear", (2, 3, 4), (6, 4), {}),
    "matmul": ("matmul", (2, 4), (4, 6), {}),
    "matmul turned": ("matmul", (2, 4), (6, 4), {"trans_b": True}),
    "gemm": ("gemm", (2, 4), (4, 6), {"alpha": 0.75}),
    "gemm turned": ("gemm", (2, 4), (6, 4), {"trans_b": True, "alpha": -2.0}),
}
SLOTS = {"matmul": ("a", "b", "bias"), "gemm": ("a", "b", "c")}


def held(graph: Graph, name: str, data: NDArray[np.float64]) -> Value:
    return graph.constant(Array.of(np.ascontiguousarray(data)), name=name)


def norm(graph: Graph, x: Value, axis: int, rng: np.random.Generator, *, shifts: bool) -> Value:
    size = x.type.shape[axis]
    assert isinstance(size, int)
    rows = {slot: held(graph, slot, rng.normal(size=size)) for slot in ("gamma", "beta", "mean")}
    if not shifts:
        rows["beta"] = rows["mean"] = held(graph, "none", np.zeros(size))
    rows["var"] = held(graph, "var", rng.uniform(0.1, 2, size))
    return graph.add("batch_norm", {"x": x, **rows}, {"axis": axis, "eps": 1e-3}).result


def network(
    case: str, seed: int, *, where: str, bias: bool, shifts: bool = True, **more: Attr
) -> Graph:
    """A normalization before or after an op."""
    op, x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(seed)
    graph = Graph()
    x = graph.add("input", types=[TensorType(x_shape, F64)], name="x").result
    product = op in ("linear", "matmul", "gemm")
    axis = -1 if product or attrs.get("layout") == "NHWC" else 1
    data = norm(graph, x, axis, rng, shifts=shifts) if where == "before" else x
    first, weight, last = SLOTS.get(op, ("x", "w", "bias"))
    operands = {first: data, weight: held(graph, "w", rng.normal(size=w_shape))}
    value = graph.add(op, operands, {**attrs, **more}).result
    if bias:
        size = value.type.shape[axis]
        assert isinstance(size, int)
        row = held(graph, "b", rng.normal(size=size))
        graph.set_operand(value.node, last, row)
    value = norm(graph, value, axis, rng, shifts=True) if where == "after" else value
    graph.add("output", {"y": value})
    return graph


def left(graph: Graph) -> int:
    return sum(n.op == "batch_norm" for n in run_passes(graph, [FoldBatchNorm()], Ledger()))


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
def test_a_normalization_goes_into_the_weights(case: str, where: str) -> None:
    for seed in range(3):
        shifts = where == "after" or not case.startswith("transposed")
        graph = network(case, seed, where=where, bias=seed != 1, shifts=shifts)
        assert keep(FoldBatchNorm(), graph, seed, tolerance=1e-12) > 0, f"seed {seed}"
        assert left(graph) == 0, f"seed {seed}"


@pytest.mark.parametrize("case", ["conv1d", "conv2d", "conv3d"])
def test_zeros_beside_what_is_shifted_keep_a_normalization_before(case: str) -> None:
    n = int(case[-2])
    pad = (1,) + (0,) * (2 * n - 1)
    shifted = network(case, 0, where="before", bias=True, pad=pad)
    assert left(shifted) == 1
    scaled = network(case, 0, where="before", bias=True, shifts=False, pad=pad)
    assert keep(FoldBatchNorm(), scaled, 0, tolerance=1e-12) > 0
    assert left(network("transposed 2", 0, where="before", bias=True)) == 1


def test_an_option_leaves_what_stands_before() -> None:
    graph = network("linear", 0, where="before", bias=True)
    assert FoldBatchNorm(before=False).run(graph, Ledger()) == 0


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
def test_a_relu_between_or_another_reader_keeps_it(case: str, where: str) -> None:
    for between in (True, False):
        graph = network(case, 0, where=where, bias=True)
        wanted = "batch_norm" if where == "before" else CASES[case][0]
        inner = next(n for n in graph if n.op == wanted)
        user, slot = next(iter(inner.result.uses))
        if between:
            relu = graph.add("relu", {"x": inner.result}).result
            graph.set_operand(user, slot, relu)
        else:
            graph.set_operand(graph.output, "z", inner.result)
        assert FoldBatchNorm().run(graph, Ledger()) == 0


def test_numbers_that_are_not_finite_keep_it() -> None:
    graph = network("conv2d", 0, where="after", bias=False)
    variance = graph["batch_norm"].node.operands["var"]
    broken = graph.constant(np.full(6, -1.0), name="broken", before=variance.node)
    graph.set_operand(graph["batch_norm"].node, "var", broken)
    assert FoldBatchNorm().run(graph, Ledger()) == 0


def test_the_ledger_tells_of_both_and_history_is_kept() -> None:
    ledger = Ledger()
    graph = network("linear", 0, where="before", bias=True)
    after = run_passes(graph, [FoldBatchNorm()], ledger)
    assert [(e.change, e.subject) for e in ledger] == [(Change.REGROUPED, "batch_norm")]
    assert after["linear"].node.operands["w"].lineage.how == ("scaled",)


def test_generated_graphs_keep_their_reals() -> None:
    keeps(FoldBatchNorm(), range(6), tolerance=1e-4)
