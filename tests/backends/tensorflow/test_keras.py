"""Keras networks, frozen, quantized, written, and run by TensorFlow again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tensorflow.writer.forms import converted
from qir.target import target
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import TARGET, close, compared, compared_by_regions, here, quantized

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")


def mobilenet() -> qir.Graph:
    """Depthwise convolutions with uneven SAME padding, batch normalization and relu6."""
    layers = tf.keras.layers
    x = given = layers.Input((33, 33, 3))
    for outer, stride in ((8, 2), (16, 1), (24, 2)):
        if x is not given:
            x = layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(x)
            x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        size = 3 if x is given else 1
        x = layers.Conv2D(outer, size, stride if x is given else 1, "same", use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x))
    return loaded(tf.keras.Model(given, x))


def resnet() -> qir.Graph:
    """Residual blocks of convolutions with batch normalization, and a pool."""
    layers = tf.keras.layers
    given = layers.Input((24, 24, 3))
    x = layers.ReLU()(layers.Conv2D(8, 3, padding="same")(given))
    x = layers.MaxPooling2D(2)(x)
    for outer, stride in ((8, 1), (16, 2)):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(outer, 3, stride, "same")(x)))
        y = layers.BatchNormalization()(layers.Conv2D(outer, 3, padding="same")(y))
        x = layers.Conv2D(outer, 1, stride)(x) if stride > 1 else x
        x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.Flatten()(layers.AveragePooling2D(2)(x))
    x = layers.Dense(10)(layers.Dense(12, "relu")(x))
    return loaded(tf.keras.Model(given, x))


def loaded(model: object) -> qir.Graph:
    """Reads a model whose statistics are not those of untrained layers."""
    rng = np.random.default_rng(3)
    for layer in model.layers:  # type: ignore[attr-defined]
        weights = layer.get_weights()
        if len(weights) == 4:
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape).astype(np.float32) for w in weights])
    return qir.load(model)


@pytest.mark.parametrize("build", [mobilenet, resnet])
def test_a_keras_network_computes_in_int8_what_is_predicted(build: object) -> None:
    tf.keras.utils.set_random_seed(5)
    graph = build()  # type: ignore[operator]
    (value,) = graph.inputs
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (16, *value.type.shape[1:])).astype(np.float32)
    assert qir.plan(graph, target=TARGET).integer_macs >= 0.95
    assert compared(quantized(graph, {value.name: x[:4]}), {value.name: x}, here) > 10_000
    close(graph, {value.name: x[:4]}, here)


def unet() -> object:
    """Two steps down and up again, by both paddings of transposed convolutions."""
    layers = tf.keras.layers
    given = layers.Input((16, 24, 3))
    skips, x = [], given
    for outer in (8, 12):
        x = layers.Conv2D(outer, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    for outer, size in ((12, 3), (8, 2)):
        x = layers.Conv2DTranspose(outer, size, 2, "same")(x)
        x = layers.Concatenate()([x, skips.pop()])
        x = layers.Conv2D(outer, 3, padding="same", activation="relu")(x)
    return tf.keras.Model(given, layers.Conv2D(2, 1, activation="sigmoid")(x))


def volumes() -> object:
    """Convolutions and both pools of volumes, one of them padded."""
    layers = tf.keras.layers
    given = layers.Input((8, 9, 10, 2))
    x = layers.Conv3D(6, 3, padding="same", activation="relu")(given)
    x = layers.MaxPooling3D(2)(x)
    x = layers.Conv3D(8, 2, strides=2, padding="same", activation="relu")(x)
    x = layers.AveragePooling3D(2, padding="same")(x)
    x = layers.Dense(12, "relu")(layers.Flatten()(x))
    return tf.keras.Model(given, layers.Dense(4)(x))


@pytest.mark.parametrize(("build", "shape"), [(unet, (16, 24, 3)), (volumes, (8, 9, 10, 2))])
def test_volumes_and_transposed_convolutions_are_written(
    build: Callable[[], object], shape: tuple[int, ...], tmp_path: Path
) -> None:
    tf.keras.utils.set_random_seed(5)
    model = build()
    graph = qir.load(model)
    (value,) = graph.inputs
    x = np.random.default_rng(4).normal(0, 1, (4, *shape)).astype(np.float32)
    wanted = np.asarray(model(x))  # type: ignore[operator]
    qir.save(graph, tmp_path / "f.pb", target=TARGET)
    (found,) = target(TARGET).compile_file(tmp_path / "f.pb")(**{value.name: x}).values()
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    (back,) = qir.run(qir.load(tmp_path / "f.pb"), {value.name: x}).values()
    assert np.abs(back - wanted).max() <= 1e-5 * np.abs(wanted).max()
    made = quantized(graph, {value.name: x})
    assert compared_by_regions(made, {value.name: x}, here).integers > 100


def test_sequences_of_open_length(tmp_path: Path) -> None:
    """Dense layers on them are products of matrices, whose rows are counted as they run."""
    layers = tf.keras.layers
    given = layers.Input((None, 6))
    x = layers.Conv1D(8, 3, padding="causal", dilation_rate=2, activation="relu")(given)
    x = layers.Dense(7)(layers.Dense(12, "relu")(x))
    graph = qir.load(tf.keras.Model(given, layers.Softmax()(x)))
    (value,) = graph.inputs
    rng = np.random.default_rng(5)
    made = quantized(graph, {value.name: rng.normal(size=(4, 9, 6)).astype(np.float32)})
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    again = qir.load(tmp_path / "int8.pb")
    assert sum(node.op in ("linear", "fused") for node in again) >= 2
    for length in (9, 14):
        feeds = {value.name: rng.normal(size=(2, length, 6)).astype(np.float32)}
        assert compared_by_regions(made, feeds, here).integers > 200
        kernels = converted(made, qir.Ledger(), kernels=True)
        (ours,), (back,) = (qir.run(each, feeds).values() for each in (kernels, again))
        assert np.abs(np.subtract(ours, back)).max() <= 1e-6


def test_convolutions_in_the_loop_of_a_layer_are_written_in_float() -> None:
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(4)
    model = tf.keras.Sequential([layers.Input((3, 6, 6, 2)), layers.ConvLSTM2D(3, 3)])
    graph = qir.load(model)
    x = np.random.default_rng(2).normal(size=(2, 3, 6, 6, 2)).astype(np.float32)
    close(graph, {graph.inputs[0].name: x}, here)
