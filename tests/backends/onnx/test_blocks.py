"""Blocks of every kind, in integers of widths that ONNX has: written, run by onnxruntime, read
back.

What block_size can say is written by it, and everything else as a function.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import Refused
from qir.ir import text

Reals: TypeAlias = "NDArray[np.float32]"
X = np.random.default_rng(5).normal(0, 2, (8, 4)).astype(np.float32)
X[:2, 0] = 0.12, -0.36  # ties of the first scale
FAR = X.copy()
FAR[2:4] = [[1e9, -1e9, np.inf, -np.inf], [1e-9, -0.0, 7.5, -7.5]]
"""What onnxruntime's kernel for blocks takes for other numbers, and functions do not."""
EXACT = ("", "half_up", "away")
FEW = "{0.24, 0.03125}"
FORMS = {
    "rows in two, columns alike": ("{0:4}", FEW),
    "with zeros": ("{0:4}", "{0.24:1, 0.03125:0}"),
    "columns in two, rows alike": ("{1:2}", FEW),
    "with real zeros": ("{0:4}", "{0.24:0.5, 0.03125:0.25}"),
    "both, with zeros": ("{0:4, 1:2}", "{0.24:1, 0.03125:0, 0.5:1, 1:1}"),
    "ragged": ("{0:3}", "{0.24, 0.03125, 1}"),
    "all rows": ("{0:8}", "{0.24}"),
}
STANDARD = {
    "rows in two": ("{0:4, 1:1}", "{0.24, 0.1, 1, 2, 3, 0.7, 0.1, 0.3}"),
    "all rows, with zeros": ("{0:8, 1:1}", "{0.24:1, 0.1:0, 1:1, 2:1}"),
}


def written(
    form: tuple[str, str], storage: str, rounding: str, target: str, path: Path, x: Reals = X
) -> None:
    """Writes and tries x, quantized and dequantized; the reference says what it should be."""
    grain, numbers = form
    said = f'{{round = "{rounding}"}} ' if rounding else ""
    graph = text.parse(
        f"""graph main as ort-1.31 {{
  %x = input() : 8x4xf32
  %q = quantize(%x) {said}: 8x4x!quant.uniform<{storage}:f32:{grain}, {numbers}>
  %y = dequantize(%q) : 8x4xf32
  output(y=%y)
}}"""
    )
    wanted = pipeline.run(graph, {"x": x})["y"]
    pipeline.save(graph, path, target=target, force=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {"x": x})
    assert made.tobytes() == wanted.tobytes()

    again = pipeline.load(path)
    assert pipeline.run(again, {"x": x})["y"].tobytes() == wanted.tobytes()
    kinds = {v.type.quant for v in again.values.values() if v.type.quant}
    assert len(kinds) == 1
    (found,), known = kinds, graph["q"].type.quant
    assert known is not None
    assert (found.granularity, found.storage, found.has_float_zero) == (
        known.granularity,
        known.storage,
        known.has_float_zero,
    )
    assert found.scales().reshape(-1).tolist() == known.scales().reshape(-1).tolist()
    assert found.zeros().reshape(-1).tolist() == known.zeros().reshape(-1).tolist()


@pytest.mark.parametrize("storage", ["i2", "u4", "i8", "u16", "i3"])
@pytest.mark.parametrize("name", [*FORMS, *STANDARD])
def test_blocks_come_back(name: str, storage: str, tmp_path: Path) -> None:
    form = {**FORMS, **STANDARD}[name]
    for rounding in EXACT:
        x = FAR if name in FORMS else X
        written(form, storage, rounding, "onnxruntime", tmp_path / "m.onnx", x)
    written(form, storage, "", "onnx", tmp_path / "m.onnx")


@pytest.mark.parametrize("name", STANDARD)
def test_what_block_size_says_needs_no_function(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    written(STANDARD[name], "i8", "", "onnxruntime", path)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["QuantizeLinear", "DequantizeLinear"]
    assert not model.functions


@pytest.mark.parametrize("storage", ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"])
@pytest.mark.parametrize("name", ["rows in two, columns alike", "columns in two, rows alike"])
def test_blocks_of_float_codes_come_back(name: str, storage: str, tmp_path: Path) -> None:
    """Cast makes them, beyond both ends too; it rounds to even alone."""
    for target in ("onnxruntime", "onnx"):
        written(FORMS[name], storage, "", target, tmp_path / "m.onnx", FAR)
    with pytest.raises(Refused, match=f"Cast to {storage} rounds to even, and not away"):
        written(FORMS[name], storage, "away", "onnx", tmp_path / "m.onnx")
