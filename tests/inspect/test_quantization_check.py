"""A quantized graph beside its float one: metrics, flips, worst tensors and what helps them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.evaluating import check
from qir.ir.graph import Graph

SEED = 20261124
LABELS = np.random.default_rng(SEED).integers(0, 4, 64)


def model(path: Path, spread: float) -> None:
    """Two linear layers; the first one's channels differ by `spread` in size, and its bias."""
    rng = np.random.default_rng(SEED)
    size = np.ones(16, np.float32)
    size[3] = spread
    arrays = {
        "w1": rng.normal(0, 0.5, (16, 12)) * size[:, None],
        "b1": rng.uniform(0, 1, 16) * size,
        "w2": rng.normal(0, 0.5, (4, 16)) / size,
        "b2": rng.normal(0, 0.2, 4),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "bend"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "second", transB=1),
    ]
    given, results = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])]
        for name, width in (("x", 12), ("y", 4))
    ]
    held = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "two", given, results, held)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )


def samples() -> np.ndarray:
    return np.random.default_rng(SEED + 1).uniform(0, 1, (64, 12)).astype(np.float32)


def quantized(tmp_path: Path, spread: float, **how: str) -> tuple[Graph, Graph, qir.Statistics]:
    model(tmp_path / "two.onnx", spread)
    graph = qir.load(tmp_path / "two.onnx")
    statistics = qir.calibrate(graph, samples())
    return graph, qir.quantize(graph, statistics, **how), statistics  # type: ignore[arg-type]


def test_metrics_and_flips_are_those_of_the_results(tmp_path: Path) -> None:
    how = {"granularity": "tensor", "corrections": "none"}
    graph, made, statistics = quantized(tmp_path, 60.0, **how)
    found = check(graph, made, samples(), statistics, LABELS, **how)  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(
        tmp_path / "two.onnx", providers=["CPUExecutionProvider"]
    )
    a = np.asarray(session.run(None, {"x": samples()})[0], np.float64)
    b = np.asarray(qir.run(made, {"x": samples()})["y"], np.float64)
    right_a, right_b = a.argmax(-1) == LABELS, b.argmax(-1) == LABELS
    assert found.float == {"y": {"top1": right_a.mean()}}
    assert found.quantized == {"y": {"top1": right_b.mean()}}
    flips = found.flips["y"]
    assert (flips.lost, flips.gained) == ((right_a & ~right_b).sum(), (right_b & ~right_a).sum())
    assert flips.changed == (a.argmax(-1) != b.argmax(-1)).sum() > 0
    decibels = 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())
    assert found.near["y"]["sqnr"] == pytest.approx(decibels, abs=1e-3)
    assert found.near["y"]["agreement"] == 1 - flips.changed / 64
    assert found.samples == 64


def test_an_outlier_of_the_weights_is_told_with_what_helps(tmp_path: Path) -> None:
    how = {"granularity": "tensor", "corrections": "none"}
    graph, made, statistics = quantized(tmp_path, 60.0, **how)
    found = check(graph, made, samples(), statistics, **how)  # type: ignore[arg-type]
    worst = {each.tensor: each for each in found.worst}
    second = worst["y"]
    assert second.cause in ("outlier channel", "shifted mean")
    sqnr = found.near["y"]["sqnr"]
    other, made, _ = quantized(tmp_path, 60.0, corrections="none")
    better = check(other, made, samples(), statistics, corrections="none").near["y"]["sqnr"]
    assert better > sqnr + 1, "a scale for each channel of the weights helps"
    assert not found.float
    assert found.flips["y"].lost == found.flips["y"].gained == 0


def test_equalized_tensors_are_compared_as_they_were_divided(tmp_path: Path) -> None:
    how = {"granularity": "tensor", "corrections": "equalize,correct-bias"}
    graph, made, statistics = quantized(tmp_path, 60.0, **how)
    found = check(graph, made, samples(), statistics, **how)  # type: ignore[arg-type]
    a, b = (np.asarray(qir.run(g, {"x": samples()})["y"], np.float64) for g in (graph, made))
    assert found.near["y"]["sqnr"] == pytest.approx(
        10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()), abs=1e-3
    )
    assert all(each.sqnr > 15 for each in found.worst), found.worst


def test_batches_do_not_matter(tmp_path: Path) -> None:
    graph, made, statistics = quantized(tmp_path, 4.0)
    one, other = (check(graph, made, samples(), statistics, LABELS, batch=n) for n in (7, 64))
    assert (one.float, one.quantized, one.flips) == (other.float, other.quantized, other.flips)
    assert [w.tensor for w in one.worst] == [w.tensor for w in other.worst]
    for a, b in zip(one.worst, other.worst, strict=True):
        assert a.lost == pytest.approx(b.lost)
