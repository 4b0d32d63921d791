"""Moves to integers that a model holds are on integers themselves, where nobody reads what they
leave."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import qir
from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.text import parse
from tests.cli.command import qir as command
from tests.installed import OPTIMIZED

SEED = 8
SLICE = "slice(%p) {starts = (0,), ends = (3,), axes = (1,), steps = (1,)}"
GATHER = "gather(%p, %i) {axis = 1}"
TEXT = """graph main as PROFILE {
  %x = input() : 4x5xf32
  %w = constant(@w) : 5x5xf32
  %v = constant(@v) : 3x5xf32
  %i = constant([0, 2, 4]) : 3xi64
  %p = matmul(%x, %w) : 4x5xf32
  %t = MOVE : 4x3xf32
  %z = transpose(%t) {perm = (0, 1)} : 4x3xf32
  %q = quantize(%z) : 4x3x!quant.uniform<u8:f32, 0.1:120>
  %d = dequantize(%q) : 4x3xf32
  %y = matmul(%d, %v) : 4x5xf32
  output(y=%y OTHER)
}
"""


def network(move: str, other: str) -> tuple[Graph, NDArray[np.float32]]:
    """Products of which a move takes part to integers that are there; seeded data."""
    rng = np.random.default_rng(SEED)
    held = {"w": rng.normal(size=(5, 5)), "v": rng.normal(size=(3, 5))}
    text = TEXT.replace("MOVE", move).replace("OTHER", other).replace("PROFILE", OPTIMIZED)
    graph = parse(text, {name: a.astype(np.float32) for name, a in held.items()})
    return graph, rng.normal(0, 3, (4, 5)).astype(np.float32)


def run(path: Path, x: NDArray[np.float32]) -> tuple[list[NDArray[np.float32]], Counter[str]]:
    """What onnxruntime gives, and the operators that it runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = [np.asarray(y, np.float32) for y in session.run(None, {"x": x})]
    return found, Counter(n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("move", [SLICE, GATHER])
def test_a_part_that_alone_is_read_is_moved_on_codes(move: str, form: str, tmp_path: Path) -> None:
    graph, x = network(move, "")
    told = {d.node: d.integer for d in qir.plan(graph).decisions if d.becomes != "as it is"}
    assert told == dict.fromkeys("ptzy", True)
    made = qir.quantize(graph, qir.calibrate(graph, {"x": x}))
    assert {v.node: v.taken for v in pipeline.op_verdicts(made)} == dict.fromkeys("ptzy", "integer")
    pipeline.save(made, tmp_path / "q.onnx", format=form)
    found, ops = run(tmp_path / "q.onnx", x)
    assert ops["QLinearMatMul"] == 2
    assert ops["QuantizeLinear"] == ops["DequantizeLinear"] == 1, f"seed {SEED}: {dict(ops)}"
    assert np.array_equal(found[0], qir.run(made, {"x": x})["y"]), f"seed {SEED}"
    real = np.asarray(qir.run(graph, {"x": x})["y"], np.float32)
    assert np.abs(found[0] - real).max() < 0.05 * np.abs(real).max(), f"seed {SEED}"


@pytest.mark.parametrize("move", [SLICE, GATHER])
def test_elements_that_others_read_keep_their_own_map(move: str, tmp_path: Path) -> None:
    graph, x = network(move, ", p=%p")
    told = {d.node: d.integer for d in qir.plan(graph).decisions if d.becomes != "as it is"}
    assert told["p"]
    assert told["y"]
    assert not told["t"]
    made = qir.quantize(graph, qir.calibrate(graph, {"x": x * 9}))
    pipeline.save(made, tmp_path / "q.onnx")
    found = run(tmp_path / "q.onnx", x * 9)[0]
    real = np.asarray(qir.run(graph, {"x": x * 9})["p"], np.float32)
    most = np.abs(real).max()
    assert most > 20, "beyond the map of the part"
    off = min(np.abs(p - real).max() for p in found if p.shape == real.shape)
    assert off < 0.02 * most, f"seed {SEED}"


PADDED = """graph main {
  %x = input() : 4x5x8xf32
  %w = constant(@w) : 8x8xf32
  %v = constant(@v) : 8x3xf32
  %h = matmul(%x, %w) : 4x5x8xf32
  %p = pad(%h) {pads = (0, 1, 0, 0, 1, 0), value = 0.0} : 4x7x8xf32
  %s = slice(%p) {starts = (1,), ends = (6,), axes = (1,), steps = (1,)} : 4x5x8xf32
  %y = matmul(%s, %v) : 4x5x3xf32
  output(y=%y)
}
"""


@pytest.mark.parametrize(("form", "count"), [("qdq", 3), ("qoperator", 4)])
def test_a_pad_counts_as_the_form_has_it(form: str, count: int, tmp_path: Path) -> None:
    """Nothing plans integers for a pad: in QOperator form they are there, and it moves them."""
    rng = np.random.default_rng(SEED)
    held = {"w": rng.normal(size=(8, 8)), "v": rng.normal(size=(8, 3))}
    graph = parse(PADDED, {name: a.astype(np.float32) for name, a in held.items()})
    pipeline.save(graph, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", rng.normal(size=(16, 5, 8)).astype(np.float32))
    made = command(
        "quantize",
        *(tmp_path / "m.onnx", "--data", tmp_path / "x.npy", "--format", form),
        *("-o", tmp_path / "q.onnx"),
    )
    assert f"integer  {count} of 4 ops" in made.out, made
    asked = ("--target", "onnxruntime", "--json")
    told = json.loads(command("verify", tmp_path / "q.onnx", *asked).out)
    assert sum(v["taken"] == "integer" for v in told["ops"]) == count
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    ort.InferenceSession(str(tmp_path / "q.onnx"), options, providers=["CPUExecutionProvider"])
    optimized = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "o.onnx")).graph
    pad = next(n for n in optimized.node if n.op_type == "Pad")
    behind = {n.op_type for n in optimized.node if set(n.output) & set(pad.input)}
    assert (behind == {"QLinearMatMul"}) == (form == "qoperator"), optimized
