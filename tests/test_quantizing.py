"""The float graph as quantizing with data prepares it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import qir
from qir import pipeline
from qir.errors import UsageError
from qir.ir.text import parse

KERAS = """graph main {
  %x = input() : 1x3x6x6xf32
  %w = constant(@w) : 4x3x3x3xf32
  %b = constant(@b) : 1x4x1x1xf32
  %k = constant(@k) : 1x4x1x1xf32
  %s = constant(@s) : 1x4x1x1xf32
  %v = constant(@v) : 2x4x1x1xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : 1x4x6x6xf32
  %d = add(%c, %b) : 1x4x6x6xf32
  %e = mul(%d, %k) : 1x4x6x6xf32
  %f = add(%e, %s) : 1x4x6x6xf32
  %r = relu(%f) : 1x4x6x6xf32
  %m = mul(%r, %k) : 1x4x6x6xf32
  %n = add(%m, %s) : 1x4x6x6xf32
  %y = conv2d(%n, %v) : 1x2x6x6xf32
  %p = reduce_mean(%y) {axes = (2, 3), keep = true} : 1x2x1x1xf32
  output(y=%p)
}"""


def arrays() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(3)
    shapes = {"w": (4, 3, 3, 3), "b": (1, 4, 1, 1), "k": (1, 4, 1, 1), "s": (1, 4, 1, 1)}
    shapes["v"] = (2, 4, 1, 1)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def test_no_batch_norm_of_a_keras_model_is_left_and_its_mean_is_a_pool() -> None:
    graph = parse(KERAS, arrays())
    made = pipeline.fold(graph)
    ops = Counter(n.op for n in made if n.op not in ("input", "constant", "output"))
    assert ops == {"conv2d": 2, "relu": 1, "global_avg_pool": 1}
    x = np.random.default_rng(4).standard_normal((1, 3, 6, 6)).astype(np.float32)
    wanted, found = (pipeline.run(g, {"x": x})["y"].astype(np.float64) for g in (graph, made))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert all(d.integer for d in pipeline.plan(graph).decisions)


def test_scores_of_two_computed_values_keep_what_is_added_to_them() -> None:
    """A constant along the last axis of an attention's scores may be a mask, and is no bias."""
    text = """graph main {
      %a = input() : 2x6x8xf32
      %b = input() : 2x8x6xf32
      %k = constant([8.0, 8.0, 8.0, 8.0, 8.0, 8.0]) : 6xf32
      %c = constant([0.0, 0.0, 0.0, 0.0, -1000.0, -1000.0]) : 6xf32
      %m = matmul(%a, %b) : 2x6x6xf32
      %f = mul(%m, %k) : 2x6x6xf32
      %s = add(%f, %c) : 2x6x6xf32
      output(y=%s)
    }"""
    assert Counter(n.op for n in pipeline.fold(parse(text)))["batch_norm"] == 0


def test_quantizing_without_data_leaves_what_is_added_behind_a_convolution() -> None:
    graph = parse(KERAS, arrays())
    made = pipeline.quantize_weights(graph, "i8:32")
    assert Counter(n.op for n in made)["reduce_mean"] == 1


LAYER = """graph main {
  %x = input() : 4x32xf32
  %w = constant(@w) : 32x16xf32
  %y = matmul(%x, %w) : 4x16xf32
  output(y=%y)
}"""


def test_one_call_quantizes_with_and_without_data() -> None:
    weights = np.random.default_rng(6).standard_normal((32, 16)).astype(np.float32)
    graph = parse(LAYER, {"w": weights})
    assert qir.quantize(graph, dynamic=True) == pipeline.quantize_dynamic(graph)
    assert qir.quantize(graph, weights="i8:32") == pipeline.quantize_weights(graph, "i8:32")
    statistics = qir.calibrate(graph, np.ones((4, 32), np.float32))
    for wrong, said in (
        ({}, "give statistics of qir.calibrate, or dynamic=True"),
        ({"dynamic": True, "weights": "i8:32"}, "give one of them"),
        ({"dynamic": True, "statistics": statistics}, "take no statistics"),
        ({"weights": "i8:32", "range_rule": "mse"}, "no choices about them"),
    ):
        with pytest.raises(UsageError, match=said):
            qir.quantize(graph, **wrong)
