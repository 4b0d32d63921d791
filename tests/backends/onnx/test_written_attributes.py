"""Attributes that change results are written: onnxruntime computes them as the reference does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qir

ODD = np.array([[np.inf, -np.inf, np.nan, 1.0, 0.0]], np.float32)
IMAGE = np.random.default_rng(11).normal(size=(1, 2, 7, 7)).astype(np.float32)
CASES = {
    "is_inf, positive": ("1x5xf32", "is_inf(%x) {negative = false} : 1x5xbool", ODD),
    "is_inf, negative": ("1x5xf32", "is_inf(%x) {positive = false} : 1x5xbool", ODD),
    "pads that count": (
        "1x2x7x7xf32",
        "avg_pool2d(%x) {kernel = (3, 3), stride = (2, 2), pad = (1, 1, 1, 1), count_pad = true}"
        " : 1x2x4x4xf32",
        IMAGE,
    ),
    "windows that begin inside": (
        "1x2x7x7xf32",
        "max_pool2d(%x) {kernel = (2, 2), stride = (2, 2), ceil = true} : 1x2x4x4xf32",
        IMAGE,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_onnxruntime_computes_what_attributes_say(what: str, tmp_path: Path) -> None:
    kind, op, data = CASES[what]
    graph = qir.parse(f"graph main as native {{ %x = input() : {kind} %y = {op} output(y=%y) }}")
    qir.save(graph, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": data})
    ours = np.asarray(qir.run(graph, {"x": data})["y"])
    assert ours.shape == theirs.shape
    if ours.dtype == bool:
        assert np.array_equal(ours, theirs)
    else:
        assert np.abs(ours - theirs).max() < 1e-6
