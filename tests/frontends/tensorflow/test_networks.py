"""Whole networks read from Keras and TensorFlow: float results, and int8 in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

import qir
from qir.errors import InputError
from qir.reference.interpreter import run
from tests.frontends.comparison import difference

from .networks import Array, frozen, network

NEAR = 1e-4
QUICK = ("mobilenet", "lstm", "transformer")
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
    for name in ("mobilenet", "mobilenet_v3", "efficientnet", "lstm", "transformer")
]


def computed(graph: qir.Graph, x: Array) -> Array:
    (made,) = run(graph, {graph.inputs[0].name: x}).values()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_network_computes_what_tensorflow_computes(name: str, tmp_path: Path) -> None:
    model, x, wanted = network(name)
    path = tmp_path / f"{name}.pb"
    path.write_bytes(frozen(model))
    for source in (model, path):
        graph = qir.load(source)
        assert not isinstance(graph.inputs[0].type.shape[0], int)
        assert difference(computed(graph, x), wanted, NEAR) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    "ConvNeXtTiny DenseNet121 EfficientNetV2B0 InceptionResNetV2 InceptionV3 MobileNetV2"
    " NASNetMobile ResNet50V2 VGG16 Xception".split(),
)
def test_a_network_of_keras_applications_computes_the_same(name: str) -> None:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    build = getattr(tf.keras.applications, name)
    model = build(input_shape=(96, 96, 3), weights=None, classes=10)
    x = np.random.default_rng(7).uniform(-1, 1, (1, 96, 96, 3)).astype(np.float32)
    wanted = np.asarray(model(x, training=False))
    assert difference(computed(qir.load(model), x), wanted, NEAR) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_quantized_for_onnxruntime(name: str, tmp_path: Path) -> None:
    model, x, wanted = network(name)
    graph = qir.load(model)
    quantized = qir.quantize(graph, qir.calibrate(graph, x))
    qir.save(quantized, tmp_path / "int8.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {graph.inputs[0].name: x})
    error = np.square(made.astype(np.float64) - wanted).mean()
    assert 10 * np.log10(np.square(wanted.astype(np.float64)).mean() / error) > 12


@pytest.mark.slow
def test_convolutions_of_keras_take_their_batch_norm_in() -> None:
    model, _, _ = network("mobilenet")
    folded = qir.pipeline.fold(qir.load(model))
    ops = [node.op for node in folded]
    assert ops.count("conv2d") == 28
    assert not {"batch_norm", "mul", "add"} & set(ops)
    assert ops.count("transpose") == 1


@pytest.mark.parametrize(
    "kind", ["keras", *(pytest.param(k, marks=pytest.mark.long) for k in ("h5", "saved_model"))]
)
def test_files_of_keras_are_frozen_in_a_child(kind: str, tmp_path: Path) -> None:
    model, x, wanted = network("lstm")
    path = tmp_path / ("folder" if kind == "saved_model" else f"model.{kind}")
    if kind == "saved_model":
        model.export(str(path), verbose=False)
    else:
        model.save(str(path))
    graph = qir.load(path)
    assert difference(computed(graph, x), wanted, NEAR) == ""


@pytest.mark.slow
def test_signatures_keep_their_names(tmp_path: Path) -> None:
    class Two(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

        @tf.function(input_signature=[tf.TensorSpec((None, 2), name="features")])  # type: ignore[untyped-decorator]
        def serve(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
            made = tf.matmul(features, self.w)
            return {"twice": 2.0 * made, "once": made}

    module = Two()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.serve)
    graph = qir.load(tmp_path / "m")
    assert [v.name for v in graph.inputs] == ["features"]
    made = run(graph, {"features": np.eye(2, dtype=np.float32)})
    assert np.array_equal(made["once"], module.w.numpy())
    assert np.array_equal(made["twice"], 2 * module.w.numpy())


class Subclassed(tf.keras.Model):  # type: ignore[misc]
    """A model as users derive them; without an argument `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = tf.keras.layers.Dense(5, activation="relu")
        self.norm = tf.keras.layers.BatchNormalization()
        self.last = tf.keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.last(self.norm(self.hidden(x)))


class Several(tf.keras.Model):  # type: ignore[misc]
    """A model of several inputs and results."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = tf.keras.layers.Dense(3), tf.keras.layers.Dense(3)

    def call(self, given: dict[str, Any], training: bool = False) -> dict[str, Any]:
        assert not training
        made = self.left(given["image"]) + self.right(given["more"][0])
        return {"sum": made, "scaled": made * given["more"][1]}


def test_a_subclassed_model_is_read_by_the_shapes_it_was_called_with() -> None:
    x = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    model = Subclassed()
    with pytest.raises(InputError, match="the model has no known inputs; call it once"):
        qir.load(model)
    wanted = np.asarray(model(x, training=False))
    graph = qir.load(model)
    assert not isinstance(graph.inputs[0].type.shape[0], int)
    assert difference(computed(graph, x), wanted, NEAR) == ""


def test_a_subclassed_model_has_an_input_for_each_tensor_of_its_argument() -> None:
    rng = np.random.default_rng(3)
    x, a, b = (rng.normal(size=(4, n)).astype(np.float32) for n in (6, 5, 3))
    model = Several()
    wanted = model({"image": x, "more": [a, b]})
    graph = qir.load(model)
    assert [v.name for v in graph.inputs] == ["image", "more_0", "more_1"]
    made = list(run(graph, {"image": x, "more_0": a, "more_1": b}).values())
    for ours, theirs in zip(made, (wanted["scaled"], wanted["sum"]), strict=True):
        assert difference(ours, np.asarray(theirs), NEAR) == ""


def test_encodings_of_categories() -> None:
    """Keras clamps their size to one number from both sides."""
    layers = tf.keras.layers
    ids, given = layers.Input((4,), dtype="int32"), layers.Input((1,))
    many = layers.CategoryEncoding(10, "multi_hot")(ids)
    place = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5])(given)
    made = layers.Concatenate()([many, layers.CategoryEncoding(4, "one_hot")(place)])
    model = tf.keras.Model([ids, given], layers.Dense(3)(made))
    rng = np.random.default_rng(9)
    data = rng.integers(0, 10, (5, 4)).astype(np.int32), rng.normal(size=(5, 1)).astype(np.float32)
    graph = qir.load(model)
    assert not any(node.op == "foreign" for node in graph)
    feeds = {v.name: x for v, x in zip(graph.inputs, data, strict=True)}
    (made,) = run(graph, feeds).values()
    assert difference(made, np.asarray(model(list(data))), NEAR) == ""


def test_attention_is_products_of_matrices() -> None:
    layers = tf.keras.layers
    given = layers.Input((7, 12))
    model = tf.keras.Model(given, layers.MultiHeadAttention(3, 4)(given, given))
    graph = qir.load(model)
    assert not any(node.op == "einsum" for node in graph)
    assert sum(node.op == "matmul" for node in graph) >= 2
    x = np.random.default_rng(2).normal(size=(3, 7, 12)).astype(np.float32)
    assert difference(computed(graph, x), np.asarray(model(x)), NEAR) == ""
