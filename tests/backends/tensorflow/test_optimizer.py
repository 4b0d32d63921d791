"""What TensorFlow's graph optimizer does to float ops between int8 kernels is predicted."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import target
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import TARGET, Array, compared, in_a_child, quantized

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
PROFILE = "tf-2.21.onednn"


def drawn(*shape: int) -> Array:
    return (60 * np.random.default_rng(3).normal(size=shape)).astype(np.float32)


def one(found: object) -> Array:
    (array,) = found.values()  # type: ignore[attr-defined]
    return np.asarray(array)


def test_images_that_a_layer_normalizes_give_the_predicted_integers(tmp_path: Path) -> None:
    layers, x = tf.keras.layers, drawn(16, 40, 40, 3)
    tf.keras.utils.set_random_seed(5)
    model = tf.keras.Sequential(
        [
            layers.Input(x.shape[1:], name="image"),
            layers.Normalization(mean=[1.1, 2.3, 0.7], variance=[3271.0, 3103.0, 3511.0]),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Conv2D(8, 3, activation="relu"),
        ]
    )
    graph = qir.load(model)
    assert "div" in {node.op for node in graph}
    made = quantized(graph, {graph.inputs[0].name: x[:4]})
    assert compared(made, {graph.inputs[0].name: x}, in_a_child) > 100_000
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    back = qir.load(tmp_path / "int8.pb")
    found = one(target(TARGET).compile_file(tmp_path / "int8.pb")(image=x))
    assert np.array_equal(one(qir.run(back, {back.inputs[0].name: x})), found)


def test_a_files_divisions_by_constants_are_predicted_as_products(tmp_path: Path) -> None:
    raw, path = tf.raw_ops, tmp_path / "divided.pb"

    def rounded(x: object, high: float) -> object:
        q = raw.QuantizeV2(
            input=x, min_range=0.0, max_range=high, T=tf.quint8, mode="SCALED",
            round_mode="HALF_TO_EVEN",
        )  # fmt: skip
        return raw.Dequantize(
            input=q.output, min_range=q.output_min, max_range=q.output_max, mode="SCALED"
        )

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 4000), name="x")
        # A fourteenth of an integer may be a tie, where the last bit of a quotient decides.
        divided = raw.RealDiv(x=rounded(x, 255.0), y=tf.constant(np.float32(14)))
        raw.Identity(input=rounded(divided, 255.0), name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    feeds = {"x": np.abs(drawn(4, 4000))}
    found = one(target(TARGET).compile_file(path)(**feeds))
    stated = qir.load(path)
    assert not np.array_equal(one(qir.run(stated, feeds)), found)
    ledger = qir.Ledger()
    predicted = run_passes(stated, [Group(PROFILE)], ledger)
    assert np.array_equal(one(qir.run(predicted, feeds)), found)
    assert any("reciprocal" in entry.reason for entry in ledger)
