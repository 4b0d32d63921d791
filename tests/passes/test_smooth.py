"""Channels of norms that give their spread to the weights after them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.smooth import Smooth, smoothed_tensors
from qir.rewrite import run_passes

SEED = 20261128
TEXT = """graph main {{
  %x = input() : (N)x5x8xf32
  %g = constant(@g) : 8xf32
  %b = constant(@b) : 8xf32
  %n = {norm} : (N)x5x8xf32
  %w = constant(@w) : 8x6xf32
  %v = constant(@v) : 6x8xf32
  %p = matmul(%n, %w) : (N)x5x6xf32
  %q = linear(%n, %v) : (N)x5x6xf32
  output(p=%p, q={other})
}}"""
LAYER = "layer_norm(%x, %g, beta=%b)"


def network(norm: str = LAYER, other: str = "%q") -> tuple[Graph, dict[str, NDArray[np.float32]]]:
    rng = np.random.default_rng(SEED)
    arrays = {
        "g": rng.uniform(0.5, 1.5, 8),
        "b": rng.standard_normal(8) / 4,
        "w": rng.standard_normal((8, 6)),
        "v": rng.standard_normal((6, 8)),
    }
    arrays["g"][3] = 50
    held = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(TEXT.format(norm=norm, other=other), held), held


def data() -> NDArray[np.float32]:
    return np.random.default_rng(SEED + 1).standard_normal((32, 5, 8)).astype(np.float32)


def exact(x: NDArray[np.float32], held: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    """The layer norm in float64."""
    z = x.astype(np.float64)
    z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
    return np.asarray(z * held["g"] + held["b"])


def constant(graph: Graph, value: str, slot: str) -> NDArray[np.float64]:
    found = graph[value].node.operands[slot].constant
    assert found is not None
    return found.data.astype(np.float64)


def test_each_channel_is_divided_by_what_the_paper_says() -> None:
    graph, held = network()
    x = data()
    ledger = Ledger()
    made = run_passes(graph, [Smooth(pipeline.calibrate(graph, x))], ledger)
    reach = np.abs(exact(x, held)).max(axis=(0, 1))
    read = np.maximum(np.abs(held["w"]).max(axis=1), np.abs(held["v"]).max(axis=0))
    row = np.sqrt(reach) / np.sqrt(read)
    assert row.max() / row.min() > 3
    for slot, name in (("gamma", "g"), ("beta", "b")):
        np.testing.assert_allclose(constant(made, "n", slot), held[name] / row, rtol=1e-4)
    np.testing.assert_allclose(constant(made, "p", "b"), held["w"] * row[:, None], rtol=1e-4)
    np.testing.assert_allclose(constant(made, "q", "w"), held["v"] * row, rtol=1e-4)
    assert [(e.change, e.subject) for e in ledger] == [(Change.REGROUPED, "n")]
    for name, weight in (("p", held["w"]), ("q", held["v"].T)):
        wanted = exact(x, held) @ weight.astype(np.float64)
        np.testing.assert_allclose(
            pipeline.run(made, {"x": x})[name].astype(np.float64), wanted, rtol=1e-3, atol=1e-3
        )


def test_the_result_is_nearer_where_one_channel_is_large() -> None:
    graph, held = network()
    x = data()
    statistics = pipeline.calibrate(graph, x)
    wanted = exact(x, held) @ held["w"].astype(np.float64)
    noise = {}
    for names in ("none", "smooth"):
        made = pipeline.quantize(graph, statistics, corrections=names)
        found = pipeline.run(made, {"x": x})["p"].astype(np.float64)
        noise[names] = float(np.square(found - wanted).sum())
    assert noise["smooth"] < noise["none"], f"seed {SEED}"


def test_statistics_of_what_was_divided_follow() -> None:
    graph, held = network()
    x = data()
    statistics = pipeline.calibrate(graph, x)
    made, derived = (
        run_passes(graph, [Smooth(statistics)], Ledger()),
        smoothed_tensors(graph, statistics),
    )
    ((name, scaled),) = derived.items()
    assert made["n"].lineage.tensor == name
    reach = np.abs(exact(x, held)).max(axis=(0, 1))
    read = np.maximum(np.abs(held["w"]).max(axis=1), np.abs(held["v"]).max(axis=0))
    np.testing.assert_allclose(scaled.scale, np.sqrt(reach / read), rtol=1e-4)


def test_a_norm_that_others_read_keeps_its_channels() -> None:
    graph, _ = network(other="%n")
    assert run_passes(graph, [Smooth(pipeline.calibrate(graph, data()))], Ledger()) == graph
