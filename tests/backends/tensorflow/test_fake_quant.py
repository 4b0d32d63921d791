"""Simulated quantization of TensorFlow, read, quantized or written for TensorFlow again."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.errors import UsageError

from .written import TARGET

tf = pytest.importorskip("tensorflow")
from tests.frontends.tensorflow.comparison import built, saved  # noqa: E402


def layer(x: object) -> object:
    """A product with simulated quantization of its data, its weights and its result."""
    weights = np.linspace(-0.9, 0.8, 40, dtype=np.float32).reshape(8, 5)
    fake = tf.quantization.fake_quant_with_min_max_args
    y = fake(x, -2.9, 3.1) @ fake(weights, -0.9, 0.9, narrow_range=True)
    return fake(y + np.linspace(-0.1, 0.1, 5, dtype=np.float32), -4.0, 4.0)


def test_a_product_whose_weights_are_simulated_is_no_fault(tmp_path: Path) -> None:
    x = np.random.default_rng(7).normal(size=(4, 8)).astype(np.float32)
    proto, _ = built(layer, (x,), open_axes=1)
    graph = qir.load(saved(proto, tmp_path / "g.pb"))
    with pytest.raises(UsageError, match="quantized already"):
        qir.quantize(graph, qir.calibrate(graph, [{"x0": x}]), target=TARGET)
