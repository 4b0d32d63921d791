"""Biases join the op before them, and activations make a group with it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.errors import UsageError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, F64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.passes.fold.fold_bias import FoldBias
from qir.passes.forms.group_activations import GroupActivations
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps

HEADS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Attr]]] = {
    "conv1d": ((2, 4, 5), (4, 2, 1), {"groups": 2}),
    "conv2d": ((2, 4, 5, 3), (4, 4, 1, 1), {}),
    "conv3d": ((1, 4, 2, 3, 2), (4, 1, 1, 1, 1), {"groups": 4}),
    "conv_transpose1d": ((2, 4, 5), (4, 4, 1), {}),
    "conv_transpose2d": ((2, 4, 5, 3), (4, 2, 1, 1), {"groups": 2}),
    "linear": ((2, 4), (4, 4), {}),
    "matmul": ((3, 2, 4), (4, 4), {}),
    "gemm": ((2, 4), (4, 4), {"alpha": 0.5}),
}
SLOTS = {"matmul": ("a", "b", "bias"), "gemm": ("a", "b", "c")}


def network(seed: int, kind: str) -> Graph:
    """Heads with biases and activations behind them, some of which others read."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    graph = Graph()
    element = F64 if kind == "bias" else F32
    op = rng.choice(list(HEADS))
    shape, wide, attrs = HEADS[op]
    axis = 1 if "conv" in op else len(shape) - 1
    x = graph.add("input", types=[TensorType(shape, element)], name="x").result
    outputs: dict[str, Value] = {}

    def held(*sizes: int) -> Value:
        return graph.constant(numbers.normal(size=sizes).astype(element.carrier), name="k")

    for i in range(3):
        first, weight, bias = SLOTS.get(op, ("x", "w", "bias"))
        operands = {first: x, weight: held(*wide)}
        if rng.random() < 0.5:
            operands[bias] = held(4)
        y = graph.add(op, operands, attrs).result
        for _ in range(rng.randint(0, 3)):
            if rng.random() < 0.2:
                outputs[f"y{i}"] = y
            if kind == "bias":
                sizes = [1] * len(shape)
                sizes[axis] = rng.choice([1, 4])
                row = held(*sizes[rng.choice([0, axis]) :])
                pair = (y, row) if rng.random() < 0.7 else (row, y)
                y = graph.add(rng.choice(["add", "sub"]), dict(zip("ab", pair, strict=True))).result
            elif rng.random() < 0.3:
                y = graph.add("add", {"a": x, "b": y}).result
            else:
                y = graph.add(rng.choice(["relu", "silu", "tanh", "exp", "clip"]), {"x": y}).result
        x = y
    graph.add("output", {**outputs, "y": x})
    return graph


def test_what_is_added_joins_the_bias() -> None:
    changed = sum(keep(FoldBias(), network(s, "bias"), s, tolerance=1e-12) > 0 for s in range(80))
    assert changed > 40


def test_activations_join_and_no_bit_moves() -> None:
    changed = sum(keep(GroupActivations(), network(s, "group"), s) > 0 for s in range(60))
    assert changed > 30


def test_generated_graphs_keep_what_they_compute() -> None:
    keeps(FoldBias(), range(6), tolerance=1e-5)
    keeps(GroupActivations(), range(6))


def test_a_bias_that_is_computed_or_scaled_stays() -> None:
    graph = parse("""graph main {
      %x = input() : 2x4xf32
      %b = input() : 4xf32
      %w = constant([1.0, 2.0, 3.0, 4.0]) : 4x1xf32
      %k = constant([1.0]) : 1xf32
      %m = gemm(%x, %w, c=%k) {beta = 0.5} : 2x1xf32
      %n = add(%m, %k) : 2x1xf32
      %v = constant([1.0, 2.0, 3.0, 4.0]) : 1x4xf32
      %p = linear(%n, %w) : 2x4xf32
      %q = add(%p, %b) : 2x4xf32
      output(q=%q)
    }""")
    assert FoldBias().run(graph, Ledger()) == 0


def test_options_are_checked_and_kept() -> None:
    with pytest.raises(UsageError, match="softmax"):
        GroupActivations("relu softmax")
    with pytest.raises(UsageError, match="option most = 0 is below 1"):
        GroupActivations("relu", most=0)
    graph = network(3, "group")
    none = run_passes(graph, [GroupActivations("", sums=False)], Ledger())
    assert not any(node.stages for node in none)
