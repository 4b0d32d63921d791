"""Certificates of convolutions along lines and volumes and of transposed ones: against runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.inspect.certificates import certify
from qir.ir.dtype import F32, I8, U8
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType, uniform
from qir.reference.interpreter import run

F = np.float32
PAIR = ("torch-2.13.fbgemm", "torch-2.13.qnnpack")


def graph_of(
    op: str,
    x: NDArray[np.uint8],
    w: NDArray[np.int8],
    scales: tuple[float, NDArray[np.floating], float],
    bias: NDArray[np.floating] | None,
    **attrs: Any,
) -> Graph:
    """One layer on u8 integers, its weights with a scale a channel."""
    graph, turned = Graph(), op.startswith("conv_transpose")
    kind = TensorType(x.shape, uniform(U8, F(scales[0]), 121))
    given = {"x": graph.add("input", types=[kind], name="x").result}
    of = uniform(I8, np.asarray(scales[1], F), axis=int(turned), name="w")
    given["w"] = graph.constant(Array(w, TensorType(w.shape, of), "w"))
    if bias is not None:
        given["bias"] = graph.constant(Array(bias.astype(F), TensorType(bias.shape, F32), "b"))
    shape = graph.add(op, {**given, **_dequantized_operands(graph, given)}, attrs).result.type.shape
    result = TensorType(shape, uniform(U8, F(scales[2]), 77))
    graph.add("output", {"y": graph.add(op, given, attrs, types=[result], name="y").result})
    graph.prune()
    return graph


def _dequantized_operands(graph: Graph, given: dict[str, Any]) -> dict[str, Any]:
    return {s: graph.add("dequantize", {"x": given[s]}).result for s in ("x", "w")}


def parted(graph: Graph, x: NDArray[np.uint8], profiles: tuple[str, str]) -> NDArray[np.bool_]:
    made = []
    for name in profiles:
        graph.profile = name
        made.append(run(graph, {"x": x})["y"])
    graph.profile = "native"
    return np.asarray(made[0] != made[1])


CASES = [
    ("conv1d", 1, 1),
    ("conv3d", 3, 1),
    ("conv_transpose1d", 1, 2),
    ("conv_transpose2d", 2, 2),
    ("conv_transpose2d", 2, 1),
    ("conv_transpose2d", 2, 3),
]


@pytest.mark.parametrize(("op", "rank", "stride"), CASES)
@pytest.mark.parametrize("groups", [1, 2])
def test_it_counts_the_sums_on_which_runs_differ(
    op: str, rank: int, stride: int, groups: int
) -> None:
    """Of windows of two taps along the last axis alone: every pair of integers is run."""
    turned, apart = op.startswith("conv_transpose"), 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        outs = 2
        window = (1,) * (rank - 1) + (2,)
        shape = (groups, outs, *window) if turned else (groups * outs, 1, *window)
        w = rng.integers(-5, 6, shape).astype(np.int8)
        w_scale = rng.choice([0.5, 0.75, 0.25], outs if turned else groups * outs)
        bias = rng.normal(size=groups * outs) if seed % 2 else None
        pairs = np.array(list(itertools.product(range(256), repeat=2)), np.uint8)
        sides = (1,) * (rank - 1) + (2,)
        x = np.repeat(pairs[:, None], groups, 1).reshape(-1, groups, *sides)
        attrs = {"stride": (1,) * (rank - 1) + (stride,), "groups": groups}
        scales = (0.5, w_scale, float(rng.choice([1.5, 0.75, 2.5])))
        graph = graph_of(op, x, w, scales, bias, **attrs)
        (certificate,) = certify(graph, PAIR, isa="vnni")
        ties = certificate.ties
        assert ties is not None
        assert ties.proof, ties.why
        wanted = differing(parted(graph, x, PAIR), w, pairs, turned, groups, stride)
        assert ties.differ == wanted, f"seed {seed}"
        apart += bool(ties.differ)
    assert apart


def differing(
    apart: NDArray[np.bool_],
    w: NDArray[np.int8],
    pairs: NDArray[np.uint8],
    turned: bool,
    groups: int,
    stride: int,
) -> int:
    """The sums on which integers differ, counted for each channel and kind of place."""
    x, found = pairs.astype(np.int64) - 121, 0
    apart = apart.reshape(len(pairs), apart.shape[1], -1)
    for channel in range(apart.shape[1]):
        outs = w.shape[1]
        row = w[channel // outs, channel % outs] if turned else w[channel, 0]
        first, second = (int(v) for v in row.reshape(-1))
        kinds: dict[int, set[int]] = {}
        for place in range(apart.shape[2]):
            sums = np.zeros(len(pairs), np.int64)
            if turned:
                for tap, value in enumerate((first, second)):
                    source = place - tap
                    if source % stride == 0 and 0 <= source // stride < 2:
                        sums += value * x[:, source // stride]
            else:
                sums = first * x[:, 0] + second * x[:, 1]
            kinds.setdefault(place % stride, set()).update(sums[apart[:, channel, place]].tolist())
        found += sum(map(len, kinds.values()))
    return found


def test_weights_that_a_runtime_misreads_are_no_subject_of_proof() -> None:
    x, w = np.zeros((1, 2, 3, 3), np.uint8), np.ones((2, 3, 2, 2), np.int8)
    graph = graph_of("conv_transpose2d", x, w, (0.5, np.full(3, 0.5), 1.5), None)
    (certificate,) = certify(graph, ("torch-2.13.onednn", "torch-2.13.qnnpack"), isa="vnni")
    assert certificate.ties is not None
    assert "torch-2.13.onednn multiplies other weights" in certificate.ties.why
