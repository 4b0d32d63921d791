"""Networks of keras.applications, quantized for TensorFlow Lite: the page's counts are true."""

from pathlib import Path

import numpy as np
import pytest

import qir
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import compared, quantized

tf = pytest.importorskip("tensorflow")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI"),
]
PAGE = Path(__file__).parents[3] / "docs" / "guide" / "to-tflite.md"
SIZES = {
    "MobileNetV2": 96,
    "MobileNetV3Small": 96,
    "EfficientNetB0": 96,
    "ResNet50": 64,
    "InceptionV3": 96,
    "DenseNet121": 64,
    "NASNetMobile": 96,
}


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8"])
@pytest.mark.parametrize("name", SIZES)
def test_every_quantized_value_is_the_interpreters(name: str, target: str) -> None:
    tf.keras.utils.set_random_seed(1)
    shape = (SIZES[name], SIZES[name], 3)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=shape, classes=10)
    graph, rng = qir.load(model), np.random.default_rng(0)
    of_pixels = "Efficient" in name or "V3" in name

    def feeds() -> dict[str, np.ndarray]:
        drawn = rng.uniform(0, 255, (1, *shape)) if of_pixels else rng.normal(0, 1, (1, *shape))
        return {graph.inputs[0].name: drawn.astype(np.float32)}

    given = feeds()
    found = compared(quantized(graph, feeds(), feeds(), target=target), given)
    assert f"| {name} | {found.integers:,} | 0 |" in PAGE.read_text(encoding="utf-8")
