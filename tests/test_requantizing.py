"""A quantized model is quantized for another target by the ranges of its types, without data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import qir
from qir.cli.app import app
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Change

TRAINED = """graph main {
  %x = input() : (N)x3x8x8xf32
  %xq = quantize(%x) : (N)x3x8x8x!quant.uniform<u8:f32, 0.02:130>
  %xr = dequantize(%xq) : (N)x3x8x8xf32
  %w = constant(@w) : 4x3x3x3xf32
  %wq = quantize(%w) : 4x3x3x3x!quant.uniform<i8<-127:127>:f32:0, {0.01, 0.02, 0.005, 0.01}>
  %wr = dequantize(%wq) : 4x3x3x3xf32
  %b = constant(@b) : 4xf32
  %c = conv2d(%xr, %wr, bias=%b) {pad = (1, 1, 1, 1)} : (N)x4x8x8xf32
  %r = relu(%c) : (N)x4x8x8xf32
  %rq = quantize(%r) : (N)x4x8x8x!quant.uniform<u8:f32, 0.03>
  %rr = dequantize(%rq) : (N)x4x8x8xf32
  %p = max_pool2d(%rr) {kernel = (2, 2), stride = (2, 2)} : (N)x4x4x4xf32
  %f = flatten(%p) : (N)x64xf32
  %v = constant(@v) : 5x64xi8
  %d = linear(%f, %vr) : (N)x5xf32
  output(y=%d)
}"""
TRAINED = TRAINED.replace(
    "  %v = constant(@v) : 5x64xi8\n",
    "  %v = constant(@v) : 5x64x!quant.uniform<i8:f32, 0.01>\n  %vr = dequantize(%v) : 5x64xf32\n",
)
SCALES = np.array([0.01, 0.02, 0.005, 0.01])


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    w = rng.uniform(-1, 1, (4, 3, 3, 3)) * 127 * SCALES[:, None, None, None]
    w[:, 0, 0, 0] = 127 * SCALES  # training moves a range to the largest weight
    v = rng.integers(-127, 128, (5, 64)).astype(np.int8)
    return {"w": w.astype(np.float32), "b": np.full(4, 0.3, np.float32), "v": v}


def trained() -> Graph:
    return qir.parse(TRAINED, arrays())


def kinds(graph: Graph) -> dict[str, tuple[str, object, object]]:
    """The types of quantized values: storage, scales and zero points."""
    found = {v.name: v.type.quant for v in graph.values.values() if v.type.quant is not None}
    return {
        name: (str(kind.storage), np.asarray(kind.scales()).tolist(), np.asarray(kind.zeros()))
        for name, kind in found.items()
    }


def noise(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(((a - b) ** 2).sum() / (b**2).sum())


def test_ranges_are_those_that_were_trained() -> None:
    ledger = qir.Ledger()
    made = qir.quantize(trained(), target="tensorflow-onednn", ledger=ledger)
    found = [
        (str(v.type.quant.storage), float(np.max(v.type.quant.scales())))
        for v in made.values.values()
        if v.type.quant is not None and v.type.quant.granularity is None and v.constant is None
    ]
    low, high = -130 * 0.02, 125 * 0.02
    wanted = {("i8", np.float32(-low / 127)), ("u8", np.float32(0.03))}
    assert {(storage, np.float32(scale)) for storage, scale in found} == wanted
    assert high < -low
    assert next(e for e in ledger if e.step == "ranges").change is Change.QUANTIZED


def test_weights_keep_the_scales_and_integers_they_were_trained_with() -> None:
    made = qir.quantize(trained(), target="tensorflow-onednn")
    (held,) = (
        v
        for v in made.values.values()
        if v.constant is not None and v.type.quant is not None and v.type.rank == 4
    )
    assert held.type.quant is not None
    assert held.constant is not None
    assert np.allclose(held.type.quant.scales(), SCALES, rtol=1e-6)
    w = arrays()["w"] / SCALES[:, None, None, None].astype(np.float32)
    assert np.array_equal(held.constant.data, np.clip(np.rint(w), -127, 127))


def test_an_op_for_whose_values_no_range_is_stated_stays_float() -> None:
    ledger = qir.Ledger()
    made = qir.quantize(trained(), target="tensorflow-onednn", ledger=ledger)
    assert not any(v.type.quant for v in made.outputs.values())
    (node,) = (n for n in made if n.op in ("gemm", "linear", "matmul"))
    assert all(v.type.quant is None for v in node.operands.values())
    assert {v.node.op for v in node.operands.values()} == {"dequantize", "constant"}
    told = [e for e in ledger if e.step == "ranges" and e.change is Change.EXACT]
    assert ["stays float: no range of d is stated" in e.reason for e in told] == [True]


def test_results_are_near_those_of_the_model_it_was() -> None:
    x = np.random.default_rng(5).normal(0, 1, (16, 3, 8, 8)).astype(np.float32)
    graph = trained()
    wanted = qir.run(graph, {"x": x})["y"]
    for target in ("tensorflow-onednn", "onnxruntime", "mxnet-onednn"):
        found = qir.run(qir.quantize(graph, target=target), {"x": x})["y"]
        assert noise(found, wanted) < 1e-3


def test_an_activation_that_a_type_stands_for_is_kept() -> None:
    text = TRAINED.replace("  %r = relu(%c) : (N)x4x8x8xf32\n", "").replace("%r)", "%c)")
    graph = qir.parse(text, arrays())
    x = np.random.default_rng(6).normal(0, 1, (16, 3, 8, 8)).astype(np.float32)
    wanted = qir.run(graph, {"x": x})["y"]
    made = qir.quantize(graph, target="tensorflow-onednn")
    assert "relu" in {n.op for n in made}
    found = qir.run(made, {"x": x})["y"]
    assert noise(found, wanted) < 1e-3


INTEGERS = """graph main {
  %x = input() : 2x3x!quant.uniform<i8:f32, 0.5:-128>
  %r = dequantize(%x) : 2x3xf32
  %w = constant(@w) : 4x3xf32
  %d = linear(%r, %w) : 2x4xf32
  %y = quantize(%d) : 2x4x!quant.uniform<i8:f32, 2.0:3>
  output(y=%y)
}"""


@pytest.mark.parametrize("io", ["float", "integer"])
def test_a_model_of_integers_gets_the_inputs_and_outputs_that_are_asked_for(io: str) -> None:
    w = np.random.default_rng(7).normal(0, 1, (4, 3)).astype(np.float32)
    graph = qir.parse(INTEGERS, {"w": w})
    made = qir.quantize(graph, target="onnxruntime", io=io)
    x = np.random.default_rng(8).integers(0, 256, (2, 3))
    given = x.astype(np.uint8) if io == "integer" else (x * 0.5).astype(np.float32)
    (found,) = qir.run(made, {"x": given}).values()
    (wanted,) = qir.run(graph, {"x": (x - 128).astype(np.int8)}).values()
    if io == "float":
        assert noise(found, (wanted.astype(np.float32) - 3) * 2) < 1e-3
    else:
        assert found.dtype == np.uint8
        assert np.abs(found.astype(int) - (wanted.astype(int) + 128)).max() <= 1
    assert "relu" not in {node.op for node in made}, "an unsigned input is no relu"


def test_a_float_model_still_needs_data(tmp_path: Path) -> None:
    graph = qir.parse("graph main { %x = input() : 2xf32  %y = relu(%x) : 2xf32  output(y=%y) }")
    with pytest.raises(UsageError, match="give statistics"):
        qir.quantize(graph)
    qir.save(graph, tmp_path / "a.qir")
    given = ["quantize", str(tmp_path / "a.qir"), "-o", str(tmp_path / "b.qir")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2
    assert "give either --data" in done.output


def test_the_command_takes_no_data(tmp_path: Path) -> None:
    qir.save(trained(), tmp_path / "trained.qir")
    given = ["quantize", str(tmp_path / "trained.qir"), "-o", str(tmp_path / "int8.pb")]
    done = CliRunner().invoke(app, [*given, "--target", "tensorflow-onednn"])
    assert done.exit_code == 0, done.output
    assert "taken from the quantized types of the model" in " ".join(done.output.split())
    back = qir.load(tmp_path / "int8.pb")
    assert back.profile == "tf-2.21.onednn"
    assert any(n.stages and n.stages[0].op == "conv2d" for n in back)
