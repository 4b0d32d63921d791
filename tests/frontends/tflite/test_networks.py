"""Networks that TensorFlow's converter wrote: every integer is that of its interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from tests.cli.command import qir as command
from tests.counting import note
from tests.differential.tensorflow.kernels import HAS_VNNI
from tests.frontends.comparison import difference

from .networks import KINDS, LOOPS, NETWORKS, L, build, converted, drawn, interpreted, network_of

pytestmark = pytest.mark.slow
NEAR = 1e-4
SEED = 11
REFERENCE = "tflite-2.21.ref"
CASES = [(name, kind) for name in NETWORKS for kind in KINDS]
ABSENT = {("images", "int16"), ("attention", "int16"), ("moves", "int16")}
"""Networks that TensorFlow's own interpreter refuses: it has no 16-bit kernel for their ops."""
DEFECTS = {("unread", "float"), ("unread", "float16"), ("unread", "dynamic")}
"""Float layers of which XNNPACK reads nothing, in TensorFlow 2.21: a note of the ledger says so."""
WITHOUT_REFERENCE = ("activations", "images", "moves")
"""Networks with 8-bit ops for which the reference's resolver has no kernel."""


def compare(path: Path, graph: Graph, profile: str | None = None) -> None:
    """AssertionError where an output is not the interpreter's."""
    for seed in range(3):
        feeds = drawn(graph, seed)
        wanted = interpreted(path, list(feeds.values()), reference=profile is not None)
        found = list(qir.run(graph, feeds, profile=profile).values())
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            if theirs.dtype.kind == "i":
                note(ours, theirs)
                assert np.array_equal(ours, theirs), np.count_nonzero(ours != theirs)
            else:
                assert difference(ours, theirs, NEAR) == ""


@pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
@pytest.mark.sampled(24)
@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case not in ABSENT | DEFECTS])
def test_a_network_computes_what_the_interpreter_computes(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = converted(build(NETWORKS[name], SEED), kind, SEED, tmp_path / "net.tflite")
    graph = qir.load(path)
    if kind.startswith("int"):
        assert graph.profile == "tflite-2.21.xnnpack"
    compare(path, graph)
    if kind == "int8" and name not in WITHOUT_REFERENCE:
        compare(path, graph, REFERENCE)


def test_float_layers_that_the_delegate_misreads_are_noted(tmp_path: Path) -> None:
    """The results are those of the layer; the interpreter's are those of padding alone."""
    path = converted(build(NETWORKS["unread"], SEED), "float", SEED, tmp_path / "net.tflite")
    ledger = Ledger()
    graph = qir.load(path, ledger=ledger)
    assert sum("XNNPACK reads padding alone" in entry.reason for entry in ledger) == 1
    feeds = drawn(graph, 0)
    (wanted,) = interpreted(path, list(feeds.values()), reference=True)
    (found,) = qir.run(graph, feeds).values()
    assert difference(found, wanted, NEAR) == ""


@pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
def test_a_small_number_is_added_to_each_row_of_a_mean(tmp_path: Path) -> None:
    """As layer norms do: its scale is far below the mean's, and it is one number."""
    model = build(lambda: network_of((12, 16), lambda x: L.LayerNormalization()(x * 3.0)), SEED)
    path = converted(model, "int8", SEED, tmp_path / "net.tflite")
    compare(path, qir.load(path))


def test_a_quantized_model_is_quantized_again_for_another_target(tmp_path: Path) -> None:
    path = converted(
        build(NETWORKS["windows"], SEED), "int8_float_ends", SEED, tmp_path / "n.tflite"
    )
    made = tmp_path / "again.onnx"
    assert command("quantize", path, "--target", "onnxruntime", "-o", made).status == 0
    graph = qir.load(made)
    assert {str(n.operands["x"].type.dtype) for n in qir.load(made) if n.op == "dequantize"} >= {
        "u8"
    }
    assert not [n for n in graph if n.attrs.get("layout") == "NHWC"]


@pytest.mark.parametrize("name", LOOPS)
def test_a_recurrent_network_computes_the_same(name: str, tmp_path: Path) -> None:
    path = converted(build(LOOPS[name], SEED), "float", SEED, tmp_path / "net.tflite")
    compare(path, qir.load(path))


@pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    "DenseNet121 EfficientNetB0 InceptionV3 MobileNet MobileNetV2 MobileNetV3Small ResNet50"
    " Xception".split(),
)
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_a_network_of_keras_applications_computes_the_same(
    name: str, kind: str, tmp_path: Path
) -> None:
    if (name, kind) == ("DenseNet121", "int8"):
        pytest.skip("with such weights it has a sum that is refused: scales too far apart")
    application = getattr(tf.keras.applications, name)
    # Features, as the scores of such weights are nearly equal; more spread makes them infinite.
    shape = (96, 96, 3)
    model = build(
        lambda: application(input_shape=shape, weights=None, include_top=False), SEED, 0.004
    )
    path = converted(model, kind, SEED, tmp_path / "net.tflite")
    graph = qir.load(path)
    compare(path, graph)
    (features,) = interpreted(path, list(drawn(graph, 0).values()))
    assert np.unique(features).size > 8
