"""LSTM and GRU come back from TensorFlow's loops, and compute what TensorFlow does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

import qir
from qir.reference.interpreter import run
from tests.frontends.comparison import difference

L = tf.keras.layers
X = np.random.default_rng(3).uniform(-1, 1, (3, 7, 6)).astype(np.float32)

LAYERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "lstm": (lambda: L.LSTM(5), ["lstm"]),
    "no bias": (lambda: L.LSTM(5, use_bias=False, return_sequences=True), ["lstm"]),
    "relu": (lambda: L.LSTM(5, activation="relu"), ["lstm"]),
    "gru": (lambda: L.GRU(5, bias_initializer="normal"), ["gru"]),
    "gru, reset before": (lambda: L.GRU(5, reset_after=False), ["gru"]),
    "rnn": (lambda: L.SimpleRNN(5), ["rnn"]),
    "both ways": (lambda: L.Bidirectional(L.LSTM(5, return_sequences=True)), ["lstm", "lstm"]),
    "several cells": (
        lambda: L.RNN([L.LSTMCell(5), L.GRUCell(4)], return_sequences=True),
        ["lstm", "gru"],
    ),
}


def found(graph: qir.Graph) -> list[str]:
    return sorted(node.op for node in graph if node.op in ("rnn", "lstm", "gru", "loop"))


@pytest.mark.parametrize("length", [7, None])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_keras_comes_back_from_its_loop(
    name: str, length: int | None, tmp_path: Path
) -> None:
    tf.keras.utils.set_random_seed(1)
    made, wanted = LAYERS[name]
    model = tf.keras.Sequential([L.Input((length, 6)), made()])
    graph = qir.load(model)
    assert found(graph) == sorted(wanted)
    theirs = np.asarray(model(X, training=False))
    (ours,) = run(graph, {graph.inputs[0].name: X}).values()
    assert difference(ours, theirs, 1e-5) == ""
    qir.save(graph, tmp_path / "g.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "g.onnx"))
    (out,) = session.run(None, {session.get_inputs()[0].name: X})
    assert difference(np.asarray(out), theirs, 1e-5) == ""


def test_a_layer_with_a_mask_stays_a_loop() -> None:
    layers = [L.Input((7,), dtype="int32"), L.Embedding(9, 6, mask_zero=True), L.GRU(5)]
    model = tf.keras.Sequential(layers)
    assert found(qir.load(model)) == ["loop"]


def test_peepholes_and_a_projection_come_back_from_a_loop_of_tensorflow_1(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    w, p = (rng.normal(0, 0.4, s).astype(np.float32) for s in ((6 + 3, 20), (5, 3)))
    peep, b = (rng.normal(0, 0.4, s).astype(np.float32) for s in ((3, 5), (20,)))

    def cell(x: Any, c: Any, h: Any) -> tuple[Any, Any]:
        """Computes what LSTMCell of TensorFlow 1 does with use_peepholes and num_proj."""
        total = tf.nn.bias_add(tf.matmul(tf.concat([x, h], 1), w), b)
        i, j, f, o = tf.split(total, 4, 1)
        kept = tf.sigmoid(f + 1.0 + peep[0] * c) * c
        c = kept + tf.sigmoid(i + peep[1] * c) * tf.tanh(j)
        return c, tf.matmul(tf.sigmoid(o + peep[2] * c) * tf.tanh(c), p)

    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as held, v1.Session() as session:
            x = v1.placeholder(tf.float32, (3, 7, 6), "x")
            steps = tf.TensorArray(tf.float32, 7).unstack(tf.transpose(x, (1, 0, 2)))

            def step(i: Any, c: Any, h: Any) -> Any:
                return i + 1, *cell(steps.read(i), c, h)

            start = (0, tf.zeros((3, 5)), tf.zeros((3, 3)))
            last = v1.while_loop(lambda i, *_: i < 7, step, start)[2]
            tf.identity(last, "y")
            theirs = session.run("y:0", {x: X})
            path = tmp_path / "g.pb"
            path.write_bytes(held.as_graph_def().SerializeToString())
    finally:
        v1.enable_control_flow_v2()
    graph = qir.load(path)
    (node,) = (node for node in graph if node.op == "lstm")
    assert {"peephole", "proj", "bias"} <= set(node.operands)
    ours = run(graph, {"x": X})["y"]
    assert difference(ours, theirs, 1e-5) == ""
