"""Keras models and functions in memory, and in files, are frozen and named as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.errors import InputError
from qir.frontends.tensorflow.child import freeze_keras


@pytest.mark.slow
def test_a_model_that_keras_cannot_trace_is_refused_with_the_layer_and_its_fault(
    tmp_path: Path,
) -> None:
    layers = tf.keras.layers
    given = layers.Input((None, None, 3))
    made = layers.UpSampling2D(interpolation="bilinear")(layers.Conv2D(4, 1)(given))
    model = tf.keras.Model(given, made)
    model.save(tmp_path / "m.keras")
    for source in (model, tmp_path / "m.keras"):
        with pytest.raises(InputError, match=r"UpSampling2D.call\(\): Using a symbolic") as raised:
            qir.load(source)
        assert "\n" not in str(raised.value)


def test_large_weights_are_kept_beside_a_graph_and_are_the_models() -> None:
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(2)
    model = tf.keras.Sequential(
        [layers.Input((400,)), layers.Dense(300), layers.Dense(7, dtype="float16")]
    )
    frozen_model = freeze_keras(model)
    assert len(frozen_model.data) < 20_000
    (variable,) = frozen_model.weights.values()
    assert variable.shape == (400, 300)
    x = np.random.default_rng(3).normal(size=(4, 400)).astype(np.float32)
    graph = qir.load(model)
    wanted = np.asarray(model(x, training=False))
    model.layers[0].kernel.assign(np.zeros((400, 300)))  # what was read stays as it was
    (found,) = qir.run(graph, {graph.inputs[0].name: x}).values()
    assert np.allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())


def test_a_concrete_function_is_named_as_the_function_was() -> None:
    @tf.function(input_signature=[tf.TensorSpec((None, 3), name="x")])  # type: ignore[untyped-decorator]
    def scored(x: Any) -> Any:
        return 2.0 * x

    assert qir.load(scored.get_concrete_function()).name == "scored"
