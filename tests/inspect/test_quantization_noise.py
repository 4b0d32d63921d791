"""What quantizing costs is measured on a few samples, and the layers that lose most are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import qir
from qir import pipeline
from qir.inspect import quantization_noise
from qir.inspect.quantization_noise import LOW
from tests.cli import models
from tests.cli.command import qir as command

CLIPPED = "name=/conv2/Relu: u8 affine tensor percentile:1"
"""A range that leaves out most of what the layer gives."""


def decibels(wanted: NDArray[np.float32], given: NDArray[np.float32]) -> float:
    a, b = wanted.astype(np.float64), given.astype(np.float64)
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("noise")
    models.write(made)
    return made


@pytest.mark.parametrize("rules", [(), (CLIPPED,)])
def test_the_sqnr_is_that_of_the_runtime(rules: tuple[str, ...], folder: Path) -> None:
    graph, x = qir.load(folder / "model.onnx"), models.images()
    quantized = pipeline.quantize(graph, pipeline.calibrate(graph, x), rules=rules)
    pipeline.save(quantized, folder / "int8.onnx", force=True)
    few = {"images": x[:4]}
    wanted, given = (
        onnxruntime.InferenceSession(folder / name).run(None, few)[0]
        for name in ("model.onnx", "int8.onnx")
    )
    found = quantization_noise(graph, quantized, few)
    assert found.samples == 4
    assert found.outputs["classes"] == pytest.approx(decibels(wanted, given), abs=0.5)


def test_the_worst_layer_is_the_one_that_was_clipped(folder: Path) -> None:
    graph, x = qir.load(folder / "model.onnx"), models.images()
    statistics = pipeline.calibrate(graph, x)
    good = quantization_noise(graph, pipeline.quantize(graph, statistics), {"images": x})
    assert not good.low
    assert not good.layers
    clipped = pipeline.quantize(graph, statistics, rules=[CLIPPED])
    for of in (graph, pipeline.fold(graph)):
        layers = quantization_noise(of, clipped, {"images": x}).layers
        assert layers[0].node == "/conv2/Relu", layers
        assert layers[0].lost > 10


def test_the_verb_warns_in_one_line(folder: Path) -> None:
    words = ("quantize", folder / "model.onnx", "--data", folder / "samples.npy", "--force")
    made = folder / "made.onnx"
    assert "warning" not in command(*words, "-o", made).out
    outcome = command(*words, "-o", made, "--rule", CLIPPED)
    lines = [line for line in outcome.out.splitlines() if "warning" in line]
    assert outcome.status == 0, outcome
    assert len(lines) == 1, outcome
    assert "output classes keeps an SQNR of" in lines[0]
    assert "/conv2/Relu" in lines[0]
    assert not command(*words, "-o", made, "--rule", CLIPPED, "--quiet").out
    data = json.loads(command(*words, "-o", made, "--rule", CLIPPED, "--json").out)
    assert data["sqnr"]["classes"] < LOW
    assert data["noisiest"][0]["node"] == "/conv2/Relu"
    assert not json.loads(command(*words, "-o", made, "--json").out)["noisiest"]
