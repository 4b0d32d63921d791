"""Biases that take away the mean error of rounded weights, against sums written out in NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.calibration import Statistics
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.scheme import parse_scheme
from qir.ir.text import parse, print_graph
from qir.ledger import Ledger
from qir.passes.quantize.assign_schemes import read_capability
from qir.passes.quantize.correct_bias import CorrectBias
from qir.rewrite import run_passes

SEED = 20261128
Reals = NDArray[np.float64]


def rounded(weights: Reals, axis: int | None) -> Reals:
    """Weights as int8 integers of -127..127 hold them, one scale for each index of an axis."""
    rest = tuple(i for i in range(weights.ndim) if i != axis)
    reach = np.abs(weights).max(axis=None if axis is None else rest, keepdims=True)
    scale = (reach.astype(np.float32) / np.float32(127)).astype(np.float64)
    return np.asarray(np.rint(weights / scale) * scale, np.float64)


def convolved(x: Reals, w: Reals, pad: int, stride: int, dilation: int, groups: int) -> Reals:
    """A convolution along two axes, one product after another."""
    n, _, height, width = x.shape
    o, i, kh, kw = w.shape
    sizes = [
        (s + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for s, k in ((height, kh), (width, kw))
    ]
    out = np.zeros((n, o, *sizes))
    for b, c, y, z in np.ndindex(*out.shape):
        first = c // (o // groups) * i
        for j, p, q in product(range(i), range(kh), range(kw)):
            row, column = y * stride + p * dilation - pad, z * stride + q * dilation - pad
            if 0 <= row < height and 0 <= column < width:
                out[b, c, y, z] += x[b, first + j, row, column] * w[c, j, p, q]
    return out


def layer(graph: Graph) -> Node:
    return next(n for n in graph if n.op in ("conv2d", "gemm", "linear", "matmul"))


def planned(graph: Graph, grain: str) -> Graph:
    """The graph with a plan for the weights of its layer, and for its bias where it has one."""
    node = layer(graph)
    slots = {"conv2d": ("w", "bias"), "linear": ("w", "bias"), "gemm": ("b", "c")}
    weight, bias = slots[node.op]
    graph.set_scheme(node, weight, parse_scheme(f"i8<-127:127> symmetric {grain}"))
    if bias in node.operands:
        graph.set_scheme(node, bias, parse_scheme(f"i32 symmetric {grain}"))
    return graph


def seen(x: NDArray[np.floating], axis: int) -> Statistics:
    statistics = Statistics("model")
    with statistics.batch("data", 0) as batch:
        batch.update("x", x.astype(np.float32))
        batch.update("x", x.astype(np.float32), axis)
    return statistics


def corrected(graph: Graph, statistics: Statistics, name: str = "onnxruntime") -> Graph:
    one = CorrectBias(statistics, capability=read_capability(name))
    return run_passes(graph, [one], Ledger())


def bias_of(graph: Graph) -> Reals:
    node = layer(graph)
    found = node.operands["c" if node.op == "gemm" else "bias"].constant
    assert found is not None
    return found.data.astype(np.float64)


@pytest.mark.parametrize("grain", ["channel", "tensor"])
@pytest.mark.parametrize(
    ("pad", "stride", "dilation", "groups"),
    [(0, 1, 1, 1), (1, 1, 1, 1), (2, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 4), (1, 2, 1, 2)],
)
def test_the_bias_of_a_convolution_takes_away_the_mean_error_borders_included(
    pad: int, stride: int, dilation: int, groups: int, grain: str
) -> None:
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((4, 4 // groups, 3, 3)).astype(np.float32)
    b = rng.standard_normal(4).astype(np.float32)
    x = np.broadcast_to(rng.standard_normal((1, 4, 1, 1)).astype(np.float32), (1, 4, 6, 7))
    error = rounded(w.astype(np.float64), 0 if grain == "channel" else None) - w
    wrong = convolved(x.astype(np.float64), error, pad, stride, dilation, groups)
    graph = parse(
        f"graph main {{\n  %x = input() : 1x4x6x7xf32\n"
        f"  %w = constant(@w) : 4x{4 // groups}x3x3xf32\n  %b = constant(@b) : 4xf32\n"
        f"  %y = conv2d(%x, %w, bias=%b) {{stride = ({stride}, {stride}), "
        f"pad = ({pad}, {pad}, {pad}, {pad}), dilation = ({dilation}, {dilation}), "
        f"groups = {groups}}} : 1x4x{wrong.shape[2]}x{wrong.shape[3]}xf32\n  output(y=%y)\n}}\n",
        {"w": w, "b": b},
    )
    made = corrected(planned(graph, grain), seen(x, 1))
    wanted = b - wrong.mean(axis=(0, 2, 3))
    np.testing.assert_allclose(bias_of(made), wanted, rtol=1e-6, atol=1e-6, err_msg=f"seed {SEED}")
    assert np.abs(wrong).max() > 1e-4


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_without_bias_gets_one_where_the_target_takes_it(turned: bool) -> None:
    rng = np.random.default_rng(SEED)
    w, x = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal((8, 5))
    shape = "3x5" if turned else "5x3"
    text = (
        f"graph main {{\n  %x = input() : 8x5xf32\n  %w = constant(@w) : {shape}xf32\n"
        f"  %y = gemm(%x, %w) {{trans_b = {str(turned).lower()}}} : 8x3xf32\n"
        "  output(y=%y)\n}\n"
    )
    graph = planned(parse(text, {"w": w.T.copy() if turned else w}), "channel")
    made = corrected(graph, seen(x, 1))
    error = x.astype(np.float32).astype(np.float64) @ (rounded(w.astype(np.float64), 1) - w)
    np.testing.assert_allclose(bias_of(made), -error.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert str(layer(made).schemes["c"]).startswith("i32 symmetric channel")
    assert (
        run_passes(
            made, [CorrectBias(seen(x, 1), capability=read_capability("onnxruntime"))], Ledger()
        )
        == made
    )


def test_what_no_statistics_tell_of_stays_as_it_is() -> None:
    text = (
        "graph main {\n  %x = input() : 8x3xf32\n  %w = constant([1.0, 0.2, 0.3]) : 3x1xf32\n"
        "  %y = gemm(%x, %w) : 8x1xf32\n  output(y=%y)\n}\n"
    )
    graph = planned(parse(text), "tensor")
    x = np.ones((8, 3))
    partly = seen(x, 1)
    with partly.batch("data", 1) as batch:
        batch.update("x", x.astype(np.float32))  # a batch whose channels nobody counted
    for statistics in (Statistics("model"), partly, seen(x, 0)):
        assert corrected(graph, statistics) == graph


def test_quantizing_corrects_biases_unless_told_not_to() -> None:
    rng = np.random.default_rng(SEED)
    text = (
        "graph main {\n  %x = input() : (N)x6xf32\n  %w = constant(@w) : 6x4xf32\n"
        "  %y = gemm(%x, %w) : (N)x4xf32\n  output(y=%y)\n}\n"
    )
    w = rng.standard_normal((6, 4)).astype(np.float32)
    x = (rng.random((64, 6)) + 1).astype(np.float32)
    graph = parse(text, {"w": w})
    statistics = pipeline.calibrate(graph, x)
    ledger = Ledger()
    made = pipeline.quantize(graph, statistics, ledger=ledger)
    plain = pipeline.quantize(graph, statistics, corrections="none")
    exact = x.astype(np.float64) @ w
    off = []
    for each in (made, plain):
        found = pipeline.run(each, {"x": x})["y"].astype(np.float64)
        off.append(np.abs((found - exact).mean(axis=0)).max())
    assert off[0] < off[1] / 2, f"seed {SEED}"
    assert [e.subject for e in ledger if e.step == "correct-bias"] == ["y"]
    assert "c" not in layer(plain).operands
    assert print_graph(made) == print_graph(pipeline.quantize(graph, statistics))
    with pytest.raises(UsageError, match=r"no correction 'bias': there are .*correct-bias"):
        pipeline.quantize(graph, statistics, corrections=["bias"])
