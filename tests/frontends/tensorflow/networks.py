"""Keras networks with seeded weights, each with an input, for the tests to freeze."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

Array = NDArray[np.generic]
layers = tf.keras.layers


def _applied(name: str, **options: Any) -> tuple[Any, Array]:
    options |= {"input_shape": (96, 96, 3), "weights": None, "classifier_activation": None}
    network = getattr(tf.keras.applications, name)(**options)
    span = 1 if name == "MobileNet" else 127
    return network, _draw(2, 96, 96, 3, span=span)


def _draw(*shape: int, span: float = 1.0) -> Array:
    return (np.random.default_rng(7).uniform(-1, 1, shape) * span).astype(np.float32)


def _lstm() -> tuple[Any, Array]:
    x = layers.Input((9, 6))
    y = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    y = layers.GRU(5)(layers.LSTM(7, return_sequences=True, unroll=True)(y))
    return tf.keras.Model(x, layers.Dense(4)(y)), _draw(3, 9, 6)


def _transformer() -> tuple[Any, Array]:
    ids = layers.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(ids)
    y = layers.MultiHeadAttention(2, 8)(x, x)
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    return tf.keras.Model(ids, y), np.random.default_rng(7).integers(0, 50, (3, 12)).astype("i4")


def _bert() -> tuple[Any, Array]:
    """Two blocks as BERT has them: norms after the sums, a product four times as wide."""
    ids = layers.Input((16,), dtype="int32")
    places = layers.Embedding(16, 64)(np.arange(16)[None])
    x = layers.LayerNormalization()(layers.Embedding(50, 64)(ids) + places)
    for _ in range(2):
        y = layers.MultiHeadAttention(4, 16)(x, x)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(64)(layers.Dense(256, activation="gelu")(x))
        x = layers.LayerNormalization()(x + y)
    y = layers.Dense(2)(layers.Dense(64, activation="tanh")(x[:, 0]))
    return tf.keras.Model(ids, y), np.random.default_rng(7).integers(0, 50, (3, 16)).astype("i4")


NETWORKS: dict[str, Callable[[], tuple[Any, Array]]] = {
    "mobilenet": lambda: _applied("MobileNet", alpha=0.25),
    "mobilenet_v3": lambda: _applied("MobileNetV3Small"),
    "efficientnet": lambda: _applied("EfficientNetB0"),
    "convnext": lambda: _applied("ConvNeXtTiny"),
    "lstm": _lstm,
    "bert": _bert,
    "transformer": _transformer,
}


def frozen(model: Any) -> bytes:
    """Returns a model with one input as TensorFlow's own converter freezes it."""
    (x,) = model.inputs
    call = tf.function(lambda value: model(value, training=False))
    concrete = call.get_concrete_function(tf.TensorSpec(x.shape, x.dtype, name=x.name))
    constant = convert_variables_to_constants_v2(
        concrete, lower_control_flow=False, aggressive_inlining=True
    )
    data: bytes = constant.graph.as_graph_def().SerializeToString()
    return data


def network(name: str) -> tuple[Any, Array, Array]:
    """Returns a network with random weights, an input, and what Keras computes of it."""
    return _seeded(NETWORKS[name])


def application(name: str) -> tuple[Any, Array, Array]:
    """Returns a network of keras.applications in the same way, by its name there."""
    return _seeded(lambda: _applied(name))


def _seeded(build: Callable[[], tuple[Any, Array]]) -> tuple[Any, Array, Array]:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    model, x = build()
    random = np.random.default_rng(11)
    for layer in model.layers:  # statistics that are not those of an untrained layer
        if isinstance(layer, layers.BatchNormalization):
            *scales, beta, mean, var = layer.get_weights()  # some have no gamma
            draw = [*(random.uniform(0.6, 1.4, s.shape) for s in scales),
                    *(0.1 * random.normal(size=s.shape) for s in (beta, mean)),
                    random.uniform(0.5, 1.5, var.shape)]  # fmt: skip
            layer.set_weights([d.astype(np.float32) for d in draw])
    return model, x, np.asarray(model(x, training=False))
