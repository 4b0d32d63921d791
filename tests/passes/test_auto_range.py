"""The range rule that weighs channels by the weights that read them, against whole products."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.calibration import Key, parse_rule
from qir.calibration.observers import Readers
from qir.ir.text import parse
from qir.rewrite.layer_weights import energy

SEED = 20261128
TRIED = ("minmax", "percentile:99.999", "percentile:99.99", "mse", "mae")
Reals = NDArray[np.float64]
TEXT = (
    "graph main {\n  %x = input() : (N)x8xf32\n  %w = constant(@w) : 8x4xf32\n"
    "  %y = gemm(%x, %w) : (N)x4xf32\n  output(y=%y)\n}\n"
)


def spiky(rng: np.random.Generator) -> NDArray[np.float32]:
    """Samples one of whose channels has a few values far from all others."""
    x = rng.standard_normal((4096, 8))
    x[::256, 0] *= 60
    return x.astype(np.float32)


def stored(x: NDArray[np.float32], low: float, high: float) -> Reals:
    """Values as uint8 integers of a range that holds zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    quantized = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray((quantized - zero) * scale, np.float64)


@pytest.mark.parametrize(("factor", "wide"), [(100.0, True), (0.001, False)])
def test_the_rule_depends_on_the_weights_that_read_the_far_values(
    factor: float, wide: bool
) -> None:
    rng = np.random.default_rng(SEED)
    w, x = rng.standard_normal((8, 4)).astype(np.float32), spiky(rng)
    w[0] *= np.float32(factor)
    graph = parse(TEXT, {"w": w})
    statistics = pipeline.calibrate(graph, x)

    def cost(rule: str) -> tuple[float, float]:
        made = pipeline.quantize(
            graph,
            statistics,
            range_rule=rule,
            rules=["op=gemm slot=b: i8<-127:127> symmetric tensor"],
        )
        quantized = next(n.result.type.quant for n in made if n.op == "quantize")
        assert quantized is not None
        scale, zero = float(quantized.scales()), int(quantized.zeros())
        low, high = -zero * scale, (255 - zero) * scale
        return float(np.square((stored(x, low, high) - x) @ w.astype(np.float64)).sum()), high - low

    found, width = cost("auto")
    costs = {rule: cost(rule) for rule in TRIED}
    assert found <= 1.1 * min(each for each, _ in costs.values()), f"seed {SEED}"
    assert (width > 0.9 * costs["minmax"][1]) == wide, f"seed {SEED}"


def test_without_weights_it_is_the_rule_of_least_squared_error() -> None:
    x = spiky(np.random.default_rng(SEED))
    graph = parse(TEXT, {"w": np.ones((8, 4), np.float32)})
    summary = pipeline.calibrate(graph, x)[Key("x", None)]
    found = parse_rule("auto").range(summary)
    error = {
        rule: np.square(stored(x, *map(float, parse_rule(rule).range(summary))) - x).sum()
        for rule in (*TRIED, "auto")
    }
    assert error["auto"] <= 1.02 * min(error.values()), f"seed {SEED}"
    plain = Readers(np.ones(8), x.min(axis=0).astype(float), x.max(axis=0).astype(float))
    assert parse_rule("auto").range(summary, readers=plain) == found


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_energy_of_a_channel_is_that_of_the_weights_that_multiply_it(groups: int) -> None:
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((8, 4 // groups, 3, 3)).astype(np.float32)
    graph = parse(
        f"graph main {{\n  %x = input() : 1x4x5x5xf32\n"
        f"  %w = constant(@w) : 8x{4 // groups}x3x3xf32\n"
        f"  %y = conv2d(%x, %w) {{groups = {groups}}} : 1x8x3x3xf32\n  output(y=%y)\n}}\n",
        {"w": w},
    )
    wanted = np.zeros(4)
    for o, i, *tap in np.ndindex(*w.shape):
        wanted[o // (8 // groups) * (4 // groups) + i] += float(w[(o, i, *tap)]) ** 2
    np.testing.assert_allclose(energy(graph["y"].node), wanted, rtol=1e-6)
