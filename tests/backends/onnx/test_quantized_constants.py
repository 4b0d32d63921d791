"""Weights of simulated quantization that leave out the lowest integer, for onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorflow as tf

import qir
from tests.differential.runtime import run
from tests.frontends.tensorflow.comparison import build_graph_def, save_graph_def

F = np.float32
FAKE = tf.quantization


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("each", [False, True])
def test_trained_weights_stay_as_tensorflow_has_them(each: bool, form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = (rng.integers(-9, 270, (2, 6, 6, 3)) / 4).astype(F)
    w = (rng.normal(size=(3, 3, 3, 4)) / 4).astype(F)  # all well within the range
    end = np.array([1, 2, 0.5, 1][: 4 if each else 1], F) * F(127 / 128)  # scales are powers of two
    fake = (
        FAKE.fake_quant_with_min_max_vars_per_channel if each else FAKE.fake_quant_with_min_max_vars
    )
    low, high = (-end, end) if each else (-end[0], end[0])

    def net(x: tf.Tensor) -> tf.Tensor:
        x = FAKE.fake_quant_with_min_max_args(x, 0.0, 63.75)
        y = tf.nn.relu(tf.nn.conv2d(x, fake(w, low, high, narrow_range=True), 1, "SAME"))
        return FAKE.fake_quant_with_min_max_args(y, 0.0, 127.5)

    proto, (wanted,) = build_graph_def(net, (x,), open_axes=1)
    made = tmp_path / "m.onnx"
    qir.save(qir.load(save_graph_def(proto, tmp_path / "m.pb")), made, format=form)
    model = onnx.load(made)
    assert not model.functions
    for optimize in (False, True):
        (found,) = run(model, {"x0": x}, optimize=optimize).values()
        assert np.array_equal(found, wanted)
