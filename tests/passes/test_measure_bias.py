"""Biases moved by the means of a run, against networks written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir.calibration import Statistics
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.quantize.measure_bias import MeasureBias
from qir.rewrite import run_passes

Floats = NDArray[np.float32]
SEED = 20261128


def two_layers(rng: np.random.Generator) -> tuple[Graph, dict[str, Floats]]:
    held = {
        "w": rng.standard_normal((6, 5)).astype(np.float32),
        "b": rng.standard_normal(6).astype(np.float32),
        "v": rng.standard_normal((4, 6)).astype(np.float32),
        "c": rng.standard_normal(4).astype(np.float32),
    }
    graph = parse(
        "graph main {\n  %x = input() : 16x5xf32\n  %w = constant(@w) : 6x5xf32\n"
        "  %b = constant(@b) : 6xf32\n  %h = linear(%x, %w, bias=%b) : 16x6xf32\n"
        "  %r = relu(%h) : 16x6xf32\n  %v = constant(@v) : 4x6xf32\n  %c = constant(@c) : 4xf32\n"
        "  %y = linear(%r, %v, bias=%c) : 16x4xf32\n  output(y=%y)\n}\n",
        held,
    )
    return graph, held


def statistics_of(graph: Graph, x: Floats) -> Statistics:
    return qir.calibrate(graph, x)


def test_the_means_of_the_result_are_those_of_the_float_network() -> None:
    rng = np.random.default_rng(SEED)
    graph, held = two_layers(rng)
    x = (rng.standard_normal((16, 5)) + 1).astype(np.float32)
    exact = np.maximum(x @ held["w"].T + held["b"], 0) @ held["v"].T + held["c"]
    seen = statistics_of(graph, x)
    apart = {}
    for names in ("none", "measure-bias", "correct-bias,measure-bias"):
        made = qir.quantize(graph, seen, granularity="tensor", corrections=names, samples={"x": x})
        found = np.asarray(next(iter(qir.run(made, {"x": x}).values())), np.float64)
        apart[names] = float(np.abs(found.mean(axis=0) - exact.mean(axis=0)).max())
    step = float(np.ptp(exact)) / 255  # results are stored in steps, each within half of one
    assert apart["measure-bias"] < step, f"seed {SEED}: {apart}"
    assert apart["correct-bias,measure-bias"] < step, f"seed {SEED}: {apart}"


def test_ranges_that_clip_are_made_up_for_which_weights_alone_do_not_show() -> None:
    rng = np.random.default_rng(SEED)
    graph, held = two_layers(rng)
    x = (rng.standard_normal((16, 5)) + 1).astype(np.float32)
    narrow = statistics_of(graph, x / np.float32(2))  # the means of other data, and half the range
    exact = np.maximum(x @ held["w"].T + held["b"], 0) @ held["v"].T + held["c"]
    apart = {}
    for names in ("correct-bias", "measure-bias"):
        made = qir.quantize(graph, narrow, corrections=names, samples={"x": x})
        found = np.asarray(next(iter(qir.run(made, {"x": x}).values())), np.float64)
        apart[names] = float(np.abs(found.mean(axis=0) - exact.mean(axis=0)).mean())
    assert apart["measure-bias"] < apart["correct-bias"], f"seed {SEED}: {apart}"


def test_samples_are_needed_and_a_plan_without_them_changes_nothing() -> None:
    graph, _ = two_layers(np.random.default_rng(SEED))
    seen = statistics_of(graph, np.ones((16, 5), np.float32))
    with pytest.raises(UsageError, match="measure-bias needs samples"):
        qir.quantize(graph, seen, corrections="measure-bias")
    ledger = Ledger()
    assert run_passes(graph, [MeasureBias()], ledger) is not None
    assert not list(ledger)
