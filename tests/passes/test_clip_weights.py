"""Weights clipped for the least squared error, against a search in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.scheme import parse_scheme
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.quantize.clip_weights import ClipWeights
from qir.rewrite import run_passes
from tests.passes.test_correct_bias import layer

SEED = 20261128
Reals = NDArray[np.float64]
TEXT = (
    "graph main {\n  %x = input() : (N)x256xf32\n  %w = constant(@w) : 3x256xf32\n"
    "  %y = linear(%x, %w) : (N)x3xf32\n  output(y=%y)\n}\n"
)


def outlying(rng: np.random.Generator) -> NDArray[np.float32]:
    w = rng.standard_normal((3, 256))
    w[0, 7], w[1, 9] = 12, -9
    return w.astype(np.float32)


def error(w: Reals, reach: Reals, high: int) -> Reals:
    scale = reach / high
    quantized = np.clip(np.rint(w / scale), -high, high)
    return np.square(quantized * scale - w)


@pytest.mark.parametrize("grain", ["channel", "tensor"])
@pytest.mark.parametrize("high", [7, 127])
def test_what_is_left_has_the_least_squared_error_of_a_fine_search(grain: str, high: int) -> None:
    w = outlying(np.random.default_rng(SEED))
    graph = parse(TEXT, {"w": w})
    graph.set_scheme(layer(graph), "w", parse_scheme(f"i8<-{high}:{high}> symmetric {grain}"))
    made = layer(run_passes(graph, [ClipWeights()], Ledger())).operands["w"].constant
    assert made is not None
    exact, axes = w.astype(np.float64), 1 if grain == "channel" else None
    full = np.abs(exact).max(axis=axes, keepdims=True)
    reach = np.abs(made.data.astype(np.float64)).max(axis=axes, keepdims=True)
    np.testing.assert_allclose(
        made.data.astype(np.float64), np.clip(exact, -reach, reach), rtol=1e-6
    )
    shares = np.linspace(0.2, 1, 801)
    best = np.min([error(exact, full * s, high).sum(axis=axes, keepdims=True) for s in shares], 0)
    found = error(exact, reach, high).sum(axis=axes, keepdims=True)
    assert (found <= best * 1.1).all(), f"seed {SEED}"
    if high == 7:
        assert (reach < full).any()


def test_the_bias_takes_away_the_mean_error_of_clipping_too() -> None:
    rng = np.random.default_rng(SEED)
    w = outlying(rng)
    text = TEXT.replace("linear(%x, %w)", "gemm(%x, %w) {trans_b = true}")
    graph, x = parse(text, {"w": w}), rng.random((64, 256), np.float32)
    statistics = pipeline.calibrate(graph, x)
    rule = ["op=gemm slot=b: i8<-7:7> symmetric channel"]
    ledger = Ledger()
    made = pipeline.quantize(
        graph,
        statistics,
        rules=rule,
        corrections=["clip-weights", "correct-bias"],
        ledger=ledger,
    )
    assert [e.subject for e in ledger if e.step == "clip-weights"]
    found = pipeline.run(made, {"x": x})["y"].astype(np.float64)
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    step = np.ptp(np.minimum(wanted, 0)) / 255 + np.ptp(wanted) / 255
    assert (np.abs((found - wanted).mean(axis=0)) < step).all(), f"seed {SEED}"
    plain = pipeline.quantize(graph, statistics, rules=rule, corrections=["clip-weights"])
    shifted = pipeline.run(plain, {"x": x})["y"].astype(np.float64)
    assert np.abs((shifted - wanted).mean(axis=0)).max() > step, f"seed {SEED}"
