"""Transposed convolutions as convolutions: the numbers stay, and networks become integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qir
from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.passes.forms.lower_transposed import LowerTransposed
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.target import target

F = np.float32
COUNT = 120


def random_graph(rng: np.random.Generator) -> Graph | None:
    """Returns a transposed convolution and a relu; None where nothing is left of the result."""
    stride = int(rng.integers(1, 5))
    kernel, dilation, sizes, output_pad = (
        tuple(int(v) for v in rng.integers(low, high, 2))
        for low, high in ((1, 6), (1, 3), (1, 6), (0, stride))
    )
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pad = tuple(int(rng.integers(0, spans[i % 2] + 2)) for i in range(4))
    made = [
        (sizes[i] - 1) * stride + spans[i] - pad[i] - pad[i + 2] + output_pad[i] for i in (0, 1)
    ]
    if min(made) < 1:
        return None
    graph = Graph()
    x = graph.add("input", types=[qir.TensorType((2, 3, *sizes), F32)], name="x").result
    given = {"x": x, "w": graph.constant(rng.normal(size=(3, 2, *kernel)).astype(F))}
    given["bias"] = graph.constant(rng.normal(size=2).astype(F))
    attrs = {
        "stride": (stride, stride),
        "pad": pad,
        "dilation": dilation,
        "output_pad": output_pad,
    }
    y = graph.add("conv_transpose2d", given, attrs).result
    graph.add("output", {"y": graph.add("relu", {"x": y}, name="y").result})
    return graph


def test_the_convolution_computes_what_the_transposed_one_does() -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    compared = 0
    while compared < COUNT:
        graph = random_graph(rng)
        if graph is None:
            continue
        shape = [size for size in graph.inputs[0].type.shape if isinstance(size, int)]
        x = rng.normal(size=shape).astype(F)
        lowered = run_passes(graph, [LowerTransposed()], qir.Ledger())
        assert "conv_transpose2d" not in {node.op for node in lowered}
        found, wanted = (run(each, {"x": x})["y"] for each in (lowered, graph))
        assert np.allclose(found, wanted, rtol=0, atol=1e-5)
        compared += 1


@pytest.mark.parametrize(("groups", "strides"), [(1, (2, 2)), (2, (2, 2)), (1, (2, 1))])
def test_the_plan_names_the_pass_where_it_rewrites(groups: int, strides: tuple[int, int]) -> None:
    graph = Graph()
    x = graph.add("input", types=[qir.TensorType((1, 4, 3, 3), F32)], name="x").result
    w = graph.constant(np.ones((4, 2, 2, 2), F))
    attrs: dict[str, Attr] = {"stride": strides, "groups": groups}
    made = graph.add("conv_transpose2d", {"x": x, "w": w}, attrs, name="t")
    graph.add("output", {"y": made.result})
    (reason,) = (d.reason for d in qir.plan(graph, target="onnxruntime").decisions)
    remedy = "; `qir opt -p lower-transposed` rewrites it"
    made_graph = run_passes(graph, [LowerTransposed()], qir.Ledger())
    lowered = all(node.op != "conv_transpose2d" for node in made_graph)
    assert reason == "onnxruntime has no integer conv_transpose2d" + (remedy if lowered else "")
    assert lowered == (groups == 1 and strides == (2, 2))


def test_open_sizes_stay_open() -> None:
    text = """graph main as native {
      %x = input() : (N)x2x(H)x(W)xf32
      %w = constant(@w) : 2x3x4x4xf32
      %y = conv_transpose2d(%x, %w) {stride = (2, 2), pad = (1, 1, 1, 1)} : (N)x3x(2*H)x(2*W)xf32
      output(y=%y)
    }"""
    rng = np.random.default_rng(2)
    graph = qir.parse(text, {"w": rng.normal(size=(2, 3, 4, 4)).astype(F)})
    lowered = run_passes(graph, [LowerTransposed()], qir.Ledger())
    x = rng.normal(size=(2, 2, 5, 3)).astype(F)
    found, wanted = (run(each, {"x": x})["y"] for each in (lowered, graph))
    assert found.shape == (2, 3, 10, 6)
    assert np.allclose(found, wanted, rtol=0, atol=1e-5)


def generator() -> Graph:
    """Returns the generator of a DCGAN: from a row to an image, by transposed convolutions."""
    graph, rng = Graph(), np.random.default_rng(8)

    def constant(*shape: int, scale: float = 0.2) -> Value:
        return graph.constant((rng.normal(size=shape) * scale).astype(F))

    x = graph.add("input", types=[qir.TensorType((16, 8, 4, 4), F32)], name="x").result
    for i, (inner, outer, kernel, pads, extra) in enumerate(
        [(8, 12, 4, (1, 1, 1, 1), 0), (12, 8, 5, (2, 2, 2, 2), 1), (8, 3, 3, (0, 0, 1, 1), 0)]
    ):
        given = {"x": x, "w": constant(inner, outer, kernel, kernel)}
        if i != 1:
            given["bias"] = constant(outer)
        attrs = {"stride": (2, 2), "pad": pads, "output_pad": (extra, extra)}
        x = graph.add("conv_transpose2d", given, attrs).result
        if i == 1:
            rows = {slot: constant(outer) for slot in ("beta", "mean")}
            rows |= {
                slot: graph.constant(rng.uniform(0.5, 2, outer).astype(F))
                for slot in ("gamma", "var")
            }
            x = graph.add("batch_norm", {"x": x, **rows}).result
        x = graph.add("relu" if i < 2 else "tanh", {"x": x}).result
    graph.add("output", {"y": x})
    return graph


def lowered_generator() -> tuple[Graph, np.ndarray]:
    graph = run_passes(generator(), [FoldBatchNorm(), LowerTransposed()], qir.Ledger())
    assert sum(node.op == "conv2d" for node in graph) == 3
    return graph, np.random.default_rng(9).normal(size=(16, 8, 4, 4)).astype(F)


@pytest.mark.parametrize("name", ["onnxruntime", "tensorflow-onednn", "pytorch-x86", "cpu"])
def test_a_generator_of_images_is_integer_where_convolutions_are(name: str) -> None:
    plain = qir.plan(generator(), target=name).integer_macs
    graph, _ = lowered_generator()
    assert plain < 0.1 or name == "pytorch-x86"
    assert qir.plan(graph, target=name).integer_macs == 1


def test_a_generator_of_images_runs_in_onnxruntime_as_predicted(tmp_path: Path) -> None:
    graph, x = lowered_generator()
    made = qir.quantize(graph, qir.calibrate(graph, x))
    qir.save(made, tmp_path / "y.onnx", format="qoperator")
    ops = [node.op_type for node in onnx.load(tmp_path / "y.onnx").graph.node]
    assert ops.count("QLinearConv") == 3
    found = onnxruntime.InferenceSession(tmp_path / "y.onnx").run(None, {"x": x})[0]
    predicted = run(qir.load(tmp_path / "y.onnx"), {"x": x})["y"]
    assert np.allclose(found, predicted, rtol=0, atol=1e-6)  # a step is 0.05; tanh is in float
    wanted = run(generator(), {"x": x})["y"]
    assert np.abs(np.asarray(found) - wanted).mean() < 0.02


@pytest.mark.slow
def test_a_generator_of_images_runs_in_tensorflow_as_predicted() -> None:
    pytest.importorskip("tensorflow")
    from tests.backends.tensorflow.written import compared_by_regions, quantized

    graph, x = lowered_generator()
    found = compared_by_regions(quantized(graph, {"x": x}), {"x": x})
    assert found.integers > 50_000
    assert found.tied == 0


def test_an_engine_of_pytorch_computes_it_as_predicted() -> None:
    pytest.importorskip("torch")
    graph, x = lowered_generator()
    made = qir.quantize(graph, qir.calibrate(graph, x), target="pytorch-x86")
    (found,) = target("pytorch-x86").compile(made)(x=x).values()
    assert np.array_equal(np.asarray(found), qir.run(made, {"x": x})["y"])
