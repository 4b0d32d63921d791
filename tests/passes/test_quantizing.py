"""From a float graph to integers: what assign-schemes and materialize promise, on any network."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.text import print_graph
from qir.ir.types import QuantType
from qir.ledger import Ledger
from qir.passes.quantize.assign_schemes import AssignSchemes
from qir.passes.quantize.materialize import Materialize
from qir.rewrite import run_passes
from qir.target import target
from qir.testing import random_graph, sample_inputs

SEEDS = range(25)


def quantized(
    graph: Graph, seed: int, granularity: str = "channel", corrections: str = "default"
) -> Graph:
    statistics = pipeline.calibrate(graph, [sample_inputs(graph, seed)])
    return pipeline.quantize(graph, statistics, granularity=granularity, corrections=corrections)


def quantized_source_type(value: Value) -> QuantType | None:
    """The map behind a real value that was dequantized."""
    return value.node.operands["x"].type.quant if value.node.op == "dequantize" else None


@pytest.mark.parametrize("seed", SEEDS)
def test_quantizing_gives_a_sound_graph_and_leaves_the_float_one(seed: int) -> None:
    graph = random_graph(seed, "float")
    was = print_graph(graph, origins=True)
    made = quantized(graph, seed, ("channel", "tensor")[seed % 2])
    assert print_graph(graph, origins=True) == was
    assert pipeline.verify(made, target="onnxruntime") == []  # no warning either: bias scales fit
    assert not any(node.schemes for node in made)
    assert [(v.name, v.type) for v in made.inputs] == [(v.name, v.type) for v in graph.inputs]
    assert list(made.outputs) == list(graph.outputs)
    assert all(not v.type.quant for v in made.outputs.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_share_a_map_shares_it(seed: int) -> None:
    made = quantized(random_graph(seed, "float"), seed)
    for node in made:
        reader = node.results[0].only_use if node.results else None
        slots = spec(node.op).traits.same_params
        if not slots or reader is None or reader.node.op != "quantize" or node.op == "concat":
            continue
        result = reader.node.result.type.quant
        found = quantized_source_type(node.operands["x"])
        assert result is not None
        assert found is None or found.has_same_mapping(result), f"seed {seed}: {node!r}"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_input_gives_the_same_text(seed: int) -> None:
    texts = {print_graph(quantized(random_graph(seed), seed), by_content=True) for _ in range(2)}
    assert len(texts) == 1


def test_codes_of_constants_are_within_half_a_step() -> None:
    checked = 0
    for seed in SEEDS:
        graph = pipeline.fold(random_graph(seed))
        sources = {v.lineage.tensor: v for v in graph.values.values() if v.constant is not None}
        for node in quantized(graph, seed, corrections="none"):
            traits = spec(node.op).traits
            for slot in (traits.weight, traits.bias):
                value = node.operands.get(slot or "")
                if value is not None and value.node.op == "dequantize":
                    stored = value.node.operands["x"]
                    off = steps_off(stored, sources[stored.lineage.tensor])
                    assert off <= 0.5 + 1e-4, f"seed {seed}: {stored.name}"
                    checked += 1
    assert checked > 40


def steps_off(stored: Value, source: Value) -> float:
    """The largest distance between integers and the floats they came from, in steps."""
    kind, held, exact = stored.type.quant, stored.constant, source.constant
    assert kind is not None
    assert held is not None
    assert exact is not None
    shape = [-1 if i == kind.axis else 1 for i in range(stored.type.rank)]
    scale, zero = (np.asarray(n, np.float64) for n in (kind.scales(), kind.zeros()))
    scale, zero = (n.reshape(shape) if n.ndim else n for n in (scale, zero))
    real = (held.data.astype(np.float64) - zero) * scale
    return float((np.abs(real - exact.data.astype(np.float64)) / scale).max(initial=0))


def test_a_plan_made_twice_is_one_plan_and_no_plan_materializes_nothing() -> None:
    planned = 0
    for seed in SEEDS:
        graph = pipeline.fold(random_graph(seed))
        assign = AssignSchemes(target("onnxruntime").capability())
        once = run_passes(graph, [assign], Ledger())
        assert run_passes(once, [assign], Ledger()) == once, f"seed {seed}"
        planned += once != graph
        assert Materialize().run(graph, Ledger()) == 0
    assert planned > len(SEEDS) / 2
