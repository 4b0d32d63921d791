"""The ledger of a pass says `exact` only where every byte of every output stays."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline, registry
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.forms.lower_integer import LowerInteger
from qir.reference.interpreter import run
from qir.rewrite import Pass
from qir.testing import random_graph, sample_inputs
from tests.passes.keeping import outputs
from tests.passes.test_every_pass import tried

SAME_BYTES = frozenset({Change.EXACT, Change.DROPPED})


def applied(one: Pass, graph: Graph) -> tuple[Graph, Ledger]:
    copy, ledger = graph.copy(), Ledger()
    for _, each in list(copy.walk()):
        if one.nested or each is copy:
            one.run(each, ledger)
    return copy, ledger


@pytest.mark.parametrize("name", registry.names("qir.passes"))
def test_what_is_reported_as_exact_moves_no_byte(name: str) -> None:
    for one, where, graph in tried(name):
        made, ledger = applied(one, graph)
        if not len(ledger) or {entry.change for entry in ledger} - SAME_BYTES:
            continue
        inputs = sample_inputs(graph, 0)
        wanted, found = outputs(graph, inputs), outputs(made, inputs)
        if wanted is None or found is None:
            continue
        for output, data in wanted.items():
            same = found[output].dtype == data.dtype and np.array_equal(
                found[output], data, equal_nan=data.dtype.kind in "fc"
            )
            assert same, f"{one} on {where}: {output}, reported as exact"


PRODUCT = """graph main {{
  %x = input() : 8x33xf32
  %q = quantize(%x) : 8x33x!quant.uniform<u8:f32, {first}:128>
  %d = dequantize(%q) : 8x33xf32
  %w = constant(@w) : 5x33x!quant.uniform<i8:f32, {second}>
  %v = dequantize(%w) : 5x33xf32
  %y = linear(%d, %v) : 8x5xf32
  output(y=%y)
}}"""


def test_integer_products_are_reported_as_regrouped_because_they_round_elsewhere() -> None:
    moved = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, second = rng.uniform(0.01, 0.1, 2).astype(np.float32)
        text = PRODUCT.format(first=float(first), second=float(second))
        graph = parse(text, {"w": rng.integers(-127, 128, (5, 33)).astype(np.int8)})
        made, ledger = applied(LowerInteger(), graph)
        (entry,) = ledger
        assert (entry.change, entry.subject) == (Change.REGROUPED, "y"), f"seed {seed}"
        x = {"x": rng.normal(size=(8, 33)).astype(np.float32)}
        moved += not np.array_equal(run(graph, x)["y"], run(made, x)["y"])
    assert moved > 10  # so that no milder word would be true


@pytest.mark.parametrize("seed", range(6))
def test_every_value_that_gets_a_quantized_type_is_reported_as_quantized(seed: int) -> None:
    graph = random_graph(seed)
    statistics = pipeline.calibrate(graph, [sample_inputs(graph, n) for n in range(3)])
    for dynamic in (False, True):
        ledger = Ledger()
        if dynamic:
            made = pipeline.quantize_dynamic(graph, ledger=ledger)
        else:
            made = pipeline.quantize(graph, statistics, ledger=ledger)
        told = {entry.subject for entry in ledger if entry.change is Change.QUANTIZED}
        for value in made.values.values():
            quant = value.type.quant if value.constant is not None else None
            if quant is not None and quant.storage.bits < 32:  # no bias
                names = {value.name, value.name.removesuffix(".q"), value.lineage.tensor}
                assert names & told, f"{value.name}: {told}"
