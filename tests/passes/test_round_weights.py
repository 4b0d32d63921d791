"""Weights rounded for a layer's results, against error sums in NumPy and every choice there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.scheme import parse_scheme
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.quantize.round_weights import RoundWeights, choose_rounding
from qir.rewrite import run_passes
from tests.passes.test_correct_bias import convolved, layer

SEED = 20261128
Reals = NDArray[np.float64]


def correlated(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Data whose channels, the second axis, go together."""
    common = rng.standard_normal((shape[0], 1, *shape[2:]))
    return (common + 0.3 * rng.standard_normal(shape)).astype(np.float32)


def rounded(graph: Graph, scheme: str, x: NDArray[np.float32], *, centered: bool = False) -> Graph:
    node = layer(graph)
    graph.set_scheme(node, "b" if node.op == "gemm" else "w", parse_scheme(scheme))
    return run_passes(graph, [RoundWeights({"x": x}, centered=centered)], Ledger())


def weights(graph: Graph) -> Reals:
    node = layer(graph)
    found = node.operands["b" if node.op == "gemm" else "w"].constant
    assert found is not None
    return found.data.astype(np.float64)


def test_few_weights_get_the_best_of_all_roundings_or_near_it() -> None:
    rng = np.random.default_rng(SEED)
    found, best, nearest = 0.0, 0.0, 0.0
    for _ in range(20):
        w = rng.uniform(-6.9, 6.9, (1, 6))
        x = correlated(rng, 40, 6).astype(np.float64)
        moments = x.T @ x / len(x)
        near = np.rint(w).astype(np.int64)
        made = choose_rounding(moments[None], w[None], near[None], np.ones((1, 1)), 7)[0]
        assert (np.abs(made - w) < 1).all()

        def cost(quantized: Reals, w: Reals = w, x: Reals = x) -> float:
            return float(np.square(x @ (quantized - w)[0]).mean())

        choices = product(*((np.floor(v), np.floor(v) + 1) for v in w[0]))
        best += min(cost(np.array([c])) for c in choices)
        found += cost(made.astype(np.float64))
        nearest += cost(np.rint(w))
    assert best <= found <= 1.5 * best + 1e-9, f"seed {SEED}"
    assert found < 0.5 * nearest, f"seed {SEED}"


@pytest.mark.parametrize("grain", ["channel", "tensor"])
@pytest.mark.parametrize(
    ("pad", "stride", "dilation", "groups"),
    [(0, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 4), (1, 2, 1, 2)],
)
def test_a_convolution_comes_nearer_than_with_nearest_weights(
    pad: int, stride: int, dilation: int, groups: int, grain: str
) -> None:
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((4, 4 // groups, 3, 3)).astype(np.float32)
    x = correlated(rng, 2, 4, 6, 7)
    exact = convolved(x.astype(np.float64), w.astype(np.float64), pad, stride, dilation, groups)
    graph = parse(
        f"graph main {{\n  %x = input() : 2x4x6x7xf32\n"
        f"  %w = constant(@w) : 4x{4 // groups}x3x3xf32"
        f"\n  %y = conv2d(%x, %w) {{stride = ({stride}, {stride}), "
        f"pad = ({pad}, {pad}, {pad}, {pad}), dilation = ({dilation}, {dilation}), "
        f"groups = {groups}}} : 2x4x{exact.shape[2]}x{exact.shape[3]}xf32\n  output(y=%y)\n}}\n",
        {"w": w},
    )
    made = weights(rounded(graph, f"i8<-7:7> symmetric {grain}", x))
    reach = np.abs(w).max(axis=(1, 2, 3) if grain == "channel" else None, keepdims=True)
    scale = reach.astype(np.float64) / 7

    def error(taken: Reals) -> float:
        found = convolved(x.astype(np.float64), taken, pad, stride, dilation, groups)
        return float(np.square(found - exact).sum())

    nearest = np.rint(w / scale)
    if np.array_equal(made, w):  # it moves nothing: then no other neighbour makes results nearer
        least = error(nearest * scale)
        other = np.where(nearest < w / scale, nearest + 1, nearest - 1)
        for at in zip(*np.nonzero(np.abs(other) <= 7), strict=True):
            moved = nearest.copy()
            moved[at] = other[at]
            assert error(moved * scale) >= least * (1 - 1e-9), f"seed {SEED}: {at}"
        return
    quantized = made / scale
    np.testing.assert_allclose(quantized, np.rint(quantized), atol=1e-5, err_msg=f"seed {SEED}")
    assert (np.abs(made - w) < scale * (1 + 1e-6)).all(), f"seed {SEED}"
    assert error(made) < error(nearest * scale), f"seed {SEED}"


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_comes_nearer_and_its_mean_error_may_be_left_to_the_bias(turned: bool) -> None:
    rng = np.random.default_rng(SEED)
    w, x = rng.standard_normal((8, 3)).astype(np.float32), correlated(rng, 64, 8) + np.float32(3)
    shape = "3x8" if turned else "8x3"
    text = (
        f"graph main {{\n  %x = input() : 64x8xf32\n  %w = constant(@w) : {shape}xf32\n"
        "  %c = constant([0.0, 0.0, 0.0]) : 3xf32\n"
        f"  %y = gemm(%x, %w, c=%c) {{trans_b = {str(turned).lower()}}} : 64x3xf32\n"
        "  output(y=%y)\n}\n"
    )
    scale = np.abs(w).max(axis=0, keepdims=True).astype(np.float64) / 7
    nearest = np.rint(w / scale) * scale
    for centered in (False, True):
        graph = parse(text, {"w": w.T.copy() if turned else w})
        found = weights(rounded(graph, "i8<-7:7> symmetric channel", x, centered=centered))
        made = found.T if turned else found
        errors = [x.astype(np.float64) @ (taken - w) for taken in (made, nearest)]
        if centered:
            errors = [e - e.mean(axis=0) for e in errors]
        ours, theirs = (float(np.square(e).sum()) for e in errors)
        assert ours < theirs, f"seed {SEED}"


def test_rounding_needs_samples_and_keeps_the_network_near() -> None:
    rng = np.random.default_rng(SEED)
    arrays = {f"w{i}": rng.standard_normal((16, 16)).astype(np.float32) / 4 for i in range(2)}
    text = (
        "graph main {\n  %x = input() : (N)x16xf32\n  %w0 = constant(@w0) : 16x16xf32\n"
        "  %a = gemm(%x, %w0) : (N)x16xf32\n  %r = relu(%a) : (N)x16xf32\n"
        "  %w1 = constant(@w1) : 16x16xf32\n  %y = gemm(%r, %w1) : (N)x16xf32\n  output(y=%y)\n}"
    )
    graph, x = parse(text, arrays), correlated(rng, 64, 16)
    statistics = pipeline.calibrate(graph, x)
    names = ["round-weights", "correct-bias"]
    with pytest.raises(UsageError, match="round-weights needs samples"):
        pipeline.quantize(graph, statistics, corrections=names)
    ledger = Ledger()
    made = pipeline.quantize(graph, statistics, corrections=names, samples={"x": x}, ledger=ledger)
    again = pipeline.quantize(graph, statistics, corrections=names, samples={"x": x})
    assert made == again
    assert [e.subject for e in ledger if e.step == "round-weights"] == ["a", "y"]
    held = {k: a.astype(np.float64) for k, a in arrays.items()}
    wanted = np.maximum(x @ held["w0"], 0) @ held["w1"]
    found = pipeline.run(made, {"x": x})["y"].astype(np.float64)
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
