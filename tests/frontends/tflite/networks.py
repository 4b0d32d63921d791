"""Networks of Keras, as TensorFlow's converter writes them, and what its interpreter computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from qir.ir.graph import Graph

Array = NDArray[np.generic]
L = tf.keras.layers


def network_of(shape: tuple[int, ...], body: Callable[[Any], Any], batch: int | None = None) -> Any:
    x = tf.keras.Input(shape, batch_size=batch)
    return tf.keras.Model(x, body(x))


def _dense(x: Any) -> Any:
    for units, activation in ((32, "relu"), (16, "tanh"), (8, "gelu"), (5, "softmax")):
        x = L.Dense(units, activation)(x)
    return x


def _activations(x: Any) -> Any:
    names = "elu selu softplus softsign sigmoid hard_sigmoid swish relu6 exponential leaky_relu"
    rows = [L.Activation(name)(L.Dense(8)(x)) for name in names.split()]
    return L.Concatenate()([*rows, L.PReLU()(L.Dense(8)(x))])


def _images(x: Any) -> Any:
    x = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    down = L.Conv2D(8, 3, padding="same", strides=2)(x)
    wide = L.UpSampling2D(2, interpolation="bilinear")(down)
    turned = L.Conv2DTranspose(4, 3, strides=2, padding="same")(L.MaxPooling2D(2)(x))
    near = L.UpSampling2D(2)(L.AveragePooling2D(2)(x))
    return L.Conv2D(2, 1)(L.Concatenate()([wide, x, turned, near]))


def _windows(x: Any) -> Any:
    x = L.Conv2D(8, 3, dilation_rate=2, padding="same")(x)
    x = L.DepthwiseConv2D(5, strides=2, padding="same", depth_multiplier=2)(x)
    x = L.Conv2D(12, 3, strides=3, padding="valid", groups=2)(x)
    return L.GlobalAveragePooling2D()(L.Cropping2D(1)(L.ZeroPadding2D(1)(x)))


def _unread(x: Any) -> Any:
    """A window of 2 by steps of 4 on 8 rows: padding SAME adds nothing, and leaves rows unread."""
    return L.Conv2D(6, 2, strides=4, padding="same")(x)


def _sequence(x: Any) -> Any:
    x = L.Conv1D(8, 5, padding="causal", dilation_rate=2, activation="relu")(x)
    x = L.SeparableConv1D(7, 3)(L.MaxPooling1D(2)(x))
    return L.Dense(3)(L.Flatten()(x))


def _attention(x: Any) -> Any:
    return L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))


def _inverted(x: Any) -> Any:
    y = L.Conv2D(12, 3, strides=2, padding="same", use_bias=False)(x)
    y = L.ReLU(6.0)(L.BatchNormalization()(y))
    z = L.DepthwiseConv2D(3, padding="same", use_bias=False)(L.Conv2D(24, 1, activation="relu6")(y))
    return L.GlobalAveragePooling2D()(L.Add()([y, L.Conv2D(12, 1)(L.BatchNormalization()(z))]))


def _moves(x: Any) -> Any:
    ops = tf.keras.ops
    rows = [
        ops.reshape(ops.max(x, axis=1, keepdims=True), (-1, 8)),
        ops.sum(x, axis=1),
        ops.sqrt(ops.abs(x[:, 0]) + 1),
        ops.flip(x, 1)[:, ::2][:, 0],
        ops.where(x[:, 2] > 0, x[:, 3], x[:, 4]),
        ops.minimum(x[:, 1], x[:, 2]) / (ops.exp(x[:, 3]) + 1),
    ]
    return ops.concatenate(rows, axis=-1)


NETWORKS: Mapping[str, Callable[[], Any]] = {
    "activations": lambda: network_of((12,), _activations),
    "attention": lambda: network_of((12, 16), _attention),
    "dense": lambda: network_of((20,), _dense),
    "images": lambda: network_of((32, 32, 3), _images),
    "inverted": lambda: network_of((24, 20, 3), _inverted),
    "moves": lambda: network_of((6, 8), _moves),
    "sequence": lambda: network_of((40, 6), _sequence),
    "unread": lambda: network_of((8, 8, 3), _unread),
    "volumes": lambda: network_of(
        (6, 8, 8, 2), lambda x: L.Dense(3)(L.Flatten()(L.Conv3D(4, 3)(x)))
    ),
    "windows": lambda: network_of((33, 31, 3), _windows),
}
LOOPS: Mapping[str, Callable[[], Any]] = {
    "gru": lambda: network_of((5, 6), lambda x: L.Dense(3)(L.GRU(8)(x)), 1),
    "gru_unrolled": lambda: network_of((5, 6), lambda x: L.Dense(3)(L.GRU(8, unroll=True)(x))),
    "lstm": lambda: network_of((6, 4), L.LSTM(5, return_sequences=True), 1),
    "lstm_both_ways": lambda: network_of((6, 4), L.Bidirectional(L.LSTM(5)), 1),
    "simple_rnn": lambda: network_of((5, 6), L.SimpleRNN(8, return_sequences=True), 1),
}
KINDS = ("float", "float16", "dynamic", "int8", "int8_float_ends", "int16")
"""What the converter makes: floats, weights of half floats or of bytes, integers."""


def build(make: Callable[[], Any], seed: int, spread: float = 0.05) -> Any:
    """Returns a network with seeded weights; `spread` is added, so that biases are not zero."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    model, rng = make(), np.random.default_rng(seed)
    held = [w + spread * rng.random(w.shape).astype(np.float32) for w in model.get_weights()]
    model.set_weights(held)
    return model


def converted(model: Any, kind: str, seed: int, path: Path) -> Path:
    """Writes a network as TensorFlow's converter makes it."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    rng, sets = np.random.default_rng(seed), tf.lite.OpsSet

    def samples() -> Iterator[list[Array]]:
        for _ in range(6):
            shapes = ([1, *x.shape[1:]] for x in model.inputs)
            yield [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]

    if kind != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind.startswith("int"):
        converter.representative_dataset = samples
    if kind == "int8":
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    if kind == "int16":
        wide = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [wide, sets.TFLITE_BUILTINS]
    path.write_bytes(converter.convert())
    return path


def drawn(graph: Graph, seed: int) -> dict[str, Array]:
    """Returns one sample for each input: integers of all values, floats in [-1, 1]."""
    rng, feeds = np.random.default_rng(seed), {}
    for value in graph.inputs:
        shape = [size if isinstance(size, int) else 1 for size in value.type.shape]
        kind = np.dtype(value.type.dtype.carrier)
        if kind.kind == "i":
            low, high = value.type.bounds
            feeds[value.name] = rng.integers(low, high + 1, shape).astype(kind)
        else:
            feeds[value.name] = rng.uniform(-1, 1, shape).astype(kind)
    return feeds


def interpreted(path: Path, feeds: Sequence[Array], *, reference: bool = False) -> list[Array]:
    """Returns what TensorFlow's interpreter computes, as it comes or by its reference kernels."""
    resolvers = tf.lite.experimental.OpResolverType
    interpreter = tf.lite.Interpreter(
        model_path=str(path),
        num_threads=1,
        experimental_op_resolver_type=resolvers.BUILTIN_REF if reference else resolvers.AUTO,
    )
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
