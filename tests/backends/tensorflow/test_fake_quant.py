"""Simulated quantization of TensorFlow, read, quantized or written for TensorFlow again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.errors import Refused, UsageError
from qir.target import target
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import TARGET, compared_by_regions

tf = pytest.importorskip("tensorflow")
SEED = 31
from tests.frontends.tensorflow.comparison import build_graph_def, save_graph_def  # noqa: E402


def layer(x: object) -> object:
    """A product with simulated quantization of its data, its weights and its result."""
    weights = np.linspace(-0.9, 0.8, 40, dtype=np.float32).reshape(8, 5)
    fake = tf.quantization.fake_quant_with_min_max_args
    y = fake(x, -2.9, 3.1) @ fake(weights, -0.9, 0.9, narrow_range=True)
    return fake(y + np.linspace(-0.1, 0.1, 5, dtype=np.float32), -4.0, 4.0)


def test_a_product_whose_weights_are_simulated_is_no_fault(tmp_path: Path) -> None:
    x = np.random.default_rng(7).normal(size=(4, 8)).astype(np.float32)
    proto, _ = build_graph_def(layer, (x,), open_axes=1)
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    with pytest.raises(UsageError, match="quantized already"):
        qir.quantize(graph, qir.calibrate(graph, [{"x0": x}]), target=TARGET)


def network(channels: bool) -> Callable[[object], object]:
    """Layers with simulated quantization about a zero point, weights by tensor or by channel."""
    rng = np.random.default_rng(11)
    fake = tf.quantization.fake_quant_with_min_max_args

    def weights(*shape: int) -> object:
        data = rng.normal(0, 0.3, shape).astype(np.float32)
        if not channels:
            return fake(data, -0.7, 0.9, num_bits=6)
        most = np.abs(data).reshape(-1, shape[-1]).max(0)
        by_channel = tf.quantization.fake_quant_with_min_max_vars_per_channel
        return by_channel(data, -most, most * 1.1, narrow_range=True)

    def made(x: object) -> object:
        x = fake(x, -2.9, 3.1)
        x = fake(tf.nn.relu6(tf.nn.conv2d(x, weights(3, 3, 3, 8), 1, "SAME") + 0.1), 0.0, 6.0)
        x = fake(x + fake(tf.nn.conv2d(x, weights(1, 1, 8, 8), 1, "SAME"), -4.0, 7.0), -3.0, 9.0)
        x = tf.reshape(tf.nn.avg_pool2d(x, 6, 6, "VALID"), (-1, 8))
        return fake(tf.matmul(x, weights(8, 5)), -4.0, 4.0)

    return made


@pytest.mark.parametrize("channels", [False, True])
def test_a_simulated_graph_is_written_as_it_was(channels: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(8).normal(size=(4, 6, 6, 3)).astype(np.float32)
    proto, (wanted,) = build_graph_def(network(channels), (x,), open_axes=1)
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    qir.save(graph, tmp_path / "f.pb", target=TARGET, format="float")
    (found,) = map(np.asarray, target(TARGET).compile_file(tmp_path / "f.pb")(x0=x).values())
    step = 8.0 / 255
    assert np.abs(found - wanted).max() <= 1.01 * step  # sums of another order may be a tie
    assert (np.abs(found - wanted) <= 1e-6).mean() > 0.9
    back = qir.load(tmp_path / "f.pb")
    assert types(graph) == types(back)


@pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
@pytest.mark.parametrize("channels", [False, True])
def test_a_simulated_graph_becomes_int8_kernels_by_its_ranges(
    channels: bool, tmp_path: Path
) -> None:
    x = np.random.default_rng(8).normal(size=(16, 6, 6, 3)).astype(np.float32)
    proto, (wanted,) = build_graph_def(network(channels), (x,), open_axes=1)
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    with pytest.raises(Refused, match=r"zero point 123.*qir quantize takes its ranges"):
        qir.save(graph, tmp_path / "no.pb", target=TARGET)
    made = qir.quantize(graph, target=TARGET)
    assert compared_by_regions(made, {"x0": x}).integers > 5000
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    (found,) = map(np.asarray, target(TARGET).compile_file(tmp_path / "int8.pb")(x0=x).values())
    assert ((found - wanted) ** 2).sum() < 5e-3 * (wanted**2).sum()


def types(graph: qir.Graph) -> object:
    """Returns the quantized types of a graph, without the axes of their scales."""
    kinds = [v.type.quant for v in graph.values.values() if v.type.quant is not None]
    numbers = [(k.scales(), k.zeros(), k.low, k.high) for k in kinds]
    return sorted([np.ravel(each).tolist() for each in found] for found in numbers)


@pytest.mark.parametrize(("bits", "narrow"), [(8, False), (8, True), (4, False), (16, True)])
def test_ranges_are_written_that_nudge_alike(bits: int, narrow: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    low = -np.exp(rng.uniform(-6, 4, 500)).astype(np.float32)
    high = np.exp(rng.uniform(-6, 4, 500)).astype(np.float32)
    x = np.concatenate([rng.normal(0, 3, (50, 500)), [[-1e9] * 500, [1e9] * 500]])
    x = x.astype(np.float32)
    fake = tf.quantization.fake_quant_with_min_max_vars_per_channel
    proto, (wanted,) = build_graph_def(lambda x: fake(x, low, high, bits, narrow), (x,))
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    qir.save(graph, tmp_path / "f.pb", target=TARGET, format="float")
    (found,) = map(np.asarray, target(TARGET).compile_file(tmp_path / "f.pb")(x0=x).values())
    assert np.array_equal(found[-2:], wanted[-2:]), f"seed {SEED}"
    assert np.array_equal(found, wanted), f"seed {SEED}"
